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

/* A field and a comma. `to` has as much room as is left of the input, and one more. */
static inline uint8_t *copied(uint8_t *to, const uint8_t *data, int64_t start, int64_t end, int64_t n) {
    if (end - start <= SHORT && start + SHORT <= n)
        memcpy(to, data + start, SHORT);
    else
        memcpy(to, data + start, (size_t)(end - start));
    to += end - start;
    *to++ = ',';
    return to;
}

/* Write records with some of their fields to `out`, which has room for n + 1 bytes; return the size. The scan stops at some separators of each record,
   the first and the last among them: it passes over `skips[j]` ones before stop `j`, and copies the field before stop
   `j` if `copies[j]`. At least one is copied. */
API int64_t ms_csv_project(const uint8_t *data, int64_t n, const int64_t *skips, const uint8_t *copies, int64_t stops,
                           int one_line, uint8_t *out) {
    Scan so_far = {0, 1, 0};
    Marks marks;
    int64_t at, i, stop = 0, skip = skips[0], start = 0;
    uint8_t *to = out;
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
            if (!(marks.ends & bit)) {
                if (stop == stops - 1) return UNCERTAIN; /* too many */
                if (copies[stop]) to = copied(to, data, start, i, n);
                stop++;
            } else if (stop || i > start) {
                if (stop < stops - 1) return UNCERTAIN;
                if (copies[stop]) to = copied(to, data, start, i, n);
                to[-1] = '\n';
                stop = 0;
            } /* else an empty line */
            start = i + 1;
            skip = skips[stop];
        }
    }
    if (so_far.quoted) return UNCERTAIN;
    if (!stop && start == n) return to - out;
    if (skip || stop < stops - 1) return UNCERTAIN;
    if (copies[stop]) to = copied(to, data, start, n, n);
    to[-1] = '\n';
    return to - out;
}
