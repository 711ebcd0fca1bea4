/* What is asked before a run, one blocking request after the other on a connection of its own. */
#ifndef LOAD_CONTROL_H
#define LOAD_CONTROL_H

#include "queues.h"
#include "routes.h"

#include <stdint.h>

/* Fails unless every topic exists with the partitions the run believes in and each partition has a leader.
 * Waits a while for topics that were just created. */
void control_check_topics(const char *address, const struct queues *queues);

/* The same, and fills `routes` with the queues' leaders. */
void control_find_leaders(const char *address, const struct queues *queues, struct routes *routes);

/* Waits until every queue is served where its requests go: a broker may name a leader that does not yet know it is
 * one. */
void control_await_leaders(const struct routes *routes, const struct queues *queues);

/* Offsets of all queues at `timestamp` (FROM_LATEST, FROM_EARLIEST), to offsets[queue * stride]. Waits for
 * leaders, fails on other errors. */
void control_list_offsets(const char *address, const struct queues *queues, int64_t timestamp,
                          int64_t *offsets, uint32_t stride);

/* The encoded topics array of ListOffsets for queues [begin, end); returns where it ends. */
uint8_t *control_put_list_offsets(uint8_t *at, const struct queues *queues, uint32_t begin, uint32_t end,
                                  int64_t timestamp);

#endif
