/* A small seeded generator (splitmix64): payloads that do not compress, and gaps between arrivals. */
#ifndef LOAD_RANDOM_H
#define LOAD_RANDOM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct random {
    uint64_t state;
};

static inline uint64_t random_next(struct random *random)
{
    uint64_t mixed = (random->state += 0x9E3779B97F4A7C15ULL);
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL;
    return mixed ^ (mixed >> 31);
}

/* Uniform in (0, 1]: never 0, so that its logarithm is finite. */
static inline double random_unit(struct random *random)
{
    return ((double)(random_next(random) >> 11) + 1.0) * 0x1p-53;
}

static inline void random_fill(struct random *random, uint8_t *at, size_t bytes)
{
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t word = random_next(random);
        memcpy(at, &word, 8);
    }
    uint64_t word = random_next(random);
    memcpy(at, &word, bytes);
}

#endif
