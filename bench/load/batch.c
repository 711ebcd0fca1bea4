/* A record's size depends on its offset delta (a varint), not on its content: sizes are known before
 * building, and every batch of a run has the same. The checksum is real, because brokers check it. */
#include "batch.h"

#include "crc32c.h"
#include "wire.h"

#include <assert.h>

static int32_t record_body_bytes(uint32_t offset_delta, uint32_t value_bytes)
{
    size_t fixed =
        1 /* attributes */ + 1 /* timestamp delta 0 */ + 1 /* key length -1 */ + 1 /* no headers */;
    return (int32_t)(fixed + varint_bytes((int32_t)offset_delta) + varint_bytes((int32_t)value_bytes) +
                     value_bytes);
}

size_t batch_bytes(uint32_t records, uint32_t value_bytes)
{
    size_t bytes = BATCH_HEADER_BYTES;
    for (uint32_t record = 0; record < records; record++) {
        int32_t body = record_body_bytes(record, value_bytes);
        bytes += varint_bytes(body) + (size_t)body;
    }
    return bytes;
}

void batch_build(uint8_t *begin, uint32_t records, uint32_t value_bytes, int64_t timestamp_ms,
                 struct random *random)
{
    size_t bytes = batch_bytes(records, value_bytes);
    uint8_t *at = begin;
    put_i64(&at, 0);                                   /* base offset: the broker's to give */
    put_i32(&at, (int32_t)(bytes - BATCH_LENGTH_END)); /* length */
    put_i32(&at, -1);                                  /* partition leader epoch */
    put_i8(&at, 2);                                    /* magic */
    put_i32(&at, 0);                                   /* checksum, below */
    put_i16(&at, 0);                                   /* attributes: not compressed, create time */
    put_i32(&at, (int32_t)(records - 1));              /* last offset delta */
    put_i64(&at, timestamp_ms);                        /* first timestamp */
    put_i64(&at, timestamp_ms);                        /* largest timestamp */
    put_i64(&at, -1);                                  /* producer id */
    put_i16(&at, -1);                                  /* producer epoch */
    put_i32(&at, -1);                                  /* base sequence */
    put_i32(&at, (int32_t)records);
    for (uint32_t record = 0; record < records; record++) {
        put_varint(&at, record_body_bytes(record, value_bytes));
        put_i8(&at, 0);                    /* attributes */
        put_varint(&at, 0);                /* timestamp delta */
        put_varint(&at, (int32_t)record);  /* offset delta */
        put_varint(&at, -1);               /* no key */
        put_varint(&at, (int32_t)value_bytes);
        random_fill(random, at, value_bytes);
        at += value_bytes;
        put_varint(&at, 0); /* no headers */
    }
    assert((size_t)(at - begin) == bytes);
    uint8_t *checksum = begin + BATCH_CRC_AT;
    put_i32(&checksum, (int32_t)crc32c(0, begin + BATCH_CHECKED_AT, bytes - BATCH_CHECKED_AT));
}
