/* See fetch_response.h. Each state consumes one thing of the format of Fetch v11 and says which follows.
 * Every length is bounded by what is left of the thing that contains it; a broker's nonsense ends the run. */
#include "fetch_response.h"

#include "batch.h"
#include "crc32c.h"
#include "wire.h"

enum {
    TOP_BYTES = RESPONSE_HEAD_BYTES + 4 + 2 + 4 + 4, /* throttle, error, session, number of topics */
    PARTITION_BYTES = 4 + 2 + 8 + 8 + 8 + 4,         /* to the number of aborted transactions */
    ABORTED_BYTES = 16,
    RECORDS_HEAD_BYTES = 4 + 4, /* preferred replica, length of the records */
    DISCARD_BYTES_MIN = 64 << 10, /* below, a copy costs less than a system call more */
    /* Within a large response: the broker's core wakes up the load's for every segment otherwise, sixteen times
     * for each MB, which cost a fifth of what it takes to send it. Half of what is received at once. */
    WAKE_BYTES = 128 << 10,
};

static size_t available(const struct connection *connection)
{
    return connection->in_end - connection->in_begin;
}

/* The next `bytes` bytes of the frame, NULL until they are all there. */
static const uint8_t *take(struct fetch_response *response, struct connection *connection, uint32_t bytes)
{
    if (bytes > response->frame_left)
        connection_broken(connection, "a Fetch response ends within a field");
    if (available(connection) < bytes)
        return NULL;
    const uint8_t *at = connection->in + connection->in_begin;
    connection->in_begin += bytes;
    response->frame_left -= bytes;
    return at;
}

/* Takes as much of `*left` bytes as has come. */
static const uint8_t *take_some(struct fetch_response *response, struct connection *connection, uint64_t left,
                                uint32_t *taken)
{
    size_t some = available(connection);
    *taken = (uint32_t)(some < left ? some : left);
    return take(response, connection, *taken);
}

static bool begin_frame(struct fetch_response *response, struct connection *connection)
{
    if (available(connection) < TOP_BYTES)
        return false;
    int32_t bytes = get_i32(connection->in + connection->in_begin);
    if (bytes < TOP_BYTES - 4)
        connection_broken(connection, "a Fetch response has an impossible size");
    response->frame_left = (uint32_t)bytes + 4;
    const uint8_t *at = take(response, connection, TOP_BYTES);
    response->correlation = get_i32(at + 4);
    response->code = get_i16(at + 12);
    response->queue = QUEUE_NONE;
    response->topics_left = get_i32(at + 18);
    response->state = response->topics_left > 0 ? AT_TOPIC : AT_END;
    return true;
}

static bool begin_topic(struct fetch_response *response, struct connection *connection)
{
    if (available(connection) < 2)
        return false;
    int16_t length = get_i16(connection->in + connection->in_begin);
    if (length < 0)
        connection_broken(connection, "a Fetch response names no topic");
    const uint8_t *at = take(response, connection, 2 + (uint32_t)length + 4);
    if (at == NULL)
        return false;
    int64_t topic = queues_topic_number(response->queues, at + 2, (size_t)length);
    if (topic < 0)
        connection_broken(connection, "a Fetch response has a topic that was not asked for");
    response->topic = (uint32_t)topic;
    response->partitions_left = get_i32(at + 2 + length);
    response->topics_left--;
    response->state = AT_PARTITION;
    return true;
}

static bool begin_partition(struct fetch_response *response, struct connection *connection)
{
    if (response->partitions_left <= 0) {
        response->state = response->topics_left > 0 ? AT_TOPIC : AT_END;
        return true;
    }
    const uint8_t *at = take(response, connection, PARTITION_BYTES);
    if (at == NULL)
        return false;
    int32_t partition = get_i32(at), aborted = get_i32(at + 30);
    if (partition < 0 || (uint32_t)partition >= response->queues->partitions)
        connection_broken(connection, "a Fetch response has a partition that was not asked for");
    response->queue = response->topic * response->queues->partitions + (uint32_t)partition;
    response->code = get_i16(at + 4);
    response->aborted_left = aborted > 0 ? (uint64_t)aborted * ABORTED_BYTES : 0;
    response->partitions_left--;
    response->state = AT_ABORTED;
    return true;
}

static bool skip_aborted(struct fetch_response *response, struct connection *connection)
{
    uint32_t taken;
    take_some(response, connection, response->aborted_left, &taken);
    response->aborted_left -= taken;
    if (response->aborted_left > 0)
        return false;
    response->state = AT_RECORDS;
    return true;
}

static bool begin_records(struct fetch_response *response, struct connection *connection)
{
    const uint8_t *at = take(response, connection, RECORDS_HEAD_BYTES);
    if (at == NULL)
        return false;
    int32_t bytes = get_i32(at + 4);
    response->records_left = bytes > 0 ? (uint32_t)bytes : 0;
    if (response->records_left > response->frame_left)
        connection_broken(connection, "records of a Fetch response do not fit it");
    response->state = AT_BATCH;
    return true;
}

/* Brokers cut records at a number of bytes: the last batch may be a part, which is skipped and asked for
 * again. */
static bool begin_batch(struct fetch_response *response, struct connection *connection)
{
    if (response->records_left < BATCH_HEADER_BYTES) {
        response->state = AT_REST;
        return true;
    }
    if (available(connection) < BATCH_HEADER_BYTES)
        return false;
    const uint8_t *at = connection->in + connection->in_begin;
    int32_t length = get_i32(at + BATCH_LENGTH_AT);
    if (length < BATCH_HEADER_BYTES - BATCH_LENGTH_END || at[BATCH_MAGIC_AT] != 2)
        connection_broken(connection, "what was fetched is no record batch of format 2");
    if ((uint32_t)length > response->records_left - BATCH_LENGTH_END) {
        response->state = AT_REST;
        return true;
    }
    take(response, connection, BATCH_HEADER_BYTES);
    response->batch_bytes = (uint32_t)length + BATCH_LENGTH_END;
    response->records_left -= response->batch_bytes;
    response->body_left = response->batch_bytes - BATCH_HEADER_BYTES;
    response->base_offset = get_i64(at);
    response->last_offset = response->base_offset + get_i32(at + BATCH_LAST_DELTA_AT);
    response->records = (uint32_t)get_i32(at + BATCH_RECORD_COUNT_AT);
    response->crc_wanted = (uint32_t)get_i32(at + BATCH_CRC_AT);
    if (response->check_crc)
        response->crc = crc32c(0, at + BATCH_CHECKED_AT, BATCH_HEADER_BYTES - BATCH_CHECKED_AT);
    response->state = AT_BODY;
    return true;
}

/* True when the batch is complete. */
static bool take_body(struct fetch_response *response, struct connection *connection)
{
    uint32_t taken;
    const uint8_t *at = take_some(response, connection, response->body_left, &taken);
    if (response->check_crc)
        response->crc = crc32c(response->crc, at, taken);
    response->body_left -= taken;
    if (response->body_left > 0)
        return false;
    response->crc_matches = !response->check_crc || response->crc == response->crc_wanted;
    response->state = AT_BATCH;
    return true;
}

static bool skip_rest(struct fetch_response *response, struct connection *connection)
{
    uint32_t taken;
    take_some(response, connection, response->records_left, &taken);
    response->records_left -= taken;
    if (response->records_left > 0)
        return false;
    response->state = AT_PARTITION;
    return true;
}

enum fetched fetch_response_next(struct fetch_response *response, struct connection *connection)
{
    for (;;) {
        bool went_on = false;
        switch (response->state) {
        case AT_FRAME:
            went_on = begin_frame(response, connection);
            if (went_on && response->code != 0)
                return FETCHED_ERROR;
            break;
        case AT_TOPIC:
            went_on = begin_topic(response, connection);
            break;
        case AT_PARTITION:
            went_on = begin_partition(response, connection);
            if (went_on && response->state == AT_ABORTED && response->code != 0)
                return FETCHED_ERROR;
            break;
        case AT_ABORTED:
            went_on = skip_aborted(response, connection);
            break;
        case AT_RECORDS:
            went_on = begin_records(response, connection);
            break;
        case AT_BATCH:
            went_on = begin_batch(response, connection);
            break;
        case AT_BODY:
            if (take_body(response, connection))
                return FETCHED_BATCH;
            break;
        case AT_REST:
            went_on = skip_rest(response, connection);
            break;
        case AT_END:
            if (response->frame_left != 0)
                connection_broken(connection, "a Fetch response goes on after its end");
            response->state = AT_FRAME;
            return FETCHED_END;
        }
        if (!went_on)
            return FETCHED_NOTHING;
    }
}

void fetch_response_wake(const struct fetch_response *response, struct connection *connection)
{
    size_t here = available(connection);
    bool large = response->state != AT_FRAME && response->frame_left > here &&
                 response->frame_left - here >= 2 * WAKE_BYTES;
    connection_wake_at(connection, large ? WAKE_BYTES : 1);
}

bool fetch_response_receive(struct fetch_response *response, struct connection *connection)
{
    bool unseen = (response->state == AT_BODY && !response->check_crc) || response->state == AT_REST;
    uint32_t *left = response->state == AT_BODY ? &response->body_left : &response->records_left;
    if (!unseen || *left < DISCARD_BYTES_MIN || available(connection) > 0)
        return connection_receive(connection);
    uint32_t dropped = (uint32_t)connection_discard(connection, *left);
    *left -= dropped;
    response->frame_left -= dropped;
    return dropped > 0;
}
