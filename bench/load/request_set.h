/* Every produce request of a run, built before it begins; sending reads, never writes.
 *
 * Request i carries one batch for each of the next `batches_per_request` queues in the order of the walk, so
 * that the set as a whole visits every queue once (the last request goes on with the first queues where the
 * numbers do not divide). With several nodes, each has a walk and requests of its own. Two forms, by size:
 *
 * - whole: each request is one contiguous piece with batches of its own, as long as all of them fit the pool;
 * - shared: where they would not (a million queues of kilobyte batches), each request is a list of pieces
 *   that alternates between its own framing (topic names, partition numbers, lengths: some tens of bytes a
 *   queue, kept in full) and batches borrowed from a few thousand that all requests share. A batch does not
 *   know its queue, so a borrowed one is as valid as its own. The kernel gathers two pieces for each batch
 *   where it copied one for the whole request; in exchange the batches stay in the processor's cache, which
 *   measures as cheap as the whole form does from memory (0.13 ms of CPU per MB of 1,151-byte batches). */
#ifndef LOAD_REQUEST_SET_H
#define LOAD_REQUEST_SET_H

#include "connection.h"
#include "options.h"
#include "routes.h"

#include <stdint.h>

/* The requests of one node. */
struct stretch {
    uint32_t first, count;
};

struct request_set {
    struct request *requests;
    uint32_t count;
    struct stretch stretches[NODES_MAX]; /* as the routes' nodes */
    uint32_t batches_per_request;
    uint32_t records_per_batch;
    uint32_t batch_bytes;
    uint64_t request_batch_bytes; /* of all batches of one request */
    uint32_t response_bytes_max;
    bool shared;
};

/* Fails when a request would be larger than brokers take, or a node leads fewer queues than a request carries. The
 * memory lives as long as the program. */
void request_set_build(struct request_set *set, const struct options *options, const struct routes *routes);

#endif
