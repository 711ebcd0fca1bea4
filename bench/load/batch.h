/* Record batches of format 2: built whole for producing, their headers read when consuming. */
#ifndef LOAD_BATCH_H
#define LOAD_BATCH_H

#include "random.h"

#include <stddef.h>
#include <stdint.h>

enum {
    BATCH_HEADER_BYTES = 61,
    BATCH_LENGTH_AT = 8, /* counts what follows it */
    BATCH_LENGTH_END = 12,
    BATCH_MAGIC_AT = 16,
    BATCH_CRC_AT = 17,
    BATCH_CHECKED_AT = 21, /* the checksum covers everything from here on */
    BATCH_LAST_DELTA_AT = 23,
    BATCH_RECORD_COUNT_AT = 57,
};

/* The encoded size of a batch of `records` records whose values have `value_bytes` bytes. */
size_t batch_bytes(uint32_t records, uint32_t value_bytes);

/* Writes such a batch (batch_bytes of it) with random values, no keys, no headers and no producer id. */
void batch_build(uint8_t *at, uint32_t records, uint32_t value_bytes, int64_t timestamp_ms,
                 struct random *random);

#endif
