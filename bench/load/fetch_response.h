/* Reads Fetch responses as they stream in, without ever holding one.
 *
 * A pull parser: feed the connection's receive buffer, ask what came next. It needs at most one header or one
 * topic name contiguous; payload is skipped, and large remainders are dropped in the kernel, unless checksums
 * are wanted. */
#ifndef LOAD_FETCH_RESPONSE_H
#define LOAD_FETCH_RESPONSE_H

#include "connection.h"
#include "queues.h"

#include <stdbool.h>
#include <stdint.h>

enum { FETCH_RECEIVE_BYTES = 256 << 10 /* stays in the processor's second cache */ };

enum fetched {
    FETCHED_NOTHING, /* until more is received */
    FETCHED_ERROR,   /* `code`, of `queue` or (QUEUE_NONE) of the whole response */
    FETCHED_BATCH,   /* of `queue`: the fields below */
    FETCHED_END,     /* of the response to `correlation` */
};

enum fetch_state {
    AT_FRAME,
    AT_TOPIC,
    AT_PARTITION,
    AT_ABORTED,
    AT_RECORDS,
    AT_BATCH,
    AT_BODY,
    AT_REST,
    AT_END
};

#define QUEUE_NONE UINT32_MAX

struct fetch_response {
    const struct queues *queues;
    bool check_crc;

    int32_t correlation;
    uint32_t queue;
    int16_t code;
    int64_t base_offset, last_offset;
    uint32_t records, batch_bytes;
    bool crc_matches;

    enum fetch_state state;
    uint32_t frame_left;
    int32_t topics_left, partitions_left;
    uint32_t topic;
    uint64_t aborted_left;
    uint32_t records_left; /* of the partition's records, from the batch at hand on */
    uint32_t body_left;    /* of the batch at hand */
    uint32_t crc, crc_wanted;
};

/* The next thing in what the connection has received. */
enum fetched fetch_response_next(struct fetch_response *response, struct connection *connection);

/* Has the kernel say when a good part of a large response has come, not each segment of it. */
void fetch_response_wake(const struct fetch_response *response, struct connection *connection);

/* Receives once, or drops payload unseen when that is all that is awaited. False when nothing has come. */
bool fetch_response_receive(struct fetch_response *response, struct connection *connection);

#endif
