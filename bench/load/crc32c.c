/* CRC32C in two forms, one chosen at run time: the SSE 4.2 instruction, eight bytes a step, or eight tables
 * that also take eight bytes a step. Single-threaded by design: both are made ready at the first call. */
#include "crc32c.h"

#include <stdbool.h>
#include <string.h>

#define POLYNOMIAL_REVERSED 0x82F63B78U

static uint32_t tables[8][256];

static void make_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ ((crc & 1) ? POLYNOMIAL_REVERSED : 0);
        tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++)
            tables[table][byte] = (tables[table - 1][byte] >> 8) ^ tables[0][tables[table - 1][byte] & 0xFF];
}

uint32_t crc32c_table(uint32_t crc, const uint8_t *at, size_t bytes)
{
    if (tables[0][1] == 0)
        make_tables();
    crc = ~crc;
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint32_t low =
            crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
        crc = tables[7][low & 0xFF] ^ tables[6][(low >> 8) & 0xFF] ^ tables[5][(low >> 16) & 0xFF] ^
              tables[4][low >> 24] ^ tables[3][at[4]] ^ tables[2][at[5]] ^ tables[1][at[6]] ^
              tables[0][at[7]];
    }
    for (; bytes > 0; at++, bytes--)
        crc = (crc >> 8) ^ tables[0][(crc ^ *at) & 0xFF];
    return ~crc;
}

#if defined(__x86_64__)
#include <nmmintrin.h>

static bool has_instruction(void)
{
    return __builtin_cpu_supports("sse4.2");
}

__attribute__((target("sse4.2"))) static uint32_t with_instruction(uint32_t crc, const uint8_t *at,
                                                                   size_t bytes)
{
    uint64_t wide = (uint32_t)~crc;
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        wide = _mm_crc32_u64(wide, word);
    }
    uint32_t narrow = (uint32_t)wide;
    for (; bytes > 0; at++, bytes--)
        narrow = _mm_crc32_u8(narrow, *at);
    return ~narrow;
}
#else
static bool has_instruction(void)
{
    return false;
}

static uint32_t with_instruction(uint32_t crc, const uint8_t *at, size_t bytes)
{
    return crc32c_table(crc, at, bytes);
}
#endif

uint32_t crc32c_hardware(uint32_t crc, const uint8_t *at, size_t bytes)
{
    return has_instruction() ? with_instruction(crc, at, bytes) : crc32c_table(crc, at, bytes);
}

uint32_t crc32c(uint32_t crc, const uint8_t *at, size_t bytes)
{
    static uint32_t (*chosen)(uint32_t, const uint8_t *, size_t);
    if (chosen == NULL)
        chosen = has_instruction() ? with_instruction : crc32c_table;
    return chosen(crc, at, bytes);
}
