/* Random calls of the accelerator, beside a naive loop. Built with sanitizers: each buffer has exactly the size that the
   caller describes, so that a read beyond it is reported. */

#include "groups.c"

#include <stdio.h>

static uint64_t state = 88172645463325252ULL;

static uint64_t any(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static void check(int holds, const char *what) {
    if (!holds) {
        printf("%s\n", what);
        exit(1);
    }
}

/* What is known of the keys that have ids, in order. */
typedef struct {
    int64_t number, length;
    uint8_t bytes[24];
    int null;
} Key;

static Key known[200000];
static int64_t n_known;

static int64_t place_of(const Key *key, int add) {
    for (int64_t i = 0; i < n_known; i++)
        if (known[i].null == key->null &&
            (key->null || (known[i].number == key->number && known[i].length == key->length &&
                           !memcmp(known[i].bytes, key->bytes, (size_t)key->length))))
            return i;
    if (!add) return -1;
    known[n_known] = *key;
    return n_known++;
}

static Key random_key(int is_text, uint64_t spread) {
    Key key = {0};
    uint64_t n = any(spread);
    key.null = any(9) == 0;
    if (!is_text) {
        key.number = key.null ? 0 : (int64_t)(n << (16 * any(4)));
    } else if (!key.null) {
        key.length = (int64_t)any(sizeof key.bytes + 1);
        for (int64_t i = 0; i < key.length; i++) key.bytes[i] = (uint8_t)(n % 3);
        if (is_text == 1 && key.length) key.bytes[0] = (uint8_t)any(256);
    }
    return key;
}

static void index_round(int is_text, int wide, uint64_t spread) {
    Index *index = ms_index_new(is_text, any(UINT64_MAX), any(UINT64_MAX));
    n_known = 0;
    for (int batch = 0; batch < 6; batch++) {
        int64_t offset = (int64_t)any(20), n = (int64_t)any(300), rows = offset + n;
        int add = any(3) != 0, has_nulls = any(2) != 0;
        int64_t *numbers = malloc((size_t)rows * 8 + 1);
        void *offsets = malloc((size_t)(rows + 1) * (wide ? 8 : 4));
        uint8_t *valid = calloc((size_t)(rows + 7) / 8 + 1, 1);
        uint8_t *data = malloc(1);
        int64_t used = 0;
        int32_t *ids = malloc((size_t)n * 4 + 1), *expected = malloc((size_t)n * 4 + 1);
        for (int64_t row = 0; row <= rows; row++) {
            if (wide) ((int64_t *)offsets)[row] = used; else ((int32_t *)offsets)[row] = (int32_t)used;
            if (row == rows) break;
            Key key = random_key(is_text, spread);
            if (!has_nulls) key.null = 0;
            if (key.null) key.length = 0;
            numbers[row] = key.number;
            data = realloc(data, (size_t)(used + key.length) + 1);
            memcpy(data + used, key.bytes, (size_t)key.length);
            used += key.length;
            if (!key.null) valid[row / 8] |= (uint8_t)(1 << row % 8);
            if (row >= offset) expected[row - offset] = (int32_t)place_of(&key, add);
        }
        data = realloc(data, (size_t)used + !used);
        int64_t failed = is_text ? ms_index_text_ids(index, data, offsets, wide, has_nulls ? valid : NULL, offset, n, ids, add)
                                 : ms_index_numbers_ids(index, numbers, has_nulls ? valid : NULL, offset, n, ids, add);
        check(!failed, "an index failed");
        check(!memcmp(ids, expected, (size_t)n * 4), "ids differ");
        check(ms_index_len(index) == n_known, "another number of keys");
        if (is_text) {
            uint32_t *slots = malloc((size_t)n * 4 + 1);
            int tag = is_text == 2 ? TAG_TEXT : TAG_BYTES;
            failed = ms_text_slots(tag, data, offsets, wide, has_nulls ? valid : NULL, offset, n, 7, 9, slots);
            check(!failed, "text has no slots");
            for (int64_t i = 0; i < n; i++) {
                int null = has_nulls && !is_valid(valid, offset + i);
                check(null ? slots[i] == 9 : slots[i] < 7, "a slot is another");
            }
            free(slots);
        }
        free(numbers); free(offsets); free(valid); free(data); free(ids); free(expected);
    }
    ms_index_free(index);
}

static void scan_round(void) {
    int64_t n = (int64_t)any(200), keys = 1 + (int64_t)any(20);
    int32_t *ids = malloc((size_t)n * 4 + 1);
    int64_t *values = malloc((size_t)n * 8 + 1), *out = malloc((size_t)n * 8 + 1);
    uint8_t *valid = malloc((size_t)n + 1), *there = malloc((size_t)n + 1), *has = calloc((size_t)keys, 1);
    uint8_t *flags = calloc((size_t)keys, 1);
    int64_t *totals = calloc((size_t)keys, 8), *best = calloc((size_t)keys, 8), *seen = calloc((size_t)keys, 8);
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)any((uint64_t)keys);
        values[i] = any(8) ? (int64_t)any(9) - 4 : (int64_t)any(UINT64_MAX);
        valid[i] = any(4) != 0;
    }
    ms_sum_int(ids, (uint64_t *)values, n, (uint64_t *)totals, (uint64_t *)(any(2) ? out : NULL));
    ms_sum_float(ids, (double *)values, n, (double *)totals, (double *)out);
    ms_count(ids, any(2) ? valid : NULL, n, seen, out);
    int largest = (int)any(2);
    ms_best_int(ids, values, valid, n, largest, best, has, out, there);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++)
            if (ids[j] == ids[i] && valid[j])
                check(there[i] && (largest ? out[i] >= values[j] : out[i] <= values[j]), "not the best");
    ms_best_float(ids, (double *)values, valid, n, largest, (double *)best, has, NULL, NULL);
    ms_edge_8(ids, (uint64_t *)values, valid, n, largest, (uint64_t *)best, has, (uint64_t *)out, there);
    ms_edge_1(ids, valid, NULL, n, largest, flags, has, there, (uint8_t *)out);
    ms_mark(ids, n, has, flags);
    int64_t low = (int64_t)any(9) - 4, found;
    int32_t *table = malloc((size_t)keys * 4), *numbered = malloc((size_t)n * 4 + 1);
    int64_t *added = malloc((size_t)keys * 8);
    for (int64_t i = 0; i < keys; i++) table[i] = -1;
    for (int64_t i = 0; i < n; i++) values[i] = low + ids[i];
    found = ms_number(values, n, low, table, 0, numbered, added);
    for (int64_t i = 0; i < n; i++) check(numbered[i] < found && added[numbered[i]] == values[i], "not its number");
    check(!ms_number(values, n, low, table, found, numbered, added), "a number is given twice");
    free(table); free(numbered); free(added);
    free(ids); free(values); free(out); free(valid); free(there); free(has); free(flags);
    free(totals); free(best); free(seen);
}

/* Keys that an unseeded hash would put into one place: slow enough to be noticed, if they collided. */
static void hostile(void) {
    enum { N = 150000 };
    static int64_t values[N];
    static int32_t ids[N];
    Index *index = ms_index_new(0, any(UINT64_MAX), any(UINT64_MAX));
    for (int shift = 0; shift < 48; shift += 12) {
        for (int64_t i = 0; i < N; i++) values[i] = i << shift;
        check(!ms_index_numbers_ids(index, values, NULL, 0, N, ids, 1), "an index failed");
    }
    ms_index_free(index);
    index = ms_index_new(2, 1, 2);
    const uint8_t broken[] = "a\xed\xa0\x80";
    const int32_t offsets[] = {0, 1, 4};
    check(ms_index_text_ids(index, broken, offsets, 0, NULL, 0, 2, ids, 1) == NOT_TEXT, "a surrogate is no text");
    check(ms_index_len(index) == 1, "a key that is no text has an id");
    ms_index_free(index);
}

int main(void) {
    for (int round = 0; round < 150; round++) {
        index_round(round % 3, (int)any(2), round % 2 ? 5 : 5000);
        scan_round();
    }
    hostile();
    printf("equal\n");
    return 0;
}
