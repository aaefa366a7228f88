/* Csv by blocks of 64 bytes: where whole records end, and records with some of their fields only.

   Called by `malstrom_py.sources.files.csv_scan` through ctypes, with the GIL released. Nothing is read beyond the `n`
   bytes that the caller describes. The answer to a quote inside a field that is not quoted, an open quote at the end, or
   a wrong number of fields is UNCERTAIN: then the caller reads these bytes in another way. */

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__) || defined(_M_X64)
#include <emmintrin.h>
#endif

#if defined(_WIN32)
#define API __declspec(dllexport)
#else
#define API __attribute__((visibility("default")))
#endif

#define UNCERTAIN (-1)
#define BLOCK 64
#define SHORT 32

/* ---- one block: a bit for each byte ---- */

typedef struct {
    uint64_t commas, ends, quotes;
} Marks;

#if defined(__SSE2__) || defined(_M_X64)
static inline void mark(const uint8_t *data, Marks *marks) {
    const __m128i comma = _mm_set1_epi8(','), quote = _mm_set1_epi8('"');
    const __m128i line = _mm_set1_epi8('\n'), carriage = _mm_set1_epi8('\r');
    marks->commas = marks->ends = marks->quotes = 0;
    for (int i = 0; i < BLOCK; i += 16) {
        __m128i some = _mm_loadu_si128((const __m128i *)(data + i));
        __m128i ends = _mm_or_si128(_mm_cmpeq_epi8(some, line), _mm_cmpeq_epi8(some, carriage));
        marks->commas |= (uint64_t)_mm_movemask_epi8(_mm_cmpeq_epi8(some, comma)) << i;
        marks->quotes |= (uint64_t)_mm_movemask_epi8(_mm_cmpeq_epi8(some, quote)) << i;
        marks->ends |= (uint64_t)_mm_movemask_epi8(ends) << i;
    }
}
#else
static inline void mark(const uint8_t *data, Marks *marks) {
    marks->commas = marks->ends = marks->quotes = 0;
    for (int i = 0; i < BLOCK; i++) {
        marks->commas |= (uint64_t)(data[i] == ',') << i;
        marks->quotes |= (uint64_t)(data[i] == '"') << i;
        marks->ends |= (uint64_t)(data[i] == '\n' || data[i] == '\r') << i;
    }
}
#endif

#if defined(__GNUC__)
#define zeros_below __builtin_ctzll
#define zeros_above __builtin_clzll
#else
static inline int zeros_below(uint64_t bits) {
    int zeros = 0;
    for (; !(bits & 1); bits >>= 1) zeros++;
    return zeros;
}
static inline int zeros_above(uint64_t bits) {
    int zeros = 0;
    for (; !(bits >> 63); bits <<= 1) zeros++;
    return zeros;
}
#endif

typedef struct {
    uint64_t quoted;   /* all bits: the last byte is inside quotes */
    uint64_t may_open; /* 1: a quote opens a field, or escapes the quote before it */
    uint64_t closed;   /* 1: the last byte is a closing quote */
} Scan;

/* Leave in `marks` the commas and line ends outside quotes; 0 if uncertain. `one_line`: no value holds a line end, and
   nothing follows a closing quote in its field. */
static inline int scan(Scan *so_far, const uint8_t *data, int64_t left, int one_line, Marks *marks) {
    uint8_t padded[BLOCK];
    int by;
    uint64_t there = ~(uint64_t)0, inside, closing, may_open;
    if (left < BLOCK) {
        memset(padded, 0, BLOCK);
        memcpy(padded, data, (size_t)left);
        data = padded;
        there = ((uint64_t)1 << left) - 1;
    }
    mark(data, marks);
    /* From each opening quote up to its closing one: the parity of the quotes so far. */
    inside = marks->quotes;
    for (by = 1; inside && by < BLOCK; by *= 2) inside ^= inside << by;
    inside ^= so_far->quoted;
    if (one_line && (marks->ends & inside)) return 0;
    closing = marks->quotes & ~inside;
    marks->commas &= ~inside;
    marks->ends &= ~inside;
    may_open = marks->commas | marks->ends | closing;
    if (marks->quotes & inside & ~(may_open << 1 | so_far->may_open)) return 0;
    if (one_line && ((closing << 1 | so_far->closed) & ~(marks->commas | marks->ends | marks->quotes) & there)) return 0;
    so_far->quoted = 0 - (inside >> 63);
    so_far->may_open = may_open >> 63;
    so_far->closed = closing >> 63;
    return 1;
}

/* ---- what is called ---- */

/* The end of the last whole record; a carriage return at the very end may be half of a line end. */
API int64_t ms_csv_cut(const uint8_t *data, int64_t n) {
    Scan so_far = {0, 1, 0};
    Marks marks;
    int64_t at, cut = 0;
    for (at = 0; at < n; at += BLOCK) {
        if (!scan(&so_far, data + at, n - at, 0, &marks)) return UNCERTAIN;
        if (n - at <= BLOCK && data[n - 1] == '\r') marks.ends &= ~((uint64_t)1 << (n - 1 - at));
        if (marks.ends) cut = at + BLOCK - zeros_above(marks.ends);
    }
    return cut;
}

/* Write start and end of some fields of each record to `spans`, which has room for n / fields + 2 records; return the
   number of records. The scan stops at some separators of each record, the first and the last among them: it passes over
   `skips[j]` before stop `j`, and the field before that is one of those asked for if `chosen[j]`. */
API int64_t ms_csv_fields(const uint8_t *data, int64_t n, const int64_t *skips, const uint8_t *chosen, int64_t stops,
                          int one_line, int32_t *spans) {
    Scan so_far = {0, 1, 0};
    Marks marks;
    int64_t at, i, rows = 0, stop = 0, skip = skips[0], start = 0;
    for (at = 0; at < n; at += BLOCK) {
        uint64_t separators, before, bit;
        if (!scan(&so_far, data + at, n - at, one_line, &marks)) return UNCERTAIN;
        separators = marks.commas | marks.ends;
        while (separators) {
            if (skip) {
                before = separators;
                do separators &= separators - 1;
                while (--skip && separators);
                if ((before ^ separators) & marks.ends) return UNCERTAIN; /* too few fields */
                continue;
            }
            i = at + zeros_below(separators);
            bit = separators & (0 - separators);
            separators ^= bit;
            if (!(marks.ends & bit) || stop || i > start) { /* else an empty line */
                if (!(marks.ends & bit) != (stop < stops - 1)) return UNCERTAIN;
                if (chosen[stop]) {
                    *spans++ = (int32_t)start;
                    *spans++ = (int32_t)i;
                }
                if (++stop == stops) {
                    stop = 0;
                    rows++;
                }
            }
            start = i + 1;
            skip = skips[stop];
        }
    }
    if (so_far.quoted) return UNCERTAIN;
    if (!stop && start == n) return rows;
    if (skip || stop < stops - 1) return UNCERTAIN;
    if (chosen[stop]) {
        *spans++ = (int32_t)start;
        *spans++ = (int32_t)n;
    }
    return rows + 1;
}

static inline uint8_t *copied(uint8_t *to, const uint8_t *data, int64_t start, int64_t end, int64_t n) {
    if (end - start <= SHORT && start + SHORT <= n)
        memcpy(to, data + start, SHORT);
    else
        memcpy(to, data + start, (size_t)(end - start));
    return to + (end - start);
}

/* Write the fields that are `raw` of each record, one at least, to `out` as csv; return the size. `out` has room for
   n + 1 bytes. */
API int64_t ms_csv_lines(const uint8_t *data, int64_t n, const int32_t *spans, int64_t rows, const uint8_t *raw,
                         int64_t width, uint8_t *out) {
    uint8_t *to = out;
    int64_t row, field;
    for (row = 0; row < rows; row++) {
        for (field = 0; field < width; field++, spans += 2)
            if (raw[field]) {
                to = copied(to, data, spans[0], spans[1], n);
                *to++ = ',';
            }
        to[-1] = '\n';
    }
    return to - out;
}

/* Write one field of each record to `out`, which has room for n bytes, as the texts of an Arrow array: without quotes,
   and null if empty and not quoted. Return the size. The spans of a record are `step` numbers before those of the next. */
API int64_t ms_csv_texts(const uint8_t *data, int64_t n, const int32_t *spans, int64_t step, int64_t rows, uint8_t *out,
                         int32_t *offsets, uint8_t *valid) {
    uint8_t *to = out;
    int64_t row, start, end;
    memset(valid, 0xff, (size_t)(rows + 7) / 8);
    for (row = 0; row < rows; row++, spans += step) {
        start = spans[0];
        end = spans[1];
        offsets[row] = (int32_t)(to - out);
        if (start == end) {
            valid[row >> 3] &= (uint8_t) ~(1 << (row & 7));
        } else if (data[start] != '"') {
            to = copied(to, data, start, end, n);
        } else {
            start++;
            if (--end < start || data[end] != '"') return UNCERTAIN; /* something follows the closing quote */
            if (!memchr(data + start, '"', (size_t)(end - start))) {
                to = copied(to, data, start, end, n);
                continue;
            }
            for (; start < end; start++) {
                if (data[start] == '"' && data[++start] != '"') return UNCERTAIN;
                *to++ = data[start];
            }
        }
    }
    offsets[rows] = (int32_t)(to - out);
    return to - out;
}
