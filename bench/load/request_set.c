/* See request_set.h. One pass over all requests; where a batch goes is the only difference between the two
 * forms. */
#include "request_set.h"

#include "batch.h"
#include "fail.h"
#include "random.h"
#include "wire.h"

#include <assert.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
    REQUEST_BYTES_MAX = 100 << 20, /* socket.request.max.bytes of Kafka and Mainstem alike */
    PRODUCE_TIMEOUT_MS = 30000,    /* Kafka clients' own */
    SHARED_BATCHES_MAX = 4096, /* distinct enough for any compression or deduplication to find nothing … */
    SHARED_BYTES_MAX = 8 << 20, /* … and few enough to stay in the processor's cache */
    PARTITION_FRAMING_BYTES = 8, /* partition, length of its batch */
};

/* client id, transactional id, acks, timeout, number of topics */
enum { REQUEST_FRAMING_BYTES = 2 + sizeof(CLIENT_ID) - 1 + 2 + 2 + 4 + 4 };

enum { RESPONSE_FRAMING_BYTES = RESPONSE_HEAD_BYTES + 4 + 4, RESPONSE_PARTITION_BYTES = 30 };

struct builder {
    const struct options *options;
    struct request_set *set;
    struct random random;
    int64_t timestamp_ms;
    uint32_t *walk; /* the queues in the order they are visited, those of a node together */
    struct stretch walks[NODES_MAX]; /* each node's in it */
    uint32_t *chosen; /* those of the request at hand, ascending */
    uint8_t *at, *end; /* the memory that framing, and in the whole form batches, are written to */
    uint8_t *piece_begin;
    struct iovec *pieces, *pieces_end;
    uint8_t *batches; /* the shared ones */
    uint32_t shared_batches, shared_next;
};

static int ascending(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static uint32_t *make_walk(const struct options *options)
{
    uint32_t count = options->queues.count;
    uint32_t *walk = allocate(count, sizeof *walk);
    for (uint32_t queue = 0; queue < count; queue++)
        walk[queue] = queue;
    struct random random = {.state = options->seed ^ 0x5EED0F0DE5ULL};
    for (uint32_t left = options->shuffle ? count : 0; left > 1; left--) {
        uint32_t other = (uint32_t)(random_next(&random) % left), swap = walk[left - 1];
        walk[left - 1] = walk[other];
        walk[other] = swap;
    }
    return walk;
}

/* Gathers each node's queues, in the order of the walk, and plans its requests. */
static void divide(struct builder *builder, const struct routes *routes)
{
    uint32_t count = builder->options->queues.count, batches = builder->set->batches_per_request;
    uint32_t *divided = allocate(count, sizeof *divided), placed = 0, requests = 0;
    for (uint32_t node = 0; node < routes->node_count; node++) {
        uint32_t first = placed;
        for (uint32_t at = 0; at < count; at++)
            if (routes_node_of(routes, builder->walk[at]) == node)
                divided[placed++] = builder->walk[at];
        uint32_t own = placed - first;
        if (own < batches)
            fail("%s leads %u queues, too few for requests of %u", routes->nodes[node].address, own, batches);
        builder->walks[node] = (struct stretch){first, own};
        builder->set->stretches[node] = (struct stretch){requests, (own + batches - 1) / batches};
        requests += builder->set->stretches[node].count;
    }
    free(builder->walk);
    builder->walk = divided;
    builder->set->count = requests;
}

static uint32_t node_of(const struct request_set *set, uint32_t number)
{
    uint32_t node = 0;
    while (number >= set->stretches[node].first + set->stretches[node].count)
        node++;
    return node;
}

/* The queues of request `number`, ascending, so that each topic stands in it once. */
static void choose(struct builder *builder, uint32_t number)
{
    uint32_t batches = builder->set->batches_per_request, node = node_of(builder->set, number);
    const uint32_t *walk = builder->walk + builder->walks[node].first;
    uint64_t first = (uint64_t)(number - builder->set->stretches[node].first) * batches;
    for (uint32_t at = 0; at < batches; at++)
        builder->chosen[at] = walk[(first + at) % builder->walks[node].count];
    qsort(builder->chosen, batches, sizeof *builder->chosen, ascending);
}

struct sizes {
    uint64_t framing; /* of all requests */
    uint32_t request_max;
};

static struct sizes measure(struct builder *builder)
{
    struct request_set *set = builder->set;
    const struct queues *queues = &builder->options->queues;
    struct sizes sizes = {0};
    char name[TOPIC_NAME_BYTES_MAX + 1];
    for (uint32_t number = 0; number < set->count; number++) {
        choose(builder, number);
        uint64_t framing =
            REQUEST_FRAMING_BYTES + (uint64_t)set->batches_per_request * PARTITION_FRAMING_BYTES;
        uint64_t response =
            RESPONSE_FRAMING_BYTES + (uint64_t)set->batches_per_request * RESPONSE_PARTITION_BYTES;
        int64_t last = -1;
        for (uint32_t at = 0; at < set->batches_per_request; at++) {
            int64_t topic = builder->chosen[at] / queues->partitions;
            if (topic != last) {
                uint64_t bytes = 2 + queues_topic_name(queues, (uint32_t)topic, name) + 4;
                framing += bytes;
                response += bytes;
            }
            last = topic;
        }
        uint64_t request = framing + set->request_batch_bytes;
        if (request > REQUEST_BYTES_MAX)
            fail("a request of %u batches of %u bytes has %llu bytes; brokers take %d",
                 set->batches_per_request, set->batch_bytes, (unsigned long long)request, REQUEST_BYTES_MAX);
        sizes.framing += framing;
        sizes.request_max = request > sizes.request_max ? (uint32_t)request : sizes.request_max;
        set->response_bytes_max =
            response > set->response_bytes_max ? (uint32_t)response : set->response_bytes_max;
    }
    return sizes;
}

/* Large memory on large pages where the kernel gives them: senders walk all of it. */
static uint8_t *reserve(uint64_t bytes)
{
    uint64_t page = 2 << 20, rounded = (bytes + page - 1) / page * page;
    uint8_t *memory = aligned_alloc(page, rounded);
    if (memory == NULL)
        fail("no memory for %llu bytes of requests", (unsigned long long)rounded);
    madvise(memory, rounded, MADV_HUGEPAGE);
    return memory;
}

static void end_piece(struct builder *builder)
{
    assert(builder->pieces < builder->pieces_end);
    *builder->pieces++ = (struct iovec){.iov_base = builder->piece_begin,
                                        .iov_len = (size_t)(builder->at - builder->piece_begin)};
    builder->piece_begin = builder->at;
}

static void put_batch(struct builder *builder)
{
    const struct options *options = builder->options;
    uint32_t bytes = builder->set->batch_bytes;
    if (!builder->set->shared) {
        batch_build(builder->at, (uint32_t)options->batch_records, (uint32_t)options->record_bytes,
                    builder->timestamp_ms, &builder->random);
        builder->at += bytes;
        return;
    }
    end_piece(builder);
    assert(builder->pieces < builder->pieces_end);
    uint8_t *batch = builder->batches + (size_t)builder->shared_next * bytes;
    builder->shared_next = (builder->shared_next + 1) % builder->shared_batches;
    *builder->pieces++ = (struct iovec){.iov_base = batch, .iov_len = bytes};
}

static void build_request(struct builder *builder, uint32_t number)
{
    struct request_set *set = builder->set;
    const struct queues *queues = &builder->options->queues;
    struct iovec *first_piece = builder->pieces;
    char name[TOPIC_NAME_BYTES_MAX + 1];
    choose(builder, number);
    uint32_t topics = 0;
    for (uint32_t at = 0; at < set->batches_per_request; at++)
        topics += at == 0 ||
                  builder->chosen[at] / queues->partitions != builder->chosen[at - 1] / queues->partitions;
    put_string(&builder->at, CLIENT_ID, strlen(CLIENT_ID));
    put_i16(&builder->at, -1); /* no transaction */
    put_i16(&builder->at, builder->options->acks);
    put_i32(&builder->at, PRODUCE_TIMEOUT_MS);
    put_i32(&builder->at, (int32_t)topics);
    for (uint32_t at = 0; at < set->batches_per_request;) {
        uint32_t topic = builder->chosen[at] / queues->partitions, end = at;
        while (end < set->batches_per_request && builder->chosen[end] / queues->partitions == topic)
            end++;
        size_t length = queues_topic_name(queues, topic, name);
        put_string(&builder->at, name, length);
        put_i32(&builder->at, (int32_t)(end - at));
        for (; at < end; at++) {
            put_i32(&builder->at, (int32_t)(builder->chosen[at] % queues->partitions));
            put_i32(&builder->at, (int32_t)set->batch_bytes);
            put_batch(builder);
        }
    }
    if (!set->shared)
        end_piece(builder);
    assert(builder->at <= builder->end);
    struct request *request = &set->requests[number];
    *request = (struct request){.pieces = first_piece,
                                .piece_count = (uint32_t)(builder->pieces - first_piece),
                                .api_key = API_PRODUCE,
                                .api_version = PRODUCE_VERSION};
    for (uint32_t piece = 0; piece < request->piece_count; piece++)
        request->bytes += (uint32_t)first_piece[piece].iov_len;
}

static void build_shared_batches(struct builder *builder)
{
    const struct options *options = builder->options;
    uint32_t bytes = builder->set->batch_bytes, count = SHARED_BYTES_MAX / bytes;
    builder->shared_batches = count < 1 ? 1 : count > SHARED_BATCHES_MAX ? SHARED_BATCHES_MAX : count;
    builder->batches = reserve((uint64_t)builder->shared_batches * bytes);
    for (uint32_t batch = 0; batch < builder->shared_batches; batch++)
        batch_build(builder->batches + (size_t)batch * bytes, (uint32_t)options->batch_records,
                    (uint32_t)options->record_bytes, builder->timestamp_ms, &builder->random);
}

static int64_t wall_clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void request_set_build(struct request_set *set, const struct options *options, const struct routes *routes)
{
    if (options->batch_records * (options->record_bytes + 32) > REQUEST_BYTES_MAX)
        fail("a batch of %llu records of %llu bytes is more than brokers take in a request",
             (unsigned long long)options->batch_records, (unsigned long long)options->record_bytes);
    uint32_t batches = (uint32_t)options->request_batches;
    *set = (struct request_set){
        .batches_per_request = batches,
        .records_per_batch = (uint32_t)options->batch_records,
        .batch_bytes =
            (uint32_t)batch_bytes((uint32_t)options->batch_records, (uint32_t)options->record_bytes),
    };
    set->request_batch_bytes = (uint64_t)batches * set->batch_bytes;
    struct builder builder = {
        .options = options,
        .set = set,
        .random = {.state = options->seed},
        .timestamp_ms = wall_clock_ms(),
        .walk = make_walk(options),
        .chosen = allocate(batches, sizeof(uint32_t)),
    };
    divide(&builder, routes);
    set->requests = allocate(set->count, sizeof *set->requests);
    struct sizes sizes = measure(&builder);
    uint64_t whole_bytes = sizes.framing + set->count * set->request_batch_bytes;
    set->shared = whole_bytes > options->pool_bytes;
    uint64_t bytes = set->shared ? sizes.framing : whole_bytes;
    builder.at = builder.piece_begin = reserve(bytes);
    builder.end = builder.at + bytes;
    uint64_t pieces = (uint64_t)set->count * (set->shared ? 2ULL * batches : 1);
    builder.pieces = allocate(pieces, sizeof(struct iovec));
    builder.pieces_end = builder.pieces + pieces;
    if (set->shared)
        build_shared_batches(&builder);
    for (uint32_t number = 0; number < set->count; number++)
        build_request(&builder, number);
    free(builder.walk);
    free(builder.chosen);
}
