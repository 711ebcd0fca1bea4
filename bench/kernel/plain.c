/* What the kernel does to a Produce request, written as plainly as C allows: the floor the compiled kernel is held
 * against. One loop, one group, no producers, no Python: read the body (version 7), check length, magic, CRC32C and
 * count, find the queue's slot, give the offset, copy the batch, write its directory row, write the answer; and, per
 * block, apply: move the committed end, link the row.
 *
 * It trusts its caller with memory and with topics of one shape: it is a yardstick, not a server. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "big_endian.h"
#include "crc32c.h"

struct slot { uint64_t queue_id; int64_t next, committed, start; uint64_t tail, skip; int64_t watched, entries; };
struct row {
    uint64_t queue_id; int64_t base, max_timestamp, producer_id; uint32_t position, length;
    int32_t delta, count, sequence; int16_t epoch, attributes; int32_t leader_epoch; uint32_t crc;
};
struct entry { uint64_t key; uint32_t first_slot, partitions; };

#define BLOCK_BYTES (4 << 20)
#define CACHE_BLOCKS 64
#define ROWS_MAX (BLOCK_BYTES / 64)

struct state {
    struct slot *slots;
    struct entry *table; uint64_t mask;
    uint8_t *payload[CACHE_BLOCKS]; struct row *rows[CACHE_BLOCKS]; uint64_t *links[CACHE_BLOCKS];
    uint64_t serial; uint32_t used; uint32_t count;
    uint8_t *answer;
};

static uint64_t hashed(uint64_t key) { return key * 0x9E3779B97F4A7C15u >> 20; }

/* Topics are named by eight bytes; topic t has `partitions` partitions, its slots follow those of topic t - 1. */
struct state *plain_new(const uint8_t *names, uint32_t topics, uint32_t partitions, uint64_t answer_bytes) {
    struct state *s = calloc(1, sizeof *s);
    ms_crc_prepare();
    s->slots = calloc((size_t)topics * partitions, sizeof *s->slots);
    for (s->mask = 15; s->mask < 2 * (uint64_t)topics; s->mask = 2 * s->mask + 1) {}
    s->table = calloc(s->mask + 1, sizeof *s->table);
    for (uint32_t t = 0; t < topics; t++) {
        uint64_t key; memcpy(&key, names + 8 * (size_t)t, 8);
        uint64_t at = hashed(key) & s->mask;
        while (s->table[at].key) at = (at + 1) & s->mask;
        s->table[at] = (struct entry){key, t * partitions, partitions};
        for (uint32_t p = 0; p < partitions; p++) s->slots[(size_t)t * partitions + p].queue_id = (uint64_t)t << 32 | p;
    }
    for (int i = 0; i < CACHE_BLOCKS; i++) {
        s->payload[i] = malloc(BLOCK_BYTES); s->rows[i] = malloc(ROWS_MAX * sizeof(struct row));
        s->links[i] = malloc(ROWS_MAX * 8);
        memset(s->payload[i], 1, BLOCK_BYTES); memset(s->rows[i], 1, ROWS_MAX * sizeof(struct row));
        memset(s->links[i], 1, ROWS_MAX * 8); /* not 0: that would be calloc, and no memory yet */
    }
    s->answer = malloc(answer_bytes);
    return s;
}

void plain_free(struct state *s) {
    for (int i = 0; i < CACHE_BLOCKS; i++) { free(s->payload[i]); free(s->rows[i]); free(s->links[i]); }
    free(s->slots); free(s->table); free(s->answer); free(s);
}

static void apply(struct state *s) {
    struct row *rows = s->rows[s->serial % CACHE_BLOCKS];
    uint64_t *links = s->links[s->serial % CACHE_BLOCKS];
    for (uint32_t i = 0; i < s->count; i++) {
        struct slot *slot = &s->slots[rows[i].leader_epoch ? 0 : (uint32_t)rows[i].producer_id];
        slot->committed = rows[i].base + rows[i].delta + 1;
        links[i] = slot->tail;
        slot->tail = s->serial << 24 | i;
        if (slot->entries++ % 64 == 0) slot->skip = slot->tail;
    }
    s->serial++; s->used = s->count = 0;
}

/* The number of batches appended; negative: not understood. */
int64_t plain_produce(struct state *s, const uint8_t *m, int64_t end) {
    int64_t p = 0, appended = 0;
    int16_t size = (int16_t)ms_read_u16(m); p = 2 + (size > 0 ? size : 0);
    p += 6;
    uint32_t topics = ms_read_u32(m + p); p += 4;
    uint8_t *out = s->answer;
    ms_write_u32(out, topics); out += 4;
    for (uint32_t t = 0; t < topics; t++) {
        if (p + 14 > end || ms_read_u16(m + p) != 8) return -1;
        uint64_t key; memcpy(&key, m + p + 2, 8); p += 10;
        uint64_t at = hashed(key) & s->mask;
        while (s->table[at].key != key) { if (!s->table[at].key) return -2; at = (at + 1) & s->mask; }
        struct entry *topic = &s->table[at];
        uint32_t partitions = ms_read_u32(m + p); p += 4;
        memcpy(out, m + p - 14, 14); out += 14;
        for (uint32_t i = 0; i < partitions; i++) {
            if (p + 8 + 61 > end) return -3;
            uint32_t partition = ms_read_u32(m + p), length = ms_read_u32(m + p + 4);
            const uint8_t *batch = m + p + 8;
            if (p + 8 + (int64_t)length > end) return -4;
            p += 8 + length;
            if (partition >= topic->partitions || batch[16] != 2 || ms_read_u32(batch + 8) + 12 != length) return -5;
            if (ms_crc32c(0, batch + 21, length - 21) != ms_read_u32(batch + 17)) return -6;
            if (ms_read_u32(batch + 57) != ms_read_u32(batch + 23) + 1) return -7;
            uint32_t number = topic->first_slot + partition;
            struct slot *slot = &s->slots[number];
            if (s->used + length > BLOCK_BYTES || s->count == ROWS_MAX) apply(s);
            uint8_t *place = s->payload[s->serial % CACHE_BLOCKS] + s->used;
            memcpy(place, batch, length);
            ms_write_u64(place, slot->next); ms_write_u32(place + 12, 1);
            s->rows[s->serial % CACHE_BLOCKS][s->count++] = (struct row){
                slot->queue_id, slot->next, (int64_t)ms_read_u64(batch + 35), number, s->used, length,
                (int32_t)ms_read_u32(batch + 23), (int32_t)ms_read_u32(batch + 57), (int32_t)ms_read_u32(batch + 53),
                (int16_t)ms_read_u16(batch + 51), (int16_t)ms_read_u16(batch + 21), 0, ms_read_u32(batch + 17)};
            s->used += length;
            ms_write_u32(out, partition); ms_write_u16(out + 4, 0); ms_write_u64(out + 6, slot->next);
            ms_write_u64(out + 14, (uint64_t)-1); ms_write_u64(out + 22, slot->start); out += 30;
            slot->next += (int32_t)ms_read_u32(batch + 23) + 1;
            appended++;
        }
    }
    return appended;
}
