/* Both forms of the checksum against the published check value and against each other at every alignment;
 * quantiles of the histogram against a sorted array. */
#include "self_check.h"

#include "crc32c.h"
#include "fail.h"
#include "histogram.h"
#include "random.h"

#include <math.h>
#include <stdlib.h>

static void check_crc32c(void)
{
    static const uint8_t digits[] = {'1', '2', '3', '4', '5', '6', '7', '8', '9'};
    const uint32_t published = 0xE3069283; /* the check value of CRC-32C */
    if (crc32c_table(0, digits, 9) != published || crc32c_hardware(0, digits, 9) != published)
        fail("CRC32C of 123456789 is not the published one");
    struct random random = {.state = 7};
    uint8_t bytes[600];
    random_fill(&random, bytes, sizeof bytes);
    for (size_t begin = 0; begin < 16; begin++) {
        for (size_t length = 0; length < 500; length += 1 + length / 16) {
            uint32_t table = crc32c_table(0, bytes + begin, length);
            size_t half = length / 2;
            uint32_t chained = crc32c(crc32c(0, bytes + begin, half), bytes + begin + half, length - half);
            if (crc32c_hardware(0, bytes + begin, length) != table || chained != table)
                fail("CRC32C of %zu bytes at %zu differs between its forms", length, begin);
        }
    }
}

static int ascending(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static void check_histogram(void)
{
    enum { COUNT = 20000 };
    static const double fractions[] = {0.0001, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0};
    static struct histogram histogram;
    static uint64_t values[COUNT];
    struct random random = {.state = 11};
    for (int at = 0; at < COUNT; at++) {
        values[at] = (uint64_t)exp(random_unit(&random) * log(1e11)); /* a nanosecond to a hundred seconds */
        histogram_add(&histogram, values[at]);
    }
    qsort(values, COUNT, sizeof values[0], ascending);
    for (unsigned at = 0; at < sizeof fractions / sizeof fractions[0]; at++) {
        double exact = (double)values[(size_t)ceil(fractions[at] * COUNT) - 1];
        double found = (double)histogram_quantile(&histogram, fractions[at]);
        if (fabs(found - exact) > exact * 0.004)
            fail("the quantile %g is %.0f, the histogram says %.0f", fractions[at], exact, found);
    }
    if (histogram.max_ns != values[COUNT - 1] || histogram.count != COUNT)
        fail("the histogram's maximum or count is wrong");
}

void self_check_run(void)
{
    check_crc32c();
    check_histogram();
    puts("checksums and quantiles are right");
}
