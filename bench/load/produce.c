/* One loop, two ways of feeding it.
 *
 * Closed: each connection is kept full; an answer makes room for the next request. This is the most a broker
 * can take.
 *
 * Open: request n is due at a time fixed before anything is sent, whatever the broker does. A due request
 * goes to the next connection with room; while none has room it stays due, and its latency counts from when
 * it was due. A broker that stalls for a second is thus charged for every request of that second, not for one
 * per connection. At the end all requests that were due are still sent and awaited; what could not be sent
 * within OVERRUN_SECONDS_MAX counts as unsent, with the latency it had reached by then.
 *
 * acks=0 has no answers: a request counts when the socket has taken it, and at the end a request that is
 * answered follows on every connection, so that the run is over when the broker has read everything. */
#include "produce.h"

#include "clock.h"
#include "connection.h"
#include "control.h"
#include "event_loop.h"
#include "fail.h"
#include "measurement.h"
#include "random.h"
#include "request_set.h"

#include <math.h>
#include <string.h>

enum {
    STALL_SECONDS_MAX = 60,   /* no answer at all for so long: the broker hangs */
    OVERRUN_SECONDS_MAX = 30, /* after the schedule's end, for what is still due */
    RECEIVE_BYTES_MIN = 64 << 10,
    WORK_FENCE = -1, /* of the request that follows the last one of acks=0 */
};

struct producer {
    const struct options *options;
    struct routes routes;
    struct request_set set;
    struct event_loop loop;
    struct measurement measurement;
    struct connection *connections;
    uint32_t connection_count;
    struct connection **to_write; /* those with something to send; each at most once */
    uint32_t to_write_count;

    uint32_t request_next[NODES_MAX]; /* in the walk over the node's requests */
    uint64_t ends_ns;      /* nothing is sent or due after this; NEVER_NS without a limit */
    uint64_t bytes_sent;   /* of batches, since the warm-up */
    bool sending;          /* not yet at the end */

    uint64_t due_ns; /* open loop: when the next request is due, and what that is beyond whole nanoseconds */
    double due_fraction_ns;
    struct random arrivals;
    uint32_t connection_next;

    uint64_t in_flight;
    uint64_t heard_ns; /* when an answer last came, or the socket last took a request that has none */
    struct request fence;
    uint8_t fence_bytes[64 + TOPIC_NAME_BYTES_MAX];
    struct iovec fence_piece;
};

static void put_in_flight(struct producer *producer, struct connection *connection,
                          const struct request *request, uint32_t work, uint64_t since_ns)
{
    connection_enqueue(connection, request, work, since_ns);
    producer->in_flight++;
    if (!connection->queued_to_write) {
        connection->queued_to_write = true;
        producer->to_write[producer->to_write_count++] = connection;
    }
}

/* Connections are dealt out to the nodes in turn. */
static uint32_t node_of(const struct producer *producer, const struct connection *connection)
{
    return connection->number % producer->routes.node_count;
}

static void send_next(struct producer *producer, struct connection *connection, uint64_t since_ns)
{
    uint32_t node = node_of(producer, connection);
    const struct stretch *own = &producer->set.stretches[node];
    uint32_t number = own->first + producer->request_next[node];
    producer->request_next[node] = (producer->request_next[node] + 1) % own->count;
    put_in_flight(producer, connection, &producer->set.requests[number], number, since_ns);
    if (producer->measurement.counting)
        producer->bytes_sent += producer->set.request_batch_bytes;
    if (producer->options->bytes > 0 && producer->bytes_sent >= producer->options->bytes)
        producer->sending = false;
}

/* Closed loop: as many requests as the connection has room for. */
static void fill(struct producer *producer, struct connection *connection, uint64_t now_ns)
{
    while (producer->sending && connection_has_room(connection))
        send_next(producer, connection, now_ns);
}

static void schedule_next(struct producer *producer)
{
    double step = (double)SECOND_NS / producer->options->rate;
    if (producer->options->poisson)
        step *= -log(random_unit(&producer->arrivals));
    producer->due_fraction_ns += step - floor(step);
    producer->due_ns += (uint64_t)floor(step) + (uint64_t)floor(producer->due_fraction_ns);
    producer->due_fraction_ns -= floor(producer->due_fraction_ns);
    if (producer->due_ns > producer->ends_ns)
        producer->sending = false;
}

static struct connection *room(struct producer *producer)
{
    return connections_next_with_room(producer->connections, producer->connection_count,
                                      &producer->connection_next);
}

/* Open loop: everything that is due and has room. */
static void send_due(struct producer *producer, uint64_t now_ns)
{
    struct connection *connection;
    while (producer->sending && producer->due_ns <= now_ns && (connection = room(producer)) != NULL) {
        histogram_add(&producer->measurement.send_delay, now_ns - producer->due_ns);
        send_next(producer, connection, producer->due_ns);
        schedule_next(producer);
    }
}

/* Everything still due is given up: counted with the latency it has by now, so that the worst is not left
 * out. */
static void give_up_due(struct producer *producer, uint64_t now_ns)
{
    for (; producer->sending; schedule_next(producer)) {
        producer->measurement.unsent++;
        histogram_add(&producer->measurement.latency, now_ns - producer->due_ns);
    }
}

static void count_request(struct producer *producer, const struct flight *flight, uint64_t now_ns,
                          uint64_t batches)
{
    const struct request_set *set = &producer->set;
    measurement_request(&producer->measurement, now_ns, flight->since_ns);
    measurement_batches(&producer->measurement, batches, batches * set->records_per_batch,
                        batches * set->batch_bytes);
    producer->in_flight--;
    producer->heard_ns = now_ns;
}

static void count_unanswered(struct producer *producer, struct connection *connection, uint64_t now_ns)
{
    while (connection->written > 0 && connection->flights[connection->first].work != (uint32_t)WORK_FENCE)
        count_request(producer, connection_forget(connection), now_ns, producer->set.batches_per_request);
}

static void write_waiting(struct producer *producer, uint64_t now_ns)
{
    for (uint32_t at = 0; at < producer->to_write_count; at++) {
        struct connection *connection = producer->to_write[at];
        connection->queued_to_write = false;
        if (!connection->waits_to_write)
            event_loop_write(&producer->loop, connection);
        if (producer->options->acks == 0)
            count_unanswered(producer, connection, now_ns);
    }
    producer->to_write_count = 0;
}

/* Reads a Produce response; the number of batches that were accepted. */
static uint64_t read_produced(struct producer *producer, const struct connection *connection,
                              struct reader *reader)
{
    uint32_t accepted = 0, answered = 0;
    int16_t length;
    for (int32_t topics = read_i32(reader); topics > 0 && !reader->bad; topics--) {
        read_string(reader, &length);
        int32_t partitions = read_i32(reader);
        for (; partitions > 0 && !reader->bad; partitions--) {
            read_i32(reader); /* partition */
            int16_t code = read_i16(reader);
            int64_t base_offset = read_i64(reader);
            read_bytes(reader, 16); /* log append time, log start offset */
            answered++;
            if (code != 0)
                measurement_error(&producer->measurement, code);
            else if (base_offset < 0)
                connection_broken(connection, "a batch was accepted without an offset");
            else
                accepted++;
        }
    }
    read_i32(reader); /* throttled for */
    if (reader->bad || reader->at != reader->end)
        connection_broken(connection, "a Produce response is malformed");
    if (answered != producer->set.batches_per_request)
        connection_broken(connection, "a Produce response answers more or fewer partitions than were sent");
    return accepted;
}

static void take_answer(struct producer *producer, struct connection *connection, const uint8_t *at,
                        int32_t bytes, uint64_t now_ns)
{
    const struct flight *flight = connection_answered(connection, get_i32(at + 4));
    if (flight->work == (uint32_t)WORK_FENCE) {
        producer->in_flight--;
        return;
    }
    struct reader reader = {.at = at + RESPONSE_HEAD_BYTES, .end = at + 4 + bytes};
    if (connection->notes_times)
        measurement_served(&producer->measurement, flight->given_ns, connection->came_ns);
    count_request(producer, flight, now_ns, read_produced(producer, connection, &reader));
}

static void take_answers(struct producer *producer, struct connection *connection, uint64_t now_ns)
{
    while (connection->in_end - connection->in_begin >= RESPONSE_HEAD_BYTES) {
        const uint8_t *at = connection->in + connection->in_begin;
        int32_t bytes = get_i32(at); /* of what follows the size itself */
        if (bytes < 4 || (size_t)bytes + 4 > connection->in_capacity)
            connection_broken(connection, "an answer has an impossible size");
        if (connection->in_end - connection->in_begin < (size_t)bytes + 4)
            return;
        take_answer(producer, connection, at, bytes, now_ns);
        connection->in_begin += (size_t)bytes + 4;
    }
}

static void handle(struct producer *producer, struct event event, uint64_t now_ns)
{
    struct connection *connection = event.connection;
    if (connection == NULL)
        return;
    while (event.readable && connection_receive(connection)) {
        take_answers(producer, connection, now_ns);
        if (!connection_pending(connection))
            break;
    }
    if (producer->options->acks == 0)
        count_unanswered(producer, connection, now_ns);
    if (producer->options->rate == 0)
        fill(producer, connection, now_ns);
}

static void watch_time(struct producer *producer, uint64_t now_ns)
{
    measurement_advance(&producer->measurement, now_ns);
    bool scheduled = producer->options->rate > 0;
    if (now_ns >= producer->ends_ns && !scheduled)
        producer->sending = false;
    if (scheduled && producer->sending && now_ns >= producer->ends_ns + OVERRUN_SECONDS_MAX * SECOND_NS)
        give_up_due(producer, now_ns);
    if (producer->in_flight == 0)
        producer->heard_ns = now_ns;
    if (now_ns > producer->heard_ns + STALL_SECONDS_MAX * SECOND_NS)
        fail("%s: nothing came for %d s, with %llu requests in flight", producer->options->address,
             STALL_SECONDS_MAX, (unsigned long long)producer->in_flight);
}

/* When the loop must go on although no socket is ready. */
static uint64_t due_ns(const struct producer *producer, uint64_t now_ns)
{
    if (!producer->sending)
        return NEVER_NS;
    if (producer->options->rate >
        0) /* what is due already has no room: it waits for an answer, not for the clock */
        return producer->due_ns > now_ns ? producer->due_ns : NEVER_NS;
    for (uint32_t number = 0; producer->options->acks == 0 && number < producer->connection_count; number++)
        if (!producer->connections[number].waits_to_write)
            return now_ns;
    return NEVER_NS;
}

static void loop_until_quiet(struct producer *producer)
{
    bool scheduled = producer->options->rate > 0;
    bool unanswered = !scheduled && producer->options->acks == 0;
    while (producer->sending || producer->in_flight > 0) {
        uint64_t now_ns = clock_ns();
        watch_time(producer, now_ns);
        if (scheduled)
            send_due(producer, now_ns);
        for (uint32_t number = 0; unanswered && number < producer->connection_count; number++)
            fill(producer, &producer->connections[number], now_ns);
        write_waiting(producer, now_ns);
        int events = event_loop_wait(&producer->loop, now_ns, due_ns(producer, now_ns));
        now_ns = clock_ns();
        measurement_advance(&producer->measurement, now_ns);
        for (int event = 0; event < events; event++)
            handle(producer, event_loop_event(&producer->loop, event), now_ns);
    }
}

/* acks=0: the run is over when each connection has answered a question that was asked last. */
static void fence(struct producer *producer)
{
    uint8_t *at = producer->fence_bytes;
    put_string(&at, CLIENT_ID, strlen(CLIENT_ID));
    at = control_put_list_offsets(at, &producer->options->queues, 0, 1, FROM_LATEST);
    producer->fence_piece = (struct iovec){producer->fence_bytes, (size_t)(at - producer->fence_bytes)};
    producer->fence = (struct request){.pieces = &producer->fence_piece,
                                       .piece_count = 1,
                                       .bytes = (uint32_t)producer->fence_piece.iov_len,
                                       .api_key = API_LIST_OFFSETS,
                                       .api_version = LIST_OFFSETS_VERSION};
    for (uint32_t number = 0; number < producer->connection_count; number++)
        put_in_flight(producer, &producer->connections[number], &producer->fence, (uint32_t)WORK_FENCE,
                      clock_ns());
    loop_until_quiet(producer);
}

static void open_connections(struct producer *producer)
{
    const struct options *options = producer->options;
    size_t receive_bytes = 2 * (size_t)producer->set.response_bytes_max;
    if (receive_bytes < RECEIVE_BYTES_MIN)
        receive_bytes = RECEIVE_BYTES_MIN;
    event_loop_open(&producer->loop);
    producer->connection_count = (uint32_t)options->connections;
    producer->connections = allocate(options->connections, sizeof *producer->connections);
    producer->to_write = allocate(options->connections, sizeof(struct connection *));
    for (uint32_t number = 0; number < producer->connection_count; number++) {
        struct connection *connection = &producer->connections[number];
        const char *address = producer->routes.nodes[number % producer->routes.node_count].address;
        connection_open(connection, number, options->tls_address != NULL ? options->tls_address : address,
                        options->tls_address != NULL, (uint32_t)options->in_flight, receive_bytes);
        if (options->kernel_times)
            connection_note_times(connection);
        event_loop_add(&producer->loop, connection);
    }
}

static void begin(struct producer *producer)
{
    const struct options *options = producer->options;
    uint64_t now_ns = clock_ns();
    double seconds = options->warmup_seconds + options->seconds;
    producer->ends_ns = options->seconds > 0 ? now_ns + (uint64_t)(seconds * (double)SECOND_NS) : NEVER_NS;
    producer->heard_ns = producer->due_ns = now_ns;
    producer->sending = true;
    measurement_begin(&producer->measurement, now_ns, options->warmup_seconds);
    for (uint32_t number = 0; options->rate == 0 && number < producer->connection_count; number++)
        fill(producer, &producer->connections[number], now_ns);
}

static void find_routes(struct routes *routes, const struct options *options)
{
    if (options->leaders) {
        control_find_leaders(options->address, &options->queues, routes);
        if (options->connections < routes->node_count)
            fail("--connections %llu: %u nodes lead the queues, and each needs one",
                 (unsigned long long)options->connections, routes->node_count);
    } else {
        routes_to_one(routes, options->address);
        if (!options->no_check)
            control_check_topics(options->address, &options->queues);
    }
    if (!options->no_check)
        control_await_leaders(routes, &options->queues);
}

void produce_run(const struct options *options)
{
    static struct producer producer; /* histograms make it too large for the stack */
    producer.options = options;
    producer.arrivals.state = options->seed + 1;
    find_routes(&producer.routes, options);
    request_set_build(&producer.set, options, &producer.routes);
    measurement_open(&producer.measurement, options->interval_seconds);
    open_connections(&producer);
    begin(&producer);
    loop_until_quiet(&producer);
    if (options->acks == 0)
        fence(&producer);
    measurement_print(&producer.measurement, "produce", clock_ns());
    for (uint32_t number = 0; number < producer.connection_count; number++)
        connection_close(&producer.connections[number]);
}
