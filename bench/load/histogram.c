/* See histogram.h. A bucket's index is the value's leading bits: shift them to where the top
 * HISTOGRAM_OCTAVE_BITS + 1 remain, and the shift itself says which octave they are from. */
#include "histogram.h"

#include <math.h>
#include <string.h>

#define OCTAVE (1ULL << HISTOGRAM_OCTAVE_BITS)
#define VALUE_MAX ((1ULL << HISTOGRAM_VALUE_BITS) - 1)

static unsigned bucket_of(uint64_t value)
{
    if (value < OCTAVE)
        return (unsigned)value;
    unsigned shift = 63 - (unsigned)__builtin_clzll(value) - HISTOGRAM_OCTAVE_BITS;
    return (shift << HISTOGRAM_OCTAVE_BITS) + (unsigned)(value >> shift);
}

uint64_t histogram_middle(unsigned bucket)
{
    if (bucket < 2 * OCTAVE)
        return bucket;
    unsigned shift = (bucket >> HISTOGRAM_OCTAVE_BITS) - 1;
    return ((bucket - ((uint64_t)shift << HISTOGRAM_OCTAVE_BITS)) << shift) + (1ULL << shift) / 2;
}

void histogram_clear(struct histogram *histogram)
{
    memset(histogram, 0, sizeof *histogram);
}

void histogram_add(struct histogram *histogram, uint64_t value_ns)
{
    if (value_ns > VALUE_MAX)
        value_ns = VALUE_MAX;
    histogram->buckets[bucket_of(value_ns)]++;
    histogram->count++;
    histogram->sum_ns += (double)value_ns;
    if (value_ns > histogram->max_ns)
        histogram->max_ns = value_ns;
}

uint64_t histogram_quantile(const struct histogram *histogram, double fraction)
{
    uint64_t rank = (uint64_t)ceil(fraction * (double)histogram->count);
    uint64_t seen = 0;
    for (unsigned bucket = 0; bucket < HISTOGRAM_BUCKETS; bucket++) {
        seen += histogram->buckets[bucket];
        if (seen >= rank && seen > 0) {
            uint64_t middle = histogram_middle(bucket);
            return middle < histogram->max_ns ? middle : histogram->max_ns;
        }
    }
    return 0;
}
