/* The stable hash of a key (docs/key-hash.md): xxHash64 of its canonical form, and the mix of an integer.

   Rule: the same as malstrom_py.rescale.keys.key_hash, on machines of every byte order: words are read and written as
   little-endian. */

#include <stdint.h>
#include <string.h>

#define PRIME_1 0x9E3779B185EBCA87ULL
#define PRIME_2 0xC2B2AE3D27D4EB4FULL
#define PRIME_3 0x165667B19E3779F9ULL
#define PRIME_4 0x85EBCA77C2B2AE63ULL
#define PRIME_5 0x27D4EB2F165667C5ULL
#define STRIPE 32
#define HEAD 9 /* of a text: its tag, and its length in 8 bytes */

enum { TAG_NONE = 0x00, TAG_INT = 0x01, TAG_TEXT = 0x05, TAG_BYTES = 0x06, TAG_TUPLE = 0x10 };

static inline uint64_t turned(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }

/* Compilers make one load or store of each. */
static inline uint64_t word_at(const uint8_t *p) {
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24 | (uint64_t)p[4] << 32 |
           (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48 | (uint64_t)p[7] << 56;
}

static inline void put_word(uint8_t *p, uint64_t word) {
    for (int i = 0; i < 8; i++) p[i] = (uint8_t)(word >> (8 * i));
}

static inline uint64_t lane(uint64_t sum, uint64_t word) { return turned(sum + word * PRIME_2, 31) * PRIME_1; }

static inline uint64_t merged(uint64_t hash, uint64_t sum) { return (hash ^ lane(0, sum)) * PRIME_1 + PRIME_4; }

/* The hash of `length` bytes, of which `first` holds the first ones: all if they are fewer than a stripe, else a
   stripe; the others are from `rest` to `end`. */
static inline uint64_t hash_from(const uint8_t *first, uint64_t length, const uint8_t *rest, const uint8_t *end) {
    uint64_t hash = PRIME_5;
    if (length >= STRIPE) {
        uint64_t a = PRIME_1 + PRIME_2, b = PRIME_2, c = 0, d = 0 - PRIME_1;
        const uint8_t *p = first;
        for (;;) {
            a = lane(a, word_at(p));
            b = lane(b, word_at(p + 8));
            c = lane(c, word_at(p + 16));
            d = lane(d, word_at(p + 24));
            if (p != first) rest += STRIPE;
            if (end - rest < STRIPE) break;
            p = rest;
        }
        hash = turned(a, 1) + turned(b, 7) + turned(c, 12) + turned(d, 18);
        hash = merged(merged(merged(merged(hash, a), b), c), d);
    } else {
        rest = first;
        end = first + length;
    }
    hash += length;
    for (; end - rest >= 8; rest += 8) hash = turned(hash ^ lane(0, word_at(rest)), 27) * PRIME_1 + PRIME_4;
    if (end - rest >= 4) {
        uint64_t half = (uint64_t)rest[0] | (uint64_t)rest[1] << 8 | (uint64_t)rest[2] << 16 | (uint64_t)rest[3] << 24;
        hash = turned(hash ^ half * PRIME_1, 23) * PRIME_2 + PRIME_3;
        rest += 4;
    }
    for (; rest < end; rest++) hash = turned(hash ^ *rest * PRIME_5, 11) * PRIME_1;
    hash = (hash ^ hash >> 33) * PRIME_2;
    hash = (hash ^ hash >> 29) * PRIME_3;
    return hash ^ hash >> 32;
}

/* The hash of a canonical form. */
static inline uint64_t hash_of_form(const uint8_t *form, uint64_t length) {
    return hash_from(form, length, form + (length < STRIPE ? length : STRIPE), form + length);
}

/* The hash of a text or bytes with their `tag`; they are not copied. */
static inline uint64_t hash_of_text(uint8_t tag, const uint8_t *data, uint64_t length) {
    uint8_t first[STRIPE];
    uint64_t here = length < STRIPE - HEAD ? length : STRIPE - HEAD;
    first[0] = tag;
    put_word(first + 1, length);
    if (here) memcpy(first + HEAD, data, here);
    return hash_from(first, length + HEAD, data + here, data + length);
}

/* The hash of an integer of 64 bits: the finalizer of splitmix64. */
static inline uint64_t hash_of_int(int64_t number) {
    uint64_t z = (uint64_t)number + 0x9E3779B97F4A7C15ULL;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ z >> 27) * 0x94D049BB133111EBULL;
    return z ^ z >> 31;
}
