/* See routes.h. */
#include "routes.h"

#include "fail.h"

#include <string.h>

void routes_to_one(struct routes *routes, const char *address)
{
    *routes = (struct routes){.node_count = 1};
    if (snprintf(routes->nodes[0].address, ADDRESS_BYTES_MAX, "%s", address) >= ADDRESS_BYTES_MAX)
        fail("--address has more than %d characters", ADDRESS_BYTES_MAX - 1);
}

void routes_begin(struct routes *routes, const struct queues *queues)
{
    *routes = (struct routes){.node_of = allocate(queues->count, sizeof(uint8_t))};
}

void routes_add_broker(struct routes *routes, int32_t id, const uint8_t *host, int16_t host_bytes, int32_t port)
{
    for (uint32_t at = 0; at < routes->node_count; at++)
        if (routes->nodes[at].id == id)
            return;
    if (routes->node_count == NODES_MAX)
        fail("the cluster has more than %d brokers", NODES_MAX);
    if (host == NULL || host_bytes <= 0 || host_bytes > 255)
        fail("broker %d has no address", id);
    struct node *node = &routes->nodes[routes->node_count++];
    bool ip6 = memchr(host, ':', (size_t)host_bytes) != NULL;
    node->id = id;
    snprintf(node->address, ADDRESS_BYTES_MAX, ip6 ? "[%.*s]:%d" : "%.*s:%d", host_bytes, (const char *)host, port);
}

bool routes_lead(struct routes *routes, uint32_t queue, int32_t id)
{
    for (uint32_t at = 0; at < routes->node_count; at++)
        if (routes->nodes[at].id == id) {
            routes->node_of[queue] = (uint8_t)at;
            return true;
        }
    return false;
}

void routes_end(struct routes *routes, const struct queues *queues)
{
    uint8_t place[NODES_MAX];
    bool leads[NODES_MAX] = {false};
    for (uint32_t queue = 0; queue < queues->count; queue++)
        leads[routes->node_of[queue]] = true;
    uint32_t kept = 0;
    for (uint32_t at = 0; at < routes->node_count; at++) {
        place[at] = (uint8_t)kept;
        if (leads[at])
            routes->nodes[kept++] = routes->nodes[at];
    }
    routes->node_count = kept;
    for (uint32_t queue = 0; queue < queues->count; queue++)
        routes->node_of[queue] = place[routes->node_of[queue]];
}
