/* The command line, checked. */
#ifndef LOAD_OPTIONS_H
#define LOAD_OPTIONS_H

#include "queues.h"

#include <stdbool.h>
#include <stdint.h>

enum { FROM_LATEST = -1, FROM_EARLIEST = -2 }; /* as in ListOffsets; an offset otherwise */

struct options {
    const char *command; /* produce, fetch or self-check */
    const char *address;
    const char *tls_address; /* NULL: the load goes to `address`, in the clear */
    struct queues queues;
    uint64_t connections, in_flight;
    double seconds;  /* 0: until the bytes (or the end) */
    uint64_t bytes;  /* 0: until the seconds (or the end) */
    double warmup_seconds, interval_seconds;
    uint64_t seed;
    bool no_check, leaders;
    uint64_t queues_per_request;

    uint64_t record_bytes, batch_records, request_batches;
    int16_t acks;
    double rate; /* requests a second; 0: closed loop */
    bool poisson, shuffle, kernel_times;
    uint64_t pool_bytes;

    int64_t from;
    bool until_end, check_crc, committed;
    uint64_t max_bytes, partition_max_bytes, min_bytes, max_wait_ms;
    double rate_bytes; /* bytes a second; 0: as fast as they come */
};

static inline const char *options_load_address(const struct options *options)
{
    return options->tls_address != NULL ? options->tls_address : options->address;
}

/* Fails on anything unknown, missing or out of range; `--help` prints what there is and exits 0. */
void options_parse(struct options *options, int count, char **arguments);

#endif
