/* Latencies in logarithmic buckets: constant memory, constant time, every quantile within 0.4 %.
 *
 * An octave has 128 buckets of equal width; a quantile is the middle of its bucket, so it is off by at most
 * half a width, 1/256 of the value. Values up to 127 ns are exact. Sum and maximum are kept exactly. */
#ifndef LOAD_HISTOGRAM_H
#define LOAD_HISTOGRAM_H

#include <stdint.h>

enum {
    HISTOGRAM_OCTAVE_BITS = 7,
    HISTOGRAM_VALUE_BITS = 44, /* 2^44 ns are almost five hours: longer than any run waits */
    HISTOGRAM_BUCKETS = (HISTOGRAM_VALUE_BITS - HISTOGRAM_OCTAVE_BITS + 1) << HISTOGRAM_OCTAVE_BITS,
};

struct histogram {
    uint64_t count;
    uint64_t max_ns;
    double sum_ns;
    uint64_t buckets[HISTOGRAM_BUCKETS];
};

void histogram_clear(struct histogram *histogram);
void histogram_add(struct histogram *histogram, uint64_t value_ns);

/* The middle of a bucket, in ns. */
uint64_t histogram_middle(unsigned bucket);

/* The value that `fraction` of all values do not exceed, in ns; 0 when there are none. */
uint64_t histogram_quantile(const struct histogram *histogram, double fraction);

#endif
