/* The accelerator of columns: an index of keys -> dense ids, scans and folds by id, and the slots of keys that are text.

   Called through ctypes, with the GIL released; no Python API. `malstrom_py.accelerator` declares the functions,
   and `malstrom_py.state.group_kernels` calls them. Results are those of a loop over rows, to the bit.

   Rules. Nothing is read beyond the `n` rows that the caller describes. Integers wrap around; the caller has checked
   before that they do not. Floats are added in the order of the rows. Keys are hashed by SipHash-1-3 with a seed of the
   process, so that keys that all collide cannot be chosen. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "key_hash.h"

#if defined(_WIN32)
#define API __declspec(dllexport)
#else
#define API __attribute__((visibility("default")))
#endif

#define NO_MEMORY (-1)
#define TOO_MANY (-2)
#define NOT_TEXT (-3)
#define BLOCK 64
#define LARGE (1 << 21)

/* ---- keys ---- */

typedef struct {
    uint64_t seed[2];
    uint64_t *table;   /* 0: empty; else the upper half of the slot is the hash, the lower the id + 1 */
    uint64_t mask;     /* slots - 1, a power of two at most 2^32 */
    int64_t n;         /* ids given */
    int64_t room;      /* ids for which there is memory */
    int64_t null_id;   /* the id of the null key, or -1 */
    int is_text;       /* 0: keys are 64-bit integers, 1: bytes, 2: UTF-8 */
    int64_t *numbers;  /* by id: the integer, or where the bytes end in `bytes` */
    uint8_t *bytes;
    int64_t bytes_used, bytes_room;
} Index;

static inline uint64_t rotated(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }

#define ROUND(a, b, c, d)                                                    \
    do {                                                                     \
        a += b; b = rotated(b, 13); b ^= a; a = rotated(a, 32);              \
        c += d; d = rotated(d, 16); d ^= c;                                  \
        a += d; d = rotated(d, 21); d ^= a;                                  \
        c += b; b = rotated(b, 17); b ^= c; c = rotated(c, 32);              \
    } while (0)

static inline uint32_t hash_of(const uint64_t seed[2], const uint8_t *data, int64_t length) {
    uint64_t a = seed[0] ^ 0x736f6d6570736575ULL, b = seed[1] ^ 0x646f72616e646f6dULL;
    uint64_t c = seed[0] ^ 0x6c7967656e657261ULL, d = seed[1] ^ 0x7465646279746573ULL;
    int64_t left = length;
    uint64_t word;
    for (; left >= 8; left -= 8, data += 8) {
        memcpy(&word, data, 8);
        d ^= word;
        ROUND(a, b, c, d);
        a ^= word;
    }
    word = 0;
    if (left && length >= 8) { /* the end of the last 8 bytes */
        memcpy(&word, data + left - 8, 8);
        word >>= 8 * (8 - left);
    } else if (left >= 4) { /* two words that overlap */
        uint32_t low, high;
        memcpy(&low, data, 4);
        memcpy(&high, data + left - 4, 4);
        word = low | (uint64_t)high << (8 * (left - 4));
    } else {
        for (int64_t i = 0; i < left; i++) word |= (uint64_t)data[i] << (8 * i);
    }
    word ^= (uint64_t)length << 56;
    d ^= word;
    ROUND(a, b, c, d);
    a ^= word;
    c ^= 0xff;
    ROUND(a, b, c, d);
    ROUND(a, b, c, d);
    ROUND(a, b, c, d);
    word = a ^ b ^ c ^ d;
    return (uint32_t)(word ^ (word >> 32));
}

API Index *ms_index_new(int is_text, uint64_t seed0, uint64_t seed1) {
    Index *index = calloc(1, sizeof(Index));
    if (!index) return NULL;
    index->seed[0] = seed0;
    index->seed[1] = seed1;
    index->is_text = is_text;
    index->null_id = -1;
    index->mask = 63;
    index->table = calloc(index->mask + 1, sizeof(uint64_t));
    if (!index->table) {
        free(index);
        return NULL;
    }
    return index;
}

API void ms_index_free(Index *index) {
    if (!index) return;
    free(index->table);
    free(index->numbers);
    free(index->bytes);
    free(index);
}

API int64_t ms_index_len(const Index *index) { return index->n; }
API int64_t ms_index_null(const Index *index) { return index->null_id; }
API const int64_t *ms_index_numbers(const Index *index) { return index->numbers; }
API const uint8_t *ms_index_bytes(const Index *index) { return index->bytes; }

static int grow_table(Index *index) {
    uint64_t mask = 2 * index->mask + 1;
    uint64_t *table = calloc(mask + 1, sizeof(uint64_t));
    if (!table) return NO_MEMORY;
    for (uint64_t i = 0; i <= index->mask; i++) {
        uint64_t slot = index->table[i];
        if (!slot) continue;
        uint64_t at = (slot >> 32) & mask;
        while (table[at]) at = (at + 1) & mask;
        table[at] = slot;
    }
    free(index->table);
    index->table = table;
    index->mask = mask;
    return 0;
}

/* Whether Python would decode `data` as UTF-8. */
static int is_utf8(const uint8_t *data, int64_t length) {
    for (int64_t i = 0; i < length;) {
        if (length - i >= 8 && !(word_at(data + i) & 0x8080808080808080ULL)) { /* ASCII */
            i += 8;
            continue;
        }
        uint8_t first = data[i++];
        if (first < 0x80) continue;
        int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
        if (first < 0xc2 || first > 0xf4 || length - i < more) return 0;
        uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
        uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
        if (data[i] < low || data[i] > high) return 0;
        for (i++; more > 1; more--, i++)
            if (data[i] < 0x80 || data[i] > 0xbf) return 0;
    }
    return 1;
}

/* Give the next id to a key: a number, or `length` bytes. */
static int64_t next_id(Index *index, int64_t number, const uint8_t *data, int64_t length) {
    if (index->n >= INT32_MAX - 1) return TOO_MANY;
    if (index->is_text == 2 && !is_utf8(data, length)) return NOT_TEXT;
    if (index->n == index->room) {
        int64_t room = index->room ? 2 * index->room : 64;
        int64_t *numbers = realloc(index->numbers, (size_t)room * sizeof(int64_t));
        if (!numbers) return NO_MEMORY;
        index->numbers = numbers;
        index->room = room;
    }
    if (index->is_text) {
        if (length > index->bytes_room - index->bytes_used) {
            int64_t room = 2 * index->bytes_room + length + 64;
            uint8_t *bytes = realloc(index->bytes, (size_t)room);
            if (!bytes) return NO_MEMORY;
            index->bytes = bytes;
            index->bytes_room = room;
        }
        if (length) memcpy(index->bytes + index->bytes_used, data, (size_t)length);
        index->bytes_used += length;
        number = index->bytes_used;
    }
    index->numbers[index->n] = number;
    return index->n++;
}

static inline int is_key(const Index *index, int64_t id, int64_t number, const uint8_t *data, int64_t length) {
    if (!index->is_text) return index->numbers[id] == number;
    int64_t start = id ? index->numbers[id - 1] : 0;
    if (index->numbers[id] - start != length) return 0;
    return !length || !memcmp(index->bytes + start, data, (size_t)length);
}

static inline int64_t id_of(Index *index, uint32_t hash, int64_t number, const uint8_t *data, int64_t length, int add) {
    uint64_t at = hash & index->mask;
    for (uint64_t slot; (slot = index->table[at]); at = (at + 1) & index->mask) {
        int64_t id = (int64_t)(slot & 0xffffffffu) - 1;
        if ((uint32_t)(slot >> 32) == hash && is_key(index, id, number, data, length)) return id;
    }
    if (!add) return -1;
    int64_t id = next_id(index, number, data, length);
    if (id < 0) return id - 1; /* -1 is a key without an id */
    index->table[at] = (uint64_t)hash << 32 | (uint64_t)(id + 1);
    /* Half full while it is small; then two thirds, as memory costs more than the longer way to a key. */
    uint64_t full = index->mask < LARGE ? index->mask / 2 : index->mask / 3 * 2;
    if ((uint64_t)index->n > full && grow_table(index)) return NO_MEMORY - 1;
    return id;
}

static inline int is_valid(const uint8_t *valid, int64_t place) {
    return !valid || (valid[place >> 3] >> (place & 7) & 1);
}

static inline int64_t null_of(Index *index, int add) {
    if (index->null_id < 0 && add) {
        int64_t id = next_id(index, 0, NULL, 0);
        if (id < 0) return id - 1;
        index->null_id = id;
    }
    return index->null_id;
}

/* The ids of `n` keys from row `offset` on; `valid` is a bitmap or NULL. A key without an id gets one if `add`, else
   -1. Returns 0, NO_MEMORY, TOO_MANY or NOT_TEXT. */
API int64_t ms_index_numbers_ids(Index *index, const int64_t *values, const uint8_t *valid, int64_t offset, int64_t n,
                                 int32_t *ids, int add) {
    uint32_t hashes[BLOCK];
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t rows = n - start < BLOCK ? n - start : BLOCK;
        for (int64_t i = 0; i < rows; i++) {
            hashes[i] = hash_of(index->seed, (const uint8_t *)(values + offset + start + i), 8);
#if defined(__GNUC__)
            __builtin_prefetch(&index->table[hashes[i] & index->mask]);
#endif
        }
        for (int64_t i = 0; i < rows; i++) {
            int64_t row = offset + start + i;
            int64_t id = is_valid(valid, row) ? id_of(index, hashes[i], values[row], NULL, 0, add) : null_of(index, add);
            if (id < -1) return id + 1;
            ids[start + i] = (int32_t)id;
        }
    }
    return 0;
}

#define OFFSET(place) (wide ? ((const int64_t *)offsets)[place] : (int64_t)((const int32_t *)offsets)[place])

/* The same of text: `offsets` are of 64 bits if `wide`, else of 32. A block whose first key is its last is taken for one
   of runs, or of one key alone: a key there that is the one before it is neither hashed nor looked up. */
API int64_t ms_index_text_ids(Index *index, const uint8_t *data, const void *offsets, int wide, const uint8_t *valid,
                              int64_t offset, int64_t n, int32_t *ids, int add) {
    uint32_t hashes[BLOCK];
    uint8_t repeats[BLOCK];
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t rows = n - start < BLOCK ? n - start : BLOCK;
        int64_t first = offset + start, last = first + rows - 1;
#define LENGTH(row) (OFFSET((row) + 1) - OFFSET(row))
#define SAME(one, other)                                                                                     \
    (LENGTH(one) == LENGTH(other) &&                                                                         \
     (!LENGTH(one) || !memcmp(data + OFFSET(one), data + OFFSET(other), (size_t)LENGTH(one))))
        int runs = !valid && rows > 1 && SAME(first, last);
        for (int64_t i = 0; i < rows; i++) {
            int64_t row = first + i;
            repeats[i] = runs && i && SAME(row, row - 1);
            if (repeats[i]) continue;
            hashes[i] = 0;
            if (is_valid(valid, row)) hashes[i] = hash_of(index->seed, LENGTH(row) ? data + OFFSET(row) : NULL, LENGTH(row));
#if defined(__GNUC__)
            __builtin_prefetch(&index->table[hashes[i] & index->mask]);
#endif
        }
        for (int64_t i = 0; i < rows; i++) {
            int64_t row = first + i, id;
            if (repeats[i])
                id = ids[start + i - 1];
            else if (is_valid(valid, row))
                id = id_of(index, hashes[i], 0, LENGTH(row) ? data + OFFSET(row) : NULL, LENGTH(row), add);
            else
                id = null_of(index, add);
            if (id < -1) return id + 1;
            ids[start + i] = (int32_t)id;
        }
    }
    return 0;
}

static inline uint32_t slot_of(uint64_t hash, uint32_t count) {
    return (uint32_t)(count & (count - 1) ? hash % count : hash & (count - 1)); /* a division costs as much as a hash */
}

/* The slot, below `count`, of each of `n` keys from row `offset` on: text, or bytes if `tag` is TAG_BYTES; a null has
   `null_slot`. Returns 0, or NOT_TEXT. The arrays are as of `ms_index_text_ids`. */
API int64_t ms_text_slots(int tag, const uint8_t *data, const void *offsets, int wide, const uint8_t *valid,
                          int64_t offset, int64_t n, uint32_t count, uint32_t null_slot, uint32_t *slots) {
    for (int64_t i = 0; i < n; i++) {
        int64_t row = offset + i;
        if (!is_valid(valid, row)) {
            slots[i] = null_slot;
            continue;
        }
        int64_t from = OFFSET(row), length = OFFSET(row + 1) - from;
        const uint8_t *key = length ? data + from : NULL;
        uint64_t hash, either = ~0ULL;
        if (length <= SHORT)
            hash = hash_of_short((uint8_t)tag, key, (uint64_t)length, &either);
        else
            hash = hash_of_text((uint8_t)tag, key, (uint64_t)length);
        if (tag == TAG_TEXT && either & 0x8080808080808080ULL && !is_utf8(key, length)) return NOT_TEXT;
        slots[i] = slot_of(hash, count);
    }
    return 0;
}

/* The id of each number in `table`, which begins at `low`; one without an id, -1, gets the next from `known` on and is
   put into `added`. Returns how many were added. */
API int64_t ms_number(const int64_t *numbers, int64_t n, int64_t low, int32_t *table, int64_t known, int32_t *ids,
                      int64_t *added) {
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t *id = &table[numbers[i] - low];
        if (*id < 0) {
            *id = (int32_t)(known + found);
            added[found++] = numbers[i];
        }
        ids[i] = *id;
    }
    return found;
}

/* ---- scans and folds: `out` gets what holds after each row, or is NULL ---- */

API void ms_sum_int(const int32_t *ids, const uint64_t *values, int64_t n, uint64_t *totals, uint64_t *out) {
    if (out)
        for (int64_t i = 0; i < n; i++) out[i] = totals[ids[i]] += values[i];
    else
        for (int64_t i = 0; i < n; i++) totals[ids[i]] += values[i];
}

API void ms_sum_float(const int32_t *ids, const double *values, int64_t n, double *totals, double *out) {
    if (out)
        for (int64_t i = 0; i < n; i++) out[i] = totals[ids[i]] += values[i];
    else
        for (int64_t i = 0; i < n; i++) totals[ids[i]] += values[i];
}

/* `valid` has a byte per row, or is NULL. */
API void ms_count(const int32_t *ids, const uint8_t *valid, int64_t n, int64_t *seen, int64_t *out) {
    for (int64_t i = 0; i < n; i++) {
        int64_t count = seen[ids[i]] += valid ? valid[i] : 1;
        if (out) out[i] = count;
    }
}

#define BEST(name, type)                                                                                     \
    API void name(const int32_t *ids, const type *values, const uint8_t *valid, int64_t n, int largest,      \
                  type *best, uint8_t *has, type *out, uint8_t *out_has) {                                   \
        for (int64_t i = 0; i < n; i++) {                                                                    \
            int32_t id = ids[i];                                                                             \
            type value = values[i];                                                                          \
            if (!valid || valid[i])                                                                          \
                if (!has[id] || (largest ? value > best[id] || value != value                                \
                                         : value < best[id] || best[id] != best[id])) {                      \
                    best[id] = value;                                                                        \
                    has[id] = 1;                                                                             \
                }                                                                                            \
            if (out) {                                                                                       \
                out[i] = best[id];                                                                           \
                out_has[i] = has[id];                                                                        \
            }                                                                                                \
        }                                                                                                    \
    }

BEST(ms_best_int, int64_t)
BEST(ms_best_float, double)

/* The first or latest value, as bits. */
#define EDGE(name, type)                                                                                     \
    API void name(const int32_t *ids, const type *values, const uint8_t *valid, int64_t n, int latest,       \
                  type *kept, uint8_t *has, type *out, uint8_t *out_has) {                                   \
        for (int64_t i = 0; i < n; i++) {                                                                    \
            int32_t id = ids[i];                                                                             \
            if ((!valid || valid[i]) && (latest || !has[id])) {                                              \
                kept[id] = values[i];                                                                        \
                has[id] = 1;                                                                                 \
            }                                                                                                \
            out[i] = kept[id];                                                                               \
            out_has[i] = has[id];                                                                            \
        }                                                                                                    \
    }

EDGE(ms_edge_8, uint64_t)
EDGE(ms_edge_1, uint8_t)

/* Set the flags of `ids` in both arrays. */
API void ms_mark(const int32_t *ids, int64_t n, uint8_t *live, uint8_t *changed) {
    for (int64_t i = 0; i < n; i++) {
        live[ids[i]] = 1;
        changed[ids[i]] = 1;
    }
}
