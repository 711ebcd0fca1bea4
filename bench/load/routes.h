/* Which node takes the requests of which queue: with --leaders, each queue's leader as Metadata names it, asked
 * once before the run; otherwise the one address that was given. */
#ifndef LOAD_ROUTES_H
#define LOAD_ROUTES_H

#include "queues.h"

#include <stdbool.h>
#include <stdint.h>

enum { NODES_MAX = 64, ADDRESS_BYTES_MAX = 264 };

struct node {
    int32_t id; /* as brokers number themselves */
    char address[ADDRESS_BYTES_MAX];
};

struct routes {
    struct node nodes[NODES_MAX]; /* those that lead a queue */
    uint32_t node_count;
    uint8_t *node_of; /* by queue: its place in `nodes`; NULL where there is but one */
};

/* One address for all queues. */
void routes_to_one(struct routes *routes, const char *address);

/* Begin with all brokers of the cluster: leaders are told one by one. Fails on more than NODES_MAX. */
void routes_begin(struct routes *routes, const struct queues *queues);
void routes_add_broker(struct routes *routes, int32_t id, const uint8_t *host, int16_t host_bytes, int32_t port);
/* False when no broker has this id. */
bool routes_lead(struct routes *routes, uint32_t queue, int32_t id);

/* Forget brokers that lead no queue. */
void routes_end(struct routes *routes, const struct queues *queues);

static inline uint32_t routes_node_of(const struct routes *routes, uint32_t queue)
{
    return routes->node_of == NULL ? 0 : routes->node_of[queue];
}

#endif
