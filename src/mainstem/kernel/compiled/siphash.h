/* SipHash-2-4 with 128 bits of output (Aumasson, Bernstein: "SipHash: a fast short-input PRF"). */
#ifndef MAINSTEM_SIPHASH_H
#define MAINSTEM_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "big_endian.h" /* which says what machines this is for: it reads little-endian words as they lie */

typedef struct { uint64_t a, b, c, d; } ms_sip_state;

static inline uint64_t ms_sip_word(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline uint64_t ms_sip_turn(uint64_t v, int bits) { return (v << bits) | (v >> (64 - bits)); }

static inline void ms_sip_rounds(ms_sip_state *s, int count) {
    while (count--) {
        s->a += s->b; s->b = ms_sip_turn(s->b, 13) ^ s->a; s->a = ms_sip_turn(s->a, 32);
        s->c += s->d; s->d = ms_sip_turn(s->d, 16) ^ s->c;
        s->a += s->d; s->d = ms_sip_turn(s->d, 21) ^ s->a;
        s->c += s->b; s->b = ms_sip_turn(s->b, 17) ^ s->c; s->c = ms_sip_turn(s->c, 32);
    }
}

/* `key` has 16 bytes. The first eight bytes of the hash are `low`, little-endian, the others `high`. */
static inline void ms_siphash(const uint8_t *key, const uint8_t *p, size_t size, uint64_t *low, uint64_t *high) {
    uint64_t k0 = ms_sip_word(key), k1 = ms_sip_word(key + 8);
    ms_sip_state s = {
        k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du ^ 0xee, k0 ^ 0x6c7967656e657261u, k1 ^ 0x7465646279746573u};
    uint64_t word, last = (uint64_t)size << 56;
    const uint8_t *stop = p + (size & ~(size_t)7);
    for (; p < stop; p += 8) {
        word = ms_sip_word(p);
        s.d ^= word;
        ms_sip_rounds(&s, 2);
        s.a ^= word;
    }
    for (int number = 0; number < (int)(size & 7); number++) last |= (uint64_t)p[number] << (8 * number);
    s.d ^= last;
    ms_sip_rounds(&s, 2);
    s.a ^= last;
    s.c ^= 0xee;
    ms_sip_rounds(&s, 4);
    *low = s.a ^ s.b ^ s.c ^ s.d;
    s.b ^= 0xdd;
    ms_sip_rounds(&s, 4);
    *high = s.a ^ s.b ^ s.c ^ s.d;
}

#endif
