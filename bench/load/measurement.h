/* What a run counts, and the JSON it ends in.
 *
 * Counting begins when the warm-up is over: everything before is dropped except gaps and checksum errors,
 * which are never excused. A thing belongs to the moment it was finished (answered, or read completely). */
#ifndef LOAD_MEASUREMENT_H
#define LOAD_MEASUREMENT_H

#include "histogram.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    ERROR_CODE_MIN = -1, /* Kafka's UNKNOWN_SERVER_ERROR */
    ERROR_CODES = 256,   /* Kafka 4 has about 130 */
    INTERVALS_MAX = 100000, /* a second each for more than a day */
};

struct totals {
    uint64_t requests, batches, records, bytes, empty;
    uint64_t errors[ERROR_CODES];
};

struct interval {
    double seconds; /* its length */
    uint64_t bytes, requests;
    uint64_t p99_ns;
};

struct measurement {
    uint64_t counting_from_ns; /* end of the warm-up */
    bool counting;
    double cpu_seconds_before;

    struct totals totals;
    uint64_t gaps, checksum_errors; /* warm-up included */
    uint64_t abandoned, unsent;
    struct histogram latency;
    struct histogram served; /* by the kernel's times: from a request's last byte to its answer's */
    struct histogram
        send_delay; /* of scheduled requests: from their time until they were handed to a connection */

    uint64_t interval_ns, interval_began_ns;
    struct totals interval_before;
    struct histogram interval_latency;
    struct interval *intervals;
    uint32_t interval_count;
};

void measurement_open(struct measurement *measurement, double interval_seconds);

/* The run begins; the warm-up with it. When the warm-up is over, a line that says "counting" goes to stdout: whoever
 * counts what the broker spends begins there, behind the questions and the building of requests. */
void measurement_begin(struct measurement *measurement, uint64_t now_ns, double warmup_seconds);

/* Time has gone on: ends the warm-up and intervals. Called before anything finished now is counted. */
void measurement_advance(struct measurement *measurement, uint64_t now_ns);

/* A request is answered. */
void measurement_request(struct measurement *measurement, uint64_t now_ns, uint64_t since_ns);

/* The same request, by the times that the kernel notes: the program's own waits for a processor are not in it. */
static inline void measurement_served(struct measurement *measurement, uint64_t given_ns, uint64_t came_ns)
{
    histogram_add(&measurement->served, came_ns > given_ns ? came_ns - given_ns : 0);
}

static inline void measurement_batches(struct measurement *measurement, uint64_t batches, uint64_t records,
                                       uint64_t bytes)
{
    measurement->totals.batches += batches;
    measurement->totals.records += records;
    measurement->totals.bytes += bytes;
}

static inline void measurement_error(struct measurement *measurement, int16_t code)
{
    int at = code - ERROR_CODE_MIN;
    measurement->totals.errors[at >= 0 && at < ERROR_CODES ? at : ERROR_CODES - 1]++;
}

/* The run is over: prints one JSON object to stdout, on a line of its own. */
void measurement_print(struct measurement *measurement, const char *command, uint64_t now_ns);

#endif
