/* Kafka's primitive types: big-endian integers, zigzag varints, strings with a 16-bit length.
 *
 * Writers move a pointer and trust the caller to have sized the memory (sizes are computed before anything is
 * written). The reader trusts nobody: past its end it turns `bad` and yields zeros, so that a parser checks
 * once. */
#ifndef LOAD_WIRE_H
#define LOAD_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { API_PRODUCE = 0, API_FETCH = 1, API_LIST_OFFSETS = 2, API_METADATA = 3 };
enum { PRODUCE_VERSION = 7, FETCH_VERSION = 11, LIST_OFFSETS_VERSION = 1, METADATA_VERSION = 4 };

/* What every request begins with: size, api key, api version, correlation id. */
enum { REQUEST_HEAD_BYTES = 12, RESPONSE_HEAD_BYTES = 8 };

#define CLIENT_ID "mainstem-load"

static inline void put_i8(uint8_t **at, int8_t value)
{
    *(*at)++ = (uint8_t)value;
}

static inline void put_i16(uint8_t **at, int16_t value)
{
    uint16_t big = __builtin_bswap16((uint16_t)value);
    memcpy(*at, &big, 2);
    *at += 2;
}

static inline void put_i32(uint8_t **at, int32_t value)
{
    uint32_t big = __builtin_bswap32((uint32_t)value);
    memcpy(*at, &big, 4);
    *at += 4;
}

static inline void put_i64(uint8_t **at, int64_t value)
{
    uint64_t big = __builtin_bswap64((uint64_t)value);
    memcpy(*at, &big, 8);
    *at += 8;
}

static inline void put_bytes(uint8_t **at, const void *bytes, size_t length)
{
    memcpy(*at, bytes, length);
    *at += length;
}

static inline void put_string(uint8_t **at, const char *text, size_t length)
{
    put_i16(at, (int16_t)length);
    put_bytes(at, text, length);
}

static inline void put_varint(uint8_t **at, int32_t value)
{
    uint32_t zigzag = ((uint32_t)value << 1) ^ (uint32_t)(value >> 31);
    for (; zigzag >= 0x80; zigzag >>= 7)
        *(*at)++ = (uint8_t)(zigzag | 0x80);
    *(*at)++ = (uint8_t)zigzag;
}

static inline size_t varint_bytes(int32_t value)
{
    uint32_t zigzag = ((uint32_t)value << 1) ^ (uint32_t)(value >> 31);
    size_t bytes = 1;
    for (; zigzag >= 0x80; zigzag >>= 7)
        bytes++;
    return bytes;
}

static inline int16_t get_i16(const uint8_t *at)
{
    uint16_t big;
    memcpy(&big, at, 2);
    return (int16_t)__builtin_bswap16(big);
}

static inline int32_t get_i32(const uint8_t *at)
{
    uint32_t big;
    memcpy(&big, at, 4);
    return (int32_t)__builtin_bswap32(big);
}

static inline int64_t get_i64(const uint8_t *at)
{
    uint64_t big;
    memcpy(&big, at, 8);
    return (int64_t)__builtin_bswap64(big);
}

struct reader {
    const uint8_t *at;
    const uint8_t *end;
    bool bad;
};

/* The next `bytes` bytes, or NULL with `bad` set where there are fewer (or the length is negative). */
static inline const uint8_t *read_bytes(struct reader *reader, int64_t bytes)
{
    if (reader->bad || bytes < 0 || bytes > reader->end - reader->at) {
        reader->bad = true;
        return NULL;
    }
    const uint8_t *at = reader->at;
    reader->at += bytes;
    return at;
}

static inline int16_t read_i16(struct reader *reader)
{
    const uint8_t *at = read_bytes(reader, 2);
    return at ? get_i16(at) : 0;
}

static inline int32_t read_i32(struct reader *reader)
{
    const uint8_t *at = read_bytes(reader, 4);
    return at ? get_i32(at) : 0;
}

static inline int64_t read_i64(struct reader *reader)
{
    const uint8_t *at = read_bytes(reader, 8);
    return at ? get_i64(at) : 0;
}

/* A string's bytes (NULL for Kafka's null string), its length in `length`. */
static inline const uint8_t *read_string(struct reader *reader, int16_t *length)
{
    *length = read_i16(reader);
    if (*length < 0) {
        *length = 0;
        return NULL;
    }
    return read_bytes(reader, *length);
}

#endif
