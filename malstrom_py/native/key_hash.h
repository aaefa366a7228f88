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

static inline uint64_t half_at(const uint8_t *p) {
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24;
}

static inline void put_word(uint8_t *p, uint64_t word) {
    for (int i = 0; i < 8; i++) p[i] = (uint8_t)(word >> (8 * i));
}

static inline uint64_t lane(uint64_t sum, uint64_t word) { return turned(sum + word * PRIME_2, 31) * PRIME_1; }

static inline uint64_t merged(uint64_t hash, uint64_t sum) { return (hash ^ lane(0, sum)) * PRIME_1 + PRIME_4; }

static inline uint64_t word_mixed(uint64_t hash, uint64_t word) {
    return turned(hash ^ lane(0, word), 27) * PRIME_1 + PRIME_4;
}

static inline uint64_t finished(uint64_t hash) {
    hash = (hash ^ hash >> 33) * PRIME_2;
    hash = (hash ^ hash >> 29) * PRIME_3;
    return hash ^ hash >> 32;
}

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
    for (; end - rest >= 8; rest += 8) hash = word_mixed(hash, word_at(rest));
    if (end - rest >= 4) {
        hash = turned(hash ^ half_at(rest) * PRIME_1, 23) * PRIME_2 + PRIME_3;
        rest += 4;
    }
    for (; rest < end; rest++) hash = turned(hash ^ *rest * PRIME_5, 11) * PRIME_1;
    return finished(hash);
}

/* The hash of a canonical form. */
static inline uint64_t hash_of_form(const uint8_t *form, uint64_t length) {
    return hash_from(form, length, form + (length < STRIPE ? length : STRIPE), form + length);
}

/* The first `length` bytes of `p`, at most 8, as a word. */
static inline uint64_t bytes_at(const uint8_t *p, uint64_t length) {
    if (length >= 8) return word_at(p);
    if (length >= 4) return half_at(p) | half_at(p + length - 4) << 8 * (length - 4); /* where they overlap, they agree */
    if (!length) return 0;
    return (uint64_t)p[0] | (uint64_t)p[length / 2] << 8 * (length / 2) | (uint64_t)p[length - 1] << 8 * (length - 1);
}

#define SHORT (STRIPE - HEAD - 1)

/* The same as `hash_of_text` of at most SHORT bytes, without memory in between. `either` gets all bits of the bytes. */
static inline uint64_t hash_of_short(uint8_t tag, const uint8_t *data, uint64_t length, uint64_t *either) {
    uint64_t a = bytes_at(data, length), b = 0, c = 0;
    if (length > 8) b = bytes_at(data + 8, length - 8);
    if (length > 16) c = bytes_at(data + 16, length - 16);
    *either = a | b | c;
    uint64_t form[4] = {tag | length << 8, a << 8, b << 8 | a >> 56, c << 8 | b >> 56};
    uint64_t size = length + HEAD, hash = word_mixed(PRIME_5 + size, form[0]), rest = form[size / 8];
    if (size >= 16) hash = word_mixed(hash, form[1]);
    if (size >= 24) hash = word_mixed(hash, form[2]);
    if (size & 4) {
        hash = turned(hash ^ (rest & 0xffffffffULL) * PRIME_1, 23) * PRIME_2 + PRIME_3;
        rest >>= 32;
    }
    for (uint64_t left = size & 3; left; left--, rest >>= 8) hash = turned(hash ^ (rest & 0xff) * PRIME_5, 11) * PRIME_1;
    return finished(hash);
}

/* The hash of a text or bytes with their `tag`; they are not copied. */
static inline uint64_t hash_of_text(uint8_t tag, const uint8_t *data, uint64_t length) {
    uint64_t either;
    if (length <= SHORT) return hash_of_short(tag, data, length, &either);
    uint8_t first[STRIPE];
    uint64_t here = STRIPE - HEAD;
    first[0] = tag;
    put_word(first + 1, length);
    memcpy(first + HEAD, data, here);
    return hash_from(first, length + HEAD, data + here, data + length);
}

/* The hash of an integer of 64 bits: the finalizer of splitmix64. */
static inline uint64_t hash_of_int(int64_t number) {
    uint64_t z = (uint64_t)number + 0x9E3779B97F4A7C15ULL;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ z >> 27) * 0x94D049BB133111EBULL;
    return z ^ z >> 31;
}
