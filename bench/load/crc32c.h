/* CRC32C (Castagnoli), the checksum of record batches.
 *
 * The processor's instruction where it has one (SSE 4.2, asked once at the first call), tables otherwise. */
#ifndef LOAD_CRC32C_H
#define LOAD_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continues `crc` (0 to begin with) over `bytes` bytes. Finished after every call; calls may be chained. */
uint32_t crc32c(uint32_t crc, const uint8_t *at, size_t bytes);

/* The two forms, for the self-check. The hardware form is the tables' where there is no instruction. */
uint32_t crc32c_table(uint32_t crc, const uint8_t *at, size_t bytes);
uint32_t crc32c_hardware(uint32_t crc, const uint8_t *at, size_t bytes);

#endif
