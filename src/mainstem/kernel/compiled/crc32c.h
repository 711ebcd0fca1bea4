/* CRC32C (Castagnoli): the SSE4.2 or ARMv8 instruction where the processor has it, else eight bytes at a time by table.
 *
 * The instruction takes three cycles and one can start per cycle, so long inputs run as three streams side by side and
 * are joined by shifting: the CRC of A followed by n bytes is crc(A) multiplied by x^(8n) in GF(2)[x] modulo the
 * polynomial, linear in its 32 bits, and so four table lookups for a fixed n. */
#ifndef MAINSTEM_CRC32C_H
#define MAINSTEM_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define MS_CRC_TARGET __attribute__((target("sse4.2")))
#define MS_CRC64(crc, word) _mm_crc32_u64((crc), (word))
#define MS_CRC8(crc, byte) _mm_crc32_u8((uint32_t)(crc), (byte))
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#define MS_CRC_TARGET __attribute__((target("+crc")))
#define MS_CRC64(crc, word) __crc32cd((uint32_t)(crc), (word))
#define MS_CRC8(crc, byte) __crc32cb((uint32_t)(crc), (byte))
#endif

#define MS_CRC_POLYNOMIAL 0x82f63b78u /* reflected */
#define MS_CRC_LONG 1360              /* bytes per stream: three of them are a usual batch of 4 KiB */
#define MS_CRC_SHORT 168              /* three of them are half a KiB */
#define MS_CRC_AHEAD 4096             /* bytes: memory that is in no cache comes while so much is summed */
#define MS_CRC_LINE 64                /* bytes of a cache line */

static uint32_t ms_crc_table[8][256];
static uint32_t ms_crc_shift_long[4][256];
static uint32_t ms_crc_shift_short[4][256];
static int ms_crc_hardware;

/* The CRC register after `length` more zero bytes. */
static uint32_t ms_crc_zeros(uint32_t crc, size_t length) {
    while (length--) crc = ms_crc_table[0][crc & 0xff] ^ (crc >> 8);
    return crc;
}

static void ms_crc_shift_table(uint32_t table[4][256], size_t length) {
    uint32_t bit[32];
    for (int i = 0; i < 32; i++) bit[i] = ms_crc_zeros(1u << i, length);
    for (int byte = 0; byte < 4; byte++)
        for (int value = 0; value < 256; value++) {
            uint32_t sum = 0;
            for (int i = 0; i < 8; i++)
                if (value >> i & 1) sum ^= bit[8 * byte + i];
            table[byte][value] = sum;
        }
}

static void ms_crc_prepare(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ MS_CRC_POLYNOMIAL : crc >> 1;
        ms_crc_table[0][i] = crc;
    }
    for (int i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++)
            ms_crc_table[k][i] = ms_crc_table[0][ms_crc_table[k - 1][i] & 0xff] ^ (ms_crc_table[k - 1][i] >> 8);
    ms_crc_shift_table(ms_crc_shift_long, MS_CRC_LONG);
    ms_crc_shift_table(ms_crc_shift_short, MS_CRC_SHORT);
#if defined(__x86_64__)
    ms_crc_hardware = __builtin_cpu_supports("sse4.2") != 0;
#elif defined(__aarch64__)
    ms_crc_hardware = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#endif
}

static inline uint64_t ms_load64(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

static uint32_t ms_crc_by_table(uint32_t crc, const uint8_t *p, size_t length) {
    while (length >= 8) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = ms_crc_table[7][low & 0xff] ^ ms_crc_table[6][low >> 8 & 0xff] ^ ms_crc_table[5][low >> 16 & 0xff] ^
              ms_crc_table[4][low >> 24] ^ ms_crc_table[3][p[4]] ^ ms_crc_table[2][p[5]] ^ ms_crc_table[1][p[6]] ^
              ms_crc_table[0][p[7]];
        p += 8;
        length -= 8;
    }
    while (length--) crc = ms_crc_table[0][(crc ^ *p++) & 0xff] ^ (crc >> 8);
    return crc;
}

#ifdef MS_CRC_TARGET
static inline uint32_t ms_crc_shifted(const uint32_t table[4][256], uint32_t crc) {
    return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^ table[3][crc >> 24];
}

#define MS_CRC_STEP(stride)                                                      \
    do {                                                                         \
        sum = MS_CRC64(sum, ms_load64(p));                                       \
        second = MS_CRC64(second, ms_load64(p + (stride)));                      \
        third = MS_CRC64(third, ms_load64(p + 2 * (stride)));                    \
        p += 8;                                                                  \
    } while (0)

/* Asks for a line of each stream in the round after the next. */
#define MS_CRC_PREFETCH(stride)                                                  \
    do {                                                                         \
        __builtin_prefetch(p + MS_CRC_AHEAD);                                    \
        __builtin_prefetch(p + (stride) + MS_CRC_AHEAD);                         \
        __builtin_prefetch(p + 2 * (stride) + MS_CRC_AHEAD);                     \
    } while (0)

/* One round of three streams of `stride` bytes (a multiple of 8). `prefetch`: look ahead at each line. */
#define MS_CRC_ROUND(stride, table, prefetch)                                    \
    do {                                                                         \
        uint64_t second = 0, third = 0;                                          \
        const uint8_t *stop = p + (stride);                                      \
        if (prefetch)                                                            \
            while (stop - p >= MS_CRC_LINE) {                                    \
                MS_CRC_PREFETCH(stride);                                         \
                for (int step = 0; step < MS_CRC_LINE / 8; step++) MS_CRC_STEP(stride); \
            }                                                                    \
        while (p < stop) MS_CRC_STEP(stride);                                    \
        sum = ms_crc_shifted(table, (uint32_t)sum) ^ second;                     \
        sum = ms_crc_shifted(table, (uint32_t)sum) ^ third;                      \
        p += 2 * (stride);                                                       \
        length -= 3 * (stride);                                                  \
    } while (0)

MS_CRC_TARGET static uint32_t ms_crc_by_instruction(uint32_t crc, const uint8_t *p, size_t length) {
    uint64_t sum = crc;
    while (length >= 3 * MS_CRC_LONG + MS_CRC_AHEAD) MS_CRC_ROUND(MS_CRC_LONG, ms_crc_shift_long, 1);
    while (length >= 3 * MS_CRC_LONG) MS_CRC_ROUND(MS_CRC_LONG, ms_crc_shift_long, 0);
    while (length >= 3 * MS_CRC_SHORT) MS_CRC_ROUND(MS_CRC_SHORT, ms_crc_shift_short, 0);
    while (length >= 8) {
        sum = MS_CRC64(sum, ms_load64(p));
        p += 8;
        length -= 8;
    }
    while (length--) sum = MS_CRC8(sum, *p++);
    return (uint32_t)sum;
}
#endif

/* The checksum of what `crc` is the checksum of, followed by `length` bytes. Call ms_crc_prepare once before. */
static inline uint32_t ms_crc32c(uint32_t crc, const uint8_t *p, size_t length) {
#ifdef MS_CRC_TARGET
    if (ms_crc_hardware) return ~ms_crc_by_instruction(~crc, p, length);
#endif
    return ~ms_crc_by_table(~crc, p, length);
}

#endif
