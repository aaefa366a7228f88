/* Random bytes in buffers of exactly their size through each call of csv.c, beside a reading byte by byte. */

#include "csv.c"

#include <stdio.h>
#include <stdlib.h>

#define FIELDS 3
#define CHECK(wanted)                                            \
    do {                                                         \
        if (!(wanted)) {                                         \
            printf("line %d, seed %u: %s\n", __LINE__, seed, #wanted); \
            return 1;                                            \
        }                                                        \
    } while (0)

/* Read `n` bytes; the end of the last record to `cut`, the number of records of FIELDS fields, or -1 if others are there
   too, to `rows`. Return whether each quote opens a field, closes one, or is escaped, and the last one is closed. */
static int read(const char *data, int64_t n, int64_t *cut, int64_t *rows) {
    int quoted = 0, at_field = 1, plain = 1;
    int64_t i, fields = 1, start = 0;
    *cut = *rows = 0;
    for (i = 0; i <= n; i++) {
        char here = i < n ? data[i] : '\n';
        if (quoted) {
            if (i == n) return 0;
            if (here == '"' && i + 1 < n && data[i + 1] == '"') i++;
            else if (here == '"') quoted = 0;
        } else if (here == '"') {
            if (!at_field) plain = 0;
            quoted = at_field;
            at_field = 0;
        } else if (here == '\n' || here == '\r') {
            if (i < n && !(here == '\r' && i == n - 1)) *cut = i + 1;
            if (i > start && *rows >= 0) *rows = fields == FIELDS ? *rows + 1 : -1;
            fields = 1;
            start = i + 1;
            at_field = 1;
        } else {
            fields += here == ',';
            at_field = here == ',';
        }
    }
    return plain;
}

static int run(unsigned seed) {
    static const char letters[] = "ab,,,\"\"\n\r";
    static const char *rows_of[] = {"a,b,c\n", "\"x,\"\"\ny\",,\"\"\r\n", "1234567890123456789012345678901234567890,2,\n", "\n"};
    const int64_t skips[] = {0, 0, 0};
    const uint8_t chosen[] = {1, 0, 1}, raw[] = {1, 1};
    char text[512];
    int64_t n = 0, size, cut, rows, found, i;
    int is_certain;
    srand(seed);
    size = rand() % 300;
    while (n < size) {
        if (seed % 2) {
            text[n++] = letters[rand() % (int)(sizeof letters - 1)];
        } else {
            const char *row = rows_of[rand() % 4];
            memcpy(text + n, row, strlen(row));
            n += (int64_t)strlen(row);
        }
    }
    if (n && rand() % 3 == 0) n--;
    uint8_t *data = malloc((size_t)n + !n), *out = malloc((size_t)n + 1), *texts = malloc((size_t)n + !n);
    int32_t *spans = malloc(sizeof *spans * 2 * 2 * ((size_t)n / FIELDS + 2));
    memcpy(data, text, (size_t)n);
    is_certain = read(text, n, &cut, &rows);
    found = ms_csv_cut(data, n);
    CHECK(found == UNCERTAIN || found == cut);
    CHECK(found == cut || !is_certain);
    found = ms_csv_fields(data, n, skips, chosen, FIELDS, 0, spans);
    CHECK(found == UNCERTAIN || (is_certain && found == rows));
    CHECK(found == rows || !is_certain);
    if (found > 0) {
        int32_t *offsets = malloc(sizeof *offsets * (size_t)(rows + 1));
        uint8_t *valid = malloc((size_t)(rows + 7) / 8);
        size = ms_csv_lines(data, n, spans, rows, raw, 2, out);
        CHECK(size > 0 && size <= n + 1 && out[size - 1] == '\n');
        for (i = 0; i < 2; i++) {
            size = ms_csv_texts(data, n, spans + 2 * i, 4, rows, texts, offsets, valid);
            CHECK(size == UNCERTAIN || (offsets[rows] == size && size <= n));
        }
        free(offsets);
        free(valid);
    }
    if (ms_csv_fields(data, n, skips, chosen, FIELDS, 1, spans) > 0) CHECK(found > 0);
    free(data);
    free(out);
    free(texts);
    free(spans);
    return 0;
}

int main(void) {
    for (unsigned seed = 0; seed < 40000; seed++)
        if (run(seed)) return 1;
    puts("equal");
    return 0;
}
