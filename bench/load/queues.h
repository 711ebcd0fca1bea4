/* The queues of a run: queue q is partition q % partitions of topic PREFIX-(q / partitions). */
#ifndef LOAD_QUEUES_H
#define LOAD_QUEUES_H

#include <stddef.h>
#include <stdint.h>

enum {
    TOPIC_NAME_BYTES_MAX = 249,   /* Kafka's limit */
    QUEUE_COUNT_MAX = 10 * 1000 * 1000, /* ten times what is claimed; offsets of all are held in memory */
};

struct queues {
    char prefix[TOPIC_NAME_BYTES_MAX + 1];
    uint32_t topics;
    uint32_t partitions;
    uint32_t count;
};

/* From PREFIX:COUNT and the partitions of each topic. Fails on what is no such thing. */
void queues_parse(struct queues *queues, const char *text, uint64_t partitions);

/* Writes the name of topic `number` to `name` (TOPIC_NAME_BYTES_MAX + 1 bytes), returns its length. */
size_t queues_topic_name(const struct queues *queues, uint32_t number, char *name);

/* The number of the topic of this name, -1 when it is none of the run's. */
int64_t queues_topic_number(const struct queues *queues, const uint8_t *name, size_t length);

#endif
