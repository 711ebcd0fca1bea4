/* See measurement.h. */
#include "measurement.h"

#include "clock.h"
#include "fail.h"

#include <string.h>
#include <sys/resource.h>

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

void measurement_open(struct measurement *measurement, double interval_seconds)
{
    memset(measurement, 0, sizeof *measurement);
    measurement->interval_ns = (uint64_t)(interval_seconds * (double)SECOND_NS);
    if (measurement->interval_ns > 0) {
        measurement->intervals = allocate(INTERVALS_MAX, sizeof(struct interval));
        /* touched now, so that no page is first touched while the run is measured */
        memset(measurement->intervals, 1, INTERVALS_MAX * sizeof(struct interval));
    }
}

void measurement_begin(struct measurement *measurement, uint64_t now_ns, double warmup_seconds)
{
    measurement->counting_from_ns = now_ns + (uint64_t)(warmup_seconds * (double)SECOND_NS);
    measurement_advance(measurement, now_ns);
}

static void begin_counting(struct measurement *measurement)
{
    memset(&measurement->totals, 0, sizeof measurement->totals);
    histogram_clear(&measurement->latency);
    histogram_clear(&measurement->served);
    histogram_clear(&measurement->send_delay);
    histogram_clear(&measurement->interval_latency);
    measurement->counting = true;
    measurement->interval_began_ns = measurement->counting_from_ns;
    puts("counting");
    if (fflush(stdout) != 0)
        fail("nobody could be told that the run counts from here on");
    measurement->cpu_seconds_before = cpu_seconds();
}

static void end_interval(struct measurement *measurement, uint64_t ends_ns)
{
    if (measurement->interval_count == INTERVALS_MAX)
        return;
    struct totals *before = &measurement->interval_before;
    const struct totals *totals = &measurement->totals;
    measurement->intervals[measurement->interval_count++] = (struct interval){
        .seconds = (double)(ends_ns - measurement->interval_began_ns) / (double)SECOND_NS,
        .bytes = totals->bytes - before->bytes,
        .requests = totals->requests - before->requests,
        .p99_ns = histogram_quantile(&measurement->interval_latency, 0.99),
    };
    *before = *totals;
    histogram_clear(&measurement->interval_latency);
    measurement->interval_began_ns = ends_ns;
}

void measurement_advance(struct measurement *measurement, uint64_t now_ns)
{
    if (!measurement->counting && now_ns >= measurement->counting_from_ns)
        begin_counting(measurement);
    if (!measurement->counting || measurement->interval_ns == 0)
        return;
    while (now_ns - measurement->interval_began_ns >= measurement->interval_ns &&
           measurement->interval_count < INTERVALS_MAX)
        end_interval(measurement, measurement->interval_began_ns + measurement->interval_ns);
}

void measurement_request(struct measurement *measurement, uint64_t now_ns, uint64_t since_ns)
{
    uint64_t latency_ns = now_ns > since_ns ? now_ns - since_ns : 0;
    measurement->totals.requests++;
    histogram_add(&measurement->latency, latency_ns);
    if (measurement->interval_ns > 0)
        histogram_add(&measurement->interval_latency, latency_ns);
}

static void print_histogram(const char *name, const struct histogram *histogram)
{
    static const struct {
        const char *name;
        double fraction;
    } quantiles[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99_9", 0.999}};
    printf("\"%s\": {", name);
    for (unsigned at = 0; at < sizeof quantiles / sizeof quantiles[0]; at++)
        printf("\"%s\": %.1f, ", quantiles[at].name,
               (double)histogram_quantile(histogram, quantiles[at].fraction) / 1e3);
    double mean_ns = histogram->count > 0 ? histogram->sum_ns / (double)histogram->count : 0.0;
    printf("\"max\": %.1f, \"mean\": %.1f, \"count\": %llu}", (double)histogram->max_ns / 1e3, mean_ns / 1e3,
           (unsigned long long)histogram->count);
}

/* Pairs of a bucket's middle in ns and how many fell into it: histograms of several runs add up. */
static void print_buckets(const char *name, const struct histogram *histogram)
{
    const char *separator = "";
    printf("\"%s\": [", name);
    for (unsigned bucket = 0; bucket < HISTOGRAM_BUCKETS; bucket++) {
        if (histogram->buckets[bucket] == 0)
            continue;
        printf("%s[%llu, %llu]", separator, (unsigned long long)histogram_middle(bucket),
               (unsigned long long)histogram->buckets[bucket]);
        separator = ", ";
    }
    printf("]");
}

static void print_errors(const struct totals *totals)
{
    const char *separator = "";
    printf("\"errors\": {");
    for (int at = 0; at < ERROR_CODES; at++) {
        if (totals->errors[at] == 0)
            continue;
        printf("%s\"%d\": %llu", separator, at + ERROR_CODE_MIN, (unsigned long long)totals->errors[at]);
        separator = ", ";
    }
    printf("}");
}

static void print_intervals(const struct measurement *measurement)
{
    printf("\"intervals\": [");
    for (uint32_t at = 0; at < measurement->interval_count; at++) {
        const struct interval *interval = &measurement->intervals[at];
        printf("%s{\"seconds\": %.6f, \"mb_per_s\": %.3f, \"requests_per_s\": %.1f, \"p99_us\": %.1f}",
               at > 0 ? ", " : "", interval->seconds, (double)interval->bytes / 1e6 / interval->seconds,
               (double)interval->requests / interval->seconds, (double)interval->p99_ns / 1e3);
    }
    printf("]");
}

void measurement_print(struct measurement *measurement, const char *command, uint64_t now_ns)
{
    measurement_advance(measurement, now_ns);
    if (!measurement->counting)
        fail("the run was over before the warm-up; nothing was measured");
    /* a shorter rest would say nothing: the last few answers, at whatever rate */
    if (measurement->interval_ns > 0 &&
        now_ns - measurement->interval_began_ns > measurement->interval_ns / 2)
        end_interval(measurement, now_ns);
    const struct totals *totals = &measurement->totals;
    double seconds = (double)(now_ns - measurement->counting_from_ns) / (double)SECOND_NS;
    double per_second = seconds > 0 ? 1.0 / seconds : 0.0;
    printf(
        "{\"command\": \"%s\", \"seconds\": %.6f, \"requests\": %llu, \"batches\": %llu, \"records\": %llu, "
        "\"bytes\": %llu, ",
        command, seconds, (unsigned long long)totals->requests, (unsigned long long)totals->batches,
        (unsigned long long)totals->records, (unsigned long long)totals->bytes);
    printf("\"mb_per_s\": %.3f, \"batches_per_s\": %.1f, \"requests_per_s\": %.1f, ",
           (double)totals->bytes / 1e6 * per_second, (double)totals->batches * per_second,
           (double)totals->requests * per_second);
    print_histogram("latency_us", &measurement->latency);
    printf(", ");
    print_buckets("latency_buckets", &measurement->latency);
    printf(", ");
    print_histogram("served_us", &measurement->served);
    printf(", ");
    print_buckets("served_buckets", &measurement->served);
    printf(", ");
    print_histogram("send_delay_us", &measurement->send_delay);
    printf(", ");
    print_errors(totals);
    printf(", \"gaps\": %llu, \"checksum_errors\": %llu, \"empty\": %llu, \"abandoned\": %llu, \"unsent\": "
           "%llu, "
           "\"load_cpu_seconds\": %.3f, ",
           (unsigned long long)measurement->gaps, (unsigned long long)measurement->checksum_errors,
           (unsigned long long)totals->empty, (unsigned long long)measurement->abandoned,
           (unsigned long long)measurement->unsent, cpu_seconds() - measurement->cpu_seconds_before);
    print_intervals(measurement);
    printf("}\n");
    if (fflush(stdout) != 0)
        fail("the result could not be written");
}
