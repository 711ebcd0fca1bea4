/* Queues are read in groups of --queues-per-request neighbours. A group is either ready, in a line, or in
 * flight on one connection, never twice, because its next offsets are in the answer. The first of the line
 * takes the next free place of the next connection; its request is written from the queues' positions into
 * memory that belongs to that place (28 bytes a queue, less than the broker writes for it in the answer). No
 * fetch sessions: each request says all it wants, as librdkafka's do.
 *
 * Positions follow the batches: one that does not begin where the one before it ended is a gap, except that
 * the first may begin before the offset asked for. With --until-end a queue that reached its end leaves its
 * group. */
#include "fetch.h"

#include "clock.h"
#include "connection.h"
#include "control.h"
#include "event_loop.h"
#include "fail.h"
#include "fetch_response.h"
#include "measurement.h"

#include <assert.h>
#include <string.h>

enum {
    STALL_SECONDS_MAX = 60, /* with --until-end: not one batch for so long, and not at the end */
    OFFSET_OUT_OF_RANGE = 1,
    REQUEST_QUEUE_BYTES = 28,
};

#define REQUEST_MEMORY_MAX (2ULL << 30)
#define PACE_CREDIT_NS (SECOND_NS / 10) /* what a paced reader that fell behind catches up on at most */

/* client id, replica, wait, bytes min and max, isolation, session id and epoch, topics, forgotten, rack */
enum { REQUEST_FRAMING_BYTES = 2 + sizeof(CLIENT_ID) - 1 + 4 + 4 + 4 + 4 + 1 + 4 + 4 + 4 + 4 + 2 };

struct position {
    int64_t next;
    int64_t end; /* INT64_MAX without one */
};

struct place { /* one request in flight; those of a connection lie side by side */
    struct request request;
    struct iovec piece;
    uint8_t *bytes;
};

struct consumer {
    const struct options *options;
    struct event_loop loop;
    struct measurement measurement;
    struct connection *connections;
    struct fetch_response *responses; /* one for each connection */
    uint32_t connection_count, connection_next;
    struct place *places;
    size_t place_bytes;

    struct position *positions;
    bool *started, *finished; /* each queue: a batch has come; nothing more is wanted */
    uint32_t group_count;
    uint32_t *unfinished; /* queues of each group */
    uint32_t *line;       /* of ready groups, a ring of group_count */
    uint32_t line_first, line_count;
    uint32_t groups_left; /* those with unfinished queues */

    uint64_t answer_bytes; /* of batches, of the response being read */
    uint64_t ends_ns, next_ns /* paced: no request before */, heard_ns;
    bool over;
};

static uint32_t group_begin(const struct consumer *consumer, uint32_t group)
{
    return group * (uint32_t)consumer->options->queues_per_request;
}

static uint32_t group_end(const struct consumer *consumer, uint32_t group)
{
    uint64_t end = (uint64_t)(group + 1) * consumer->options->queues_per_request;
    return end < consumer->options->queues.count ? (uint32_t)end : consumer->options->queues.count;
}

static void join_line(struct consumer *consumer, uint32_t group)
{
    assert(consumer->line_count < consumer->group_count);
    uint32_t last = (consumer->line_first + consumer->line_count++) % consumer->group_count;
    consumer->line[last] = group;
}

static uint32_t leave_line(struct consumer *consumer)
{
    uint32_t group = consumer->line[consumer->line_first];
    consumer->line_first = (consumer->line_first + 1) % consumer->group_count;
    consumer->line_count--;
    return group;
}

static void finish_queue(struct consumer *consumer, uint32_t queue)
{
    if (consumer->finished[queue])
        return;
    consumer->finished[queue] = true;
    uint32_t group = queue / (uint32_t)consumer->options->queues_per_request;
    if (--consumer->unfinished[group] == 0)
        consumer->groups_left--;
}

/* The topics and partitions of a group that are still wanted; returns where they end. */
static uint8_t *put_group(const struct consumer *consumer, uint8_t *at, uint32_t group)
{
    const struct queues *queues = &consumer->options->queues;
    uint32_t end = group_end(consumer, group), topic_last = UINT32_MAX;
    int32_t topics = 0, partitions = 0;
    uint8_t *topics_at = at, *partitions_at = NULL;
    char name[TOPIC_NAME_BYTES_MAX + 1];
    put_i32(&at, 0);
    for (uint32_t queue = group_begin(consumer, group); queue < end; queue++) {
        if (consumer->finished[queue])
            continue;
        uint32_t topic = queue / queues->partitions;
        if (topic != topic_last) {
            if (partitions_at != NULL)
                put_i32(&partitions_at, partitions);
            size_t length = queues_topic_name(queues, topic, name);
            put_string(&at, name, length);
            partitions_at = at;
            put_i32(&at, 0);
            partitions = 0;
            topics++;
            topic_last = topic;
        }
        put_i32(&at, (int32_t)(queue % queues->partitions));
        put_i32(&at, -1); /* leader epoch: not checked */
        put_i64(&at, consumer->positions[queue].next);
        put_i64(&at, -1); /* log start: a follower's to tell */
        put_i32(&at, (int32_t)consumer->options->partition_max_bytes);
        partitions++;
    }
    if (partitions_at != NULL)
        put_i32(&partitions_at, partitions);
    put_i32(&topics_at, topics);
    return at;
}

static void build_request(const struct consumer *consumer, struct place *place, uint32_t group)
{
    const struct options *options = consumer->options;
    uint8_t *at = place->bytes;
    put_string(&at, CLIENT_ID, strlen(CLIENT_ID));
    put_i32(&at, -1); /* replica: a consumer */
    put_i32(&at, (int32_t)options->max_wait_ms);
    put_i32(&at, (int32_t)options->min_bytes);
    put_i32(&at, (int32_t)options->max_bytes);
    put_i8(&at, options->committed); /* isolation level */
    put_i32(&at, 0);  /* no session … */
    put_i32(&at, -1); /* … and none wanted */
    at = put_group(consumer, at, group);
    put_i32(&at, 0); /* nothing forgotten */
    put_i16(&at, 0); /* no rack */
    size_t bytes = (size_t)(at - place->bytes);
    assert(bytes <= consumer->place_bytes);
    place->piece = (struct iovec){.iov_base = place->bytes, .iov_len = bytes};
    place->request = (struct request){.pieces = &place->piece,
                                      .piece_count = 1,
                                      .bytes = (uint32_t)bytes,
                                      .api_key = API_FETCH,
                                      .api_version = FETCH_VERSION};
}

static void send_ready(struct consumer *consumer, uint64_t now_ns)
{
    struct connection *connection;
    while (consumer->line_count > 0 && consumer->next_ns <= now_ns &&
           (connection = connections_next_with_room(consumer->connections, consumer->connection_count,
                                                    &consumer->connection_next)) != NULL) {
        uint32_t group = leave_line(consumer);
        struct place *place = &consumer->places[(size_t)connection->number * connection->capacity +
                                                connection_position_next(connection)];
        build_request(consumer, place, group);
        connection_enqueue(connection, &place->request, group, now_ns);
        if (!connection->waits_to_write)
            event_loop_write(&consumer->loop, connection);
    }
}

static void take_batch(struct consumer *consumer, const struct fetch_response *response)
{
    uint32_t queue = response->queue;
    struct position *position = &consumer->positions[queue];
    bool within = !consumer->started[queue] && response->base_offset < position->next &&
                  response->last_offset >= position->next;
    if (response->base_offset != position->next && !within)
        consumer->measurement.gaps++;
    if (!response->crc_matches)
        consumer->measurement.checksum_errors++;
    consumer->started[queue] = true;
    position->next = response->last_offset + 1;
    measurement_batches(&consumer->measurement, 1, response->records, response->batch_bytes);
    consumer->answer_bytes += response->batch_bytes;
    if (position->next >= position->end)
        finish_queue(consumer, queue);
    if (consumer->options->bytes > 0 && consumer->measurement.counting &&
        consumer->measurement.totals.bytes >= consumer->options->bytes)
        consumer->over = true;
}

/* Whatever the error, the queue is asked for again, except where its data is gone. */
static void take_error(struct consumer *consumer, const struct fetch_response *response)
{
    measurement_error(&consumer->measurement, response->code);
    if (response->code == OFFSET_OUT_OF_RANGE && response->queue != QUEUE_NONE &&
        !consumer->finished[response->queue]) {
        consumer->measurement.abandoned++;
        finish_queue(consumer, response->queue);
    }
}

static void take_end(struct consumer *consumer, struct connection *connection, int32_t correlation,
                     uint64_t now_ns)
{
    const struct flight *flight = connection_answered(connection, correlation);
    measurement_request(&consumer->measurement, now_ns, flight->since_ns);
    if (consumer->unfinished[flight->work] > 0)
        join_line(consumer, flight->work);
    if (consumer->answer_bytes == 0)
        consumer->measurement.totals.empty++;
    else
        consumer->heard_ns = now_ns;
    if (consumer->options->rate_bytes > 0) {
        uint64_t oldest = now_ns - PACE_CREDIT_NS;
        uint64_t from = consumer->next_ns > oldest ? consumer->next_ns : oldest;
        double pause = (double)consumer->answer_bytes / consumer->options->rate_bytes;
        consumer->next_ns = from + (uint64_t)(pause * (double)SECOND_NS);
    }
    consumer->answer_bytes = 0;
    if (consumer->groups_left == 0)
        consumer->over = true;
}

static void take_received(struct consumer *consumer, struct connection *connection, uint64_t now_ns)
{
    struct fetch_response *response = &consumer->responses[connection->number];
    while (!consumer->over) {
        switch (fetch_response_next(response, connection)) {
        case FETCHED_NOTHING:
            fetch_response_wake(response, connection);
            return;
        case FETCHED_ERROR:
            take_error(consumer, response);
            break;
        case FETCHED_BATCH:
            take_batch(consumer, response);
            break;
        case FETCHED_END:
            take_end(consumer, connection, response->correlation, now_ns);
            break;
        }
    }
}

static void watch_time(struct consumer *consumer, uint64_t now_ns)
{
    measurement_advance(&consumer->measurement, now_ns);
    if (now_ns >= consumer->ends_ns)
        consumer->over = true;
    if (consumer->options->until_end && now_ns > consumer->heard_ns + STALL_SECONDS_MAX * SECOND_NS)
        fail("%s: not one batch came for %d s, and %u groups of queues are not at their end",
             consumer->options->address, STALL_SECONDS_MAX, consumer->groups_left);
}

static void loop_until_over(struct consumer *consumer)
{
    while (!consumer->over) {
        uint64_t now_ns = clock_ns();
        send_ready(consumer, now_ns);
        bool paced = consumer->line_count > 0 && consumer->next_ns > now_ns;
        int events = event_loop_wait(&consumer->loop, now_ns, paced ? consumer->next_ns : NEVER_NS);
        now_ns = clock_ns();
        watch_time(consumer, now_ns);
        for (int number = 0; number < events && !consumer->over; number++) {
            struct event event = event_loop_event(&consumer->loop, number);
            if (event.connection == NULL || !event.readable)
                continue;
            do {
                if (!fetch_response_receive(&consumer->responses[event.connection->number], event.connection))
                    break;
                take_received(consumer, event.connection, now_ns);
            } while (!consumer->over && connection_pending(event.connection));
        }
    }
}

static void prepare_positions(struct consumer *consumer)
{
    const struct options *options = consumer->options;
    uint32_t count = options->queues.count;
    enum { STRIDE = sizeof(struct position) / sizeof(int64_t) };
    consumer->positions = allocate(count, sizeof *consumer->positions);
    consumer->started = allocate(count, sizeof *consumer->started);
    consumer->finished = allocate(count, sizeof *consumer->finished);
    for (uint32_t queue = 0; queue < count; queue++)
        consumer->positions[queue] = (struct position){.next = options->from, .end = INT64_MAX};
    if (options->from < 0)
        control_list_offsets(options->address, &options->queues, options->from, &consumer->positions[0].next,
                             STRIDE);
    if (options->until_end)
        control_list_offsets(options->address, &options->queues, FROM_LATEST, &consumer->positions[0].end,
                             STRIDE);
}

static void prepare_groups(struct consumer *consumer)
{
    uint32_t per_group = (uint32_t)consumer->options->queues_per_request;
    consumer->group_count = (consumer->options->queues.count + per_group - 1) / per_group;
    consumer->unfinished = allocate(consumer->group_count, sizeof(uint32_t));
    consumer->line = allocate(consumer->group_count, sizeof(uint32_t));
    consumer->groups_left = consumer->group_count;
    for (uint32_t group = 0; group < consumer->group_count; group++) {
        uint32_t end = group_end(consumer, group);
        consumer->unfinished[group] = end - group_begin(consumer, group);
        for (uint32_t queue = group_begin(consumer, group); queue < end; queue++)
            if (consumer->positions[queue].next >= consumer->positions[queue].end)
                finish_queue(consumer, queue);
        if (consumer->unfinished[group] > 0)
            join_line(consumer, group);
    }
}

static void prepare_connections(struct consumer *consumer)
{
    const struct options *options = consumer->options;
    uint64_t topics = options->queues_per_request / options->queues.partitions + 2;
    consumer->place_bytes = REQUEST_FRAMING_BYTES + options->queues_per_request * REQUEST_QUEUE_BYTES +
                            topics * (2 + strlen(options->queues.prefix) + 12 + 4);
    uint64_t place_count = options->connections * options->in_flight;
    if (place_count * consumer->place_bytes > REQUEST_MEMORY_MAX)
        fail("%llu requests in flight of %zu bytes each are too many to hold",
             (unsigned long long)place_count, consumer->place_bytes);
    consumer->places = allocate(place_count, sizeof *consumer->places);
    uint8_t *memory = allocate(place_count, consumer->place_bytes);
    for (uint64_t place = 0; place < place_count; place++)
        consumer->places[place].bytes = memory + place * consumer->place_bytes;
    event_loop_open(&consumer->loop);
    consumer->connection_count = (uint32_t)options->connections;
    consumer->connections = allocate(options->connections, sizeof *consumer->connections);
    consumer->responses = allocate(options->connections, sizeof *consumer->responses);
    for (uint32_t number = 0; number < consumer->connection_count; number++) {
        consumer->responses[number] =
            (struct fetch_response){.queues = &options->queues, .check_crc = options->check_crc};
        connection_open(&consumer->connections[number], number, options_load_address(options),
                        options->tls_address != NULL, (uint32_t)options->in_flight, FETCH_RECEIVE_BYTES);
        event_loop_add(&consumer->loop, &consumer->connections[number]);
    }
}

void fetch_run(const struct options *options)
{
    static struct consumer consumer; /* histograms make it too large for the stack */
    consumer.options = options;
    if (!options->no_check)
        control_check_topics(options->address, &options->queues);
    measurement_open(&consumer.measurement, options->interval_seconds);
    prepare_positions(&consumer);
    prepare_groups(&consumer);
    prepare_connections(&consumer);
    uint64_t now_ns = clock_ns();
    double seconds = options->warmup_seconds + options->seconds;
    consumer.ends_ns = options->seconds > 0 ? now_ns + (uint64_t)(seconds * (double)SECOND_NS) : NEVER_NS;
    consumer.heard_ns = now_ns;
    consumer.over = consumer.groups_left == 0;
    measurement_begin(&consumer.measurement, now_ns, options->warmup_seconds);
    loop_until_over(&consumer);
    measurement_print(&consumer.measurement, "fetch", clock_ns());
    for (uint32_t number = 0; number < consumer.connection_count; number++)
        connection_close(&consumer.connections[number]);
}
