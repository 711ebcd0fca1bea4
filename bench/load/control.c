/* See control.h. Requests are cut so that no response is larger than tens of megabytes, whatever the number
 * of queues. */
#include "control.h"

#include "clock.h"
#include "connection.h"
#include "fail.h"
#include "options.h"
#include "wire.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum {
    PARTITIONS_PER_REQUEST = 100000,
    TOPICS_PER_REQUEST = 2000,
    ANSWER_SECONDS_MAX = 120, /* metadata of very many partitions takes a broker seconds */
    ANSWER_BYTES_MAX = 512 << 20,
    ELECTION_SECONDS_MAX = 60,
    ELECTION_RETRY_MS = 200,
};

/* Kafka's codes of a topic that was created a moment ago. */
enum { UNKNOWN_TOPIC_OR_PARTITION = 3, LEADER_NOT_AVAILABLE = 5, NOT_LEADER = 6 };

static bool passes(int16_t code)
{
    return code == UNKNOWN_TOPIC_OR_PARTITION || code == LEADER_NOT_AVAILABLE || code == NOT_LEADER;
}

struct control {
    const char *address;
    int socket;
    int32_t correlation;
    uint8_t *request, *response;
    size_t request_bytes, response_bytes;
};

static void control_open(struct control *control, const char *address)
{
    *control = (struct control){.address = address, .socket = connect_to(address)};
    struct timeval limit = {.tv_sec = ANSWER_SECONDS_MAX};
    setsockopt(control->socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    control->request_bytes =
        256 + (size_t)TOPICS_PER_REQUEST * (TOPIC_NAME_BYTES_MAX + 8) + PARTITIONS_PER_REQUEST * 12;
    control->request = allocate(control->request_bytes, 1);
}

static void control_close(struct control *control)
{
    close(control->socket);
    free(control->request);
    free(control->response);
}

static void transfer(struct control *control, uint8_t *at, size_t bytes, bool out)
{
    while (bytes > 0) {
        ssize_t moved =
            out ? send(control->socket, at, bytes, MSG_NOSIGNAL) : recv(control->socket, at, bytes, 0);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved == 0)
            fail("%s closed the connection on a request for metadata or offsets", control->address);
        if (moved < 0)
            fail("%s: no answer to a request for metadata or offsets: %s", control->address, strerror(errno));
        at += moved;
        bytes -= (size_t)moved;
    }
}

/* Starts a request in the request buffer; the body follows where the result points. */
static uint8_t *begin(struct control *control, int16_t api_key, int16_t version)
{
    uint8_t *at = control->request + 4;
    put_i16(&at, api_key);
    put_i16(&at, version);
    put_i32(&at, ++control->correlation);
    put_string(&at, CLIENT_ID, strlen(CLIENT_ID));
    return at;
}

/* Sends the request that ends at `end`; the response's body. */
static struct reader exchange(struct control *control, uint8_t *end)
{
    uint8_t *size = control->request;
    put_i32(&size, (int32_t)(end - control->request - 4));
    transfer(control, control->request, (size_t)(end - control->request), true);
    uint8_t head[RESPONSE_HEAD_BYTES];
    transfer(control, head, sizeof head, false);
    int32_t bytes = get_i32(head) - 4;
    if (bytes < 0 || bytes > ANSWER_BYTES_MAX || get_i32(head + 4) != control->correlation)
        fail("%s does not answer as a Kafka broker does", control->address);
    if ((size_t)bytes > control->response_bytes) {
        free(control->response);
        control->response = allocate((size_t)bytes, 1);
        control->response_bytes = (size_t)bytes;
    }
    transfer(control, control->response, (size_t)bytes, false);
    return (struct reader){.at = control->response, .end = control->response + bytes};
}

static void skip_array(struct reader *reader, int64_t item_bytes)
{
    int32_t count = read_i32(reader);
    if (count > 0)
        read_bytes(reader, count * item_bytes);
}

/* `routes` NULL: nobody wants to know them. */
static void read_brokers(struct reader *reader, struct routes *routes)
{
    int16_t length, rack;
    for (int32_t left = read_i32(reader); left > 0 && !reader->bad; left--) {
        int32_t id = read_i32(reader);
        const uint8_t *host = read_string(reader, &length);
        int32_t port = read_i32(reader);
        read_string(reader, &rack);
        if (routes != NULL && !reader->bad)
            routes_add_broker(routes, id, host, length, port);
    }
}

/* Reads one topic of a metadata response; an error code that is worth waiting for, or 0. */
static int16_t check_topic(struct reader *reader, const struct queues *queues, struct routes *routes)
{
    int16_t waiting = read_i16(reader), length;
    const uint8_t *name = read_string(reader, &length);
    int64_t topic = name ? queues_topic_number(queues, name, (size_t)length) : -1;
    read_bytes(reader, 1); /* internal */
    int32_t partitions = read_i32(reader);
    if (waiting != 0 && !passes(waiting))
        fail("metadata of topic %.*s: Kafka error %d", length, (const char *)name, waiting);
    if (waiting == 0 && !reader->bad && partitions != (int32_t)queues->partitions)
        fail("topic %.*s has %d partitions, not %u", length, (const char *)name, partitions,
             queues->partitions);
    for (; partitions > 0 && !reader->bad; partitions--) {
        int16_t code = read_i16(reader);
        int32_t index = read_i32(reader);
        int32_t leader = read_i32(reader);
        if (topic < 0 || index < 0 || index >= (int32_t)queues->partitions)
            fail("metadata came of a queue that was not asked for");
        uint32_t queue = (uint32_t)topic * queues->partitions + (uint32_t)index;
        bool led = leader >= 0 && (routes == NULL || routes_lead(routes, queue, leader));
        if (waiting == 0 && (code == LEADER_NOT_AVAILABLE || !led))
            waiting = LEADER_NOT_AVAILABLE;
        skip_array(reader, 4); /* replicas */
        skip_array(reader, 4); /* in sync */
    }
    return waiting;
}

static int16_t check_range(struct control *control, const struct queues *queues, struct routes *routes,
                           uint32_t first, uint32_t end)
{
    char name[TOPIC_NAME_BYTES_MAX + 1];
    uint8_t *at = begin(control, API_METADATA, METADATA_VERSION);
    put_i32(&at, (int32_t)(end - first));
    for (uint32_t topic = first; topic < end; topic++) {
        size_t length = queues_topic_name(queues, topic, name);
        put_string(&at, name, length);
    }
    put_i8(&at, 0); /* do not create them */
    struct reader reader = exchange(control, at);
    int16_t length, waiting = 0;
    read_i32(&reader); /* throttled for */
    read_brokers(&reader, routes);
    read_string(&reader, &length); /* cluster */
    read_i32(&reader);             /* controller */
    int32_t topics = read_i32(&reader);
    if (topics != (int32_t)(end - first))
        fail("metadata of %u topics was asked for, %d came", end - first, topics);
    for (; topics > 0 && !reader.bad; topics--) {
        int16_t code = check_topic(&reader, queues, routes);
        waiting = code != 0 ? code : waiting;
    }
    if (reader.bad)
        fail("%s: a metadata response ends early", control->address);
    return waiting;
}

static void wait_or_fail(const struct queues *queues, int16_t code, uint64_t until_ns)
{
    if (clock_ns() > until_ns)
        fail("not all of %s-0 to %s-%u %s (Kafka error %d)", queues->prefix, queues->prefix,
             queues->topics - 1, code == UNKNOWN_TOPIC_OR_PARTITION ? "exist" : "have leaders", code);
    usleep(ELECTION_RETRY_MS * 1000);
}

static void check_topics(const char *address, const struct queues *queues, struct routes *routes)
{
    struct control control;
    control_open(&control, address);
    uint32_t step = PARTITIONS_PER_REQUEST / queues->partitions;
    step = step < 1 ? 1 : step > TOPICS_PER_REQUEST ? TOPICS_PER_REQUEST : step;
    uint64_t until = clock_ns() + ELECTION_SECONDS_MAX * SECOND_NS;
    for (uint32_t first = 0; first < queues->topics;) {
        uint32_t end = queues->topics - first < step ? queues->topics : first + step;
        int16_t waiting = check_range(&control, queues, routes, first, end);
        if (waiting == 0)
            first = end;
        else
            wait_or_fail(queues, waiting, until);
    }
    control_close(&control);
}

void control_check_topics(const char *address, const struct queues *queues)
{
    check_topics(address, queues, NULL);
}

void control_find_leaders(const char *address, const struct queues *queues, struct routes *routes)
{
    routes_begin(routes, queues);
    check_topics(address, queues, routes);
    routes_end(routes, queues);
}

uint8_t *control_put_list_offsets(uint8_t *at, const struct queues *queues, uint32_t begin, uint32_t end,
                                  int64_t timestamp)
{
    char name[TOPIC_NAME_BYTES_MAX + 1];
    uint32_t partitions = queues->partitions;
    put_i32(&at, -1); /* replica: a consumer */
    put_i32(&at, (int32_t)((end - 1) / partitions - begin / partitions + 1));
    for (uint32_t queue = begin; queue < end;) {
        uint32_t topic = queue / partitions;
        uint32_t topic_end = (topic + 1) * partitions < end ? (topic + 1) * partitions : end;
        size_t length = queues_topic_name(queues, topic, name);
        put_string(&at, name, length);
        put_i32(&at, (int32_t)(topic_end - queue));
        for (; queue < topic_end; queue++) {
            put_i32(&at, (int32_t)(queue % partitions));
            put_i64(&at, timestamp);
        }
    }
    return at;
}

struct offsets {
    int64_t *first; /* NULL: nobody wants to know them */
    uint32_t stride;
    const struct routes *routes; /* NULL: the node that is asked leads them all … */
    uint32_t node;               /* … otherwise it counts for those of this one alone */
    uint32_t found;
    int16_t waiting; /* an error that passes, or 0 */
};

static void read_offsets(struct reader *reader, const struct queues *queues, struct offsets *offsets)
{
    int16_t length;
    for (int32_t topics = read_i32(reader); topics > 0 && !reader->bad; topics--) {
        const uint8_t *name = read_string(reader, &length);
        int64_t topic = name ? queues_topic_number(queues, name, (size_t)length) : -1;
        for (int32_t left = read_i32(reader); left > 0 && !reader->bad; left--) {
            int32_t partition = read_i32(reader);
            int16_t code = read_i16(reader);
            read_i64(reader); /* timestamp */
            int64_t offset = read_i64(reader);
            if (code != 0 && !passes(code))
                fail("offsets of %.*s-%d: Kafka error %d", length, (const char *)name, partition, code);
            if (reader->bad || topic < 0 || partition < 0 || partition >= (int32_t)queues->partitions)
                fail("offsets came of a queue that was not asked for");
            uint32_t queue = (uint32_t)topic * queues->partitions + (uint32_t)partition;
            if (offsets->first != NULL)
                offsets->first[(size_t)queue * offsets->stride] = offset;
            offsets->found++;
            if (code != 0 && (offsets->routes == NULL || routes_node_of(offsets->routes, queue) == offsets->node))
                offsets->waiting = code;
        }
    }
}

static int16_t list_range(struct control *control, const struct queues *queues, uint32_t first, uint32_t end,
                          int64_t timestamp, struct offsets *offsets)
{
    uint8_t *at = begin(control, API_LIST_OFFSETS, LIST_OFFSETS_VERSION);
    at = control_put_list_offsets(at, queues, first, end, timestamp);
    struct reader reader = exchange(control, at);
    offsets->found = 0;
    offsets->waiting = 0;
    read_offsets(&reader, queues, offsets);
    if (offsets->found != end - first || reader.bad)
        fail("%s: offsets of %u queues were asked for, %u came", control->address, end - first,
             offsets->found);
    return offsets->waiting;
}

static void list_offsets(const char *address, const struct queues *queues, int64_t timestamp,
                         struct offsets wanted)
{
    struct control control;
    control_open(&control, address);
    uint32_t topics_step = TOPICS_PER_REQUEST - 2; /* a step may begin and end within a topic */
    uint32_t step = queues->partitions < PARTITIONS_PER_REQUEST / topics_step
                        ? queues->partitions * topics_step
                        : PARTITIONS_PER_REQUEST;
    uint64_t until = clock_ns() + ELECTION_SECONDS_MAX * SECOND_NS;
    for (uint32_t first = 0; first < queues->count;) {
        uint32_t end = queues->count - first < step ? queues->count : first + step;
        int16_t waiting = list_range(&control, queues, first, end, timestamp, &wanted);
        if (waiting == 0)
            first = end;
        else
            wait_or_fail(queues, waiting, until);
    }
    control_close(&control);
}

void control_list_offsets(const char *address, const struct queues *queues, int64_t timestamp,
                          int64_t *offsets, uint32_t stride)
{
    list_offsets(address, queues, timestamp, (struct offsets){.first = offsets, .stride = stride});
}

void control_await_leaders(const struct routes *routes, const struct queues *queues)
{
    for (uint32_t node = 0; node < routes->node_count; node++)
        list_offsets(routes->nodes[node].address, queues, FROM_LATEST,
                     (struct offsets){.routes = routes, .node = node});
}
