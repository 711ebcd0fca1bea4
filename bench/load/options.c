/* One table of options: name, place, kind, bounds, which commands know it. Defaults are set before it is
 * walked. */
#include "options.h"

#include "fail.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { FOR_PRODUCE = 1, FOR_FETCH = 2, FOR_BOTH = 3 };
enum kind { TEXT, WHOLE, NUMBER, FLAG };

struct row {
    const char *name;
    int commands;
    enum kind kind;
    void *place;
    double least, most;
    const char *says;
};

static const char *topics, *from = "earliest", *acks = "-1";
static uint64_t partitions;
static struct options parsed;

static const struct row ROWS[] = {
    {"--address", FOR_BOTH, TEXT, &parsed.address, 0, 0, "HOST:PORT of one broker, which leads all the queues unless --leaders is given"},
    {"--tls-address", FOR_BOTH, TEXT, &parsed.tls_address, 0, 0,
     "HOST:PORT where the same broker speaks TLS: the load goes there, questions about topics to --address"},
    {"--topics", FOR_BOTH, TEXT, &topics, 0, 0,
     "PREFIX:COUNT, topics PREFIX-0 to PREFIX-(COUNT-1), which exist"},
    {"--partitions", FOR_BOTH, WHOLE, &partitions, 1, QUEUE_COUNT_MAX, "of each topic"},
    {"--connections", FOR_BOTH, WHOLE, &parsed.connections, 1, 10000, "(1)"},
    {"--in-flight", FOR_BOTH, WHOLE, &parsed.in_flight, 1, 10000, "unanswered requests of a connection (5)"},
    {"--seconds", FOR_BOTH, NUMBER, &parsed.seconds, 0, 1e6, "end after so long, the warm-up not counted"},
    {"--bytes", FOR_BOTH, WHOLE, &parsed.bytes, 0, 1e15,
     "end after so many bytes of batches, after the warm-up"},
    {"--warmup-seconds", FOR_BOTH, NUMBER, &parsed.warmup_seconds, 0, 1e6, "work that is not counted (0)"},
    {"--interval-seconds", FOR_BOTH, NUMBER, &parsed.interval_seconds, 0, 1e6, "figures per interval (none)"},
    {"--seed", FOR_BOTH, WHOLE, &parsed.seed, 0, 9e15, "of payloads, order and arrivals (1)"},
    {"--no-check", FOR_BOTH, FLAG, &parsed.no_check, 0, 0,
     "do not ask for metadata first to see that the topics exist"},
    {"--leaders", FOR_PRODUCE, FLAG, &parsed.leaders, 0, 0,
     "send each queue's requests to its leader; connections are dealt out to the nodes in turn"},
    {"--queues-per-request", FOR_BOTH, WHOLE, &parsed.queues_per_request, 1, QUEUE_COUNT_MAX,
     "distinct queues (1)"},

    {"--record-bytes", FOR_PRODUCE, WHOLE, &parsed.record_bytes, 0, 1 << 30, "of a record's value (100)"},
    {"--batch-records", FOR_PRODUCE, WHOLE, &parsed.batch_records, 1, 1 << 24, "records of a batch (10)"},
    {"--request-batches", FOR_PRODUCE, WHOLE, &parsed.request_batches, 1, QUEUE_COUNT_MAX,
     "batches of a request; Kafka takes one per queue, so it equals --queues-per-request"},
    {"--acks", FOR_PRODUCE, TEXT, &acks, 0, 0, "-1, 1 or 0 (-1)"},
    {"--rate", FOR_PRODUCE, NUMBER, &parsed.rate, 0, 1e8,
     "requests a second, sent on schedule (as fast as answered)"},
    {"--poisson", FOR_PRODUCE, FLAG, &parsed.poisson, 0, 0,
     "with --rate: random arrivals instead of a fixed grid"},
    {"--kernel-times", FOR_PRODUCE, FLAG, &parsed.kernel_times, 0, 0,
     "also measure from when the kernel was given a request until it had the answer, whenever this program runs"},
    {"--shuffle", FOR_PRODUCE, FLAG, &parsed.shuffle, 0, 0, "walk the queues in a random order"},
    {"--pool-bytes", FOR_PRODUCE, WHOLE, &parsed.pool_bytes, 1 << 16, 1e12,
     "of requests built in advance (512 MiB)"},

    {"--from", FOR_FETCH, TEXT, &from, 0, 0, "earliest, latest or an offset (earliest)"},
    {"--until-end", FOR_FETCH, FLAG, &parsed.until_end, 0, 0,
     "end when every queue is read to where it ended at start"},
    {"--max-bytes", FOR_FETCH, WHOLE, &parsed.max_bytes, 1, INT32_MAX, "of a response (52428800)"},
    {"--partition-max-bytes", FOR_FETCH, WHOLE, &parsed.partition_max_bytes, 1, INT32_MAX,
     "of a queue in it (1048576)"},
    {"--min-bytes", FOR_FETCH, WHOLE, &parsed.min_bytes, 0, INT32_MAX, "the broker waits for (1)"},
    {"--max-wait-ms", FOR_FETCH, WHOLE, &parsed.max_wait_ms, 0, INT32_MAX, "the broker waits at most (500)"},
    {"--rate-bytes", FOR_FETCH, NUMBER, &parsed.rate_bytes, 0, 1e12,
     "bytes a second to read at (as fast as they come)"},
    {"--check-crc", FOR_FETCH, FLAG, &parsed.check_crc, 0, 0, "check the checksum of every batch"},
    {"--committed", FOR_FETCH, FLAG, &parsed.committed, 0, 0,
     "read what transactions have committed, and ask which of them were aborted"},
};

enum { ROW_COUNT = sizeof ROWS / sizeof ROWS[0] };

static _Noreturn void help(void)
{
    printf(
        "load produce|fetch --address HOST:PORT --topics PREFIX:COUNT --partitions N …\nload self-check\n");
    for (int commands = FOR_BOTH; commands > 0; commands--) {
        printf("\n%s\n", commands == FOR_BOTH ? "both" : commands == FOR_FETCH ? "fetch" : "produce");
        for (int at = 0; at < ROW_COUNT; at++)
            if (ROWS[at].commands == commands)
                printf("  %-22s %s\n", ROWS[at].name, ROWS[at].says);
    }
    exit(0);
}

static double number(const struct row *row, const char *text)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (errno != 0 || end == text || *end != '\0' || !(value >= row->least && value <= row->most) ||
        (row->kind == WHOLE && value != floor(value)))
        fail("%s %s: a %snumber from %.0f to %.0f is wanted", row->name, text,
             row->kind == WHOLE ? "whole " : "", row->least, row->most);
    return value;
}

static void set(const struct row *row, const char *text)
{
    switch (row->kind) {
    case TEXT:
        *(const char **)row->place = text;
        break;
    case WHOLE:
        *(uint64_t *)row->place = (uint64_t)number(row, text);
        break;
    case NUMBER:
        *(double *)row->place = number(row, text);
        break;
    case FLAG:
        *(bool *)row->place = true;
        break;
    }
}

static const struct row *find(const char *name, int command)
{
    for (int at = 0; at < ROW_COUNT; at++)
        if (strcmp(ROWS[at].name, name) == 0 && (ROWS[at].commands & command) != 0)
            return &ROWS[at];
    fail("%s is no option of this command; see load --help", name);
}

static void parse_acks(void)
{
    if (strcmp(acks, "-1") != 0 && strcmp(acks, "all") != 0 && strcmp(acks, "1") != 0 &&
        strcmp(acks, "0") != 0)
        fail("--acks is -1, 1 or 0, not '%s'", acks);
    parsed.acks = (int16_t)(strcmp(acks, "all") == 0 ? -1 : strtol(acks, NULL, 10));
}

static void parse_from(void)
{
    if (strcmp(from, "earliest") == 0) {
        parsed.from = FROM_EARLIEST;
    } else if (strcmp(from, "latest") == 0) {
        parsed.from = FROM_LATEST;
    } else {
        char *end;
        parsed.from = strtoll(from, &end, 10);
        if (end == from || *end != '\0' || parsed.from < 0)
            fail("--from is earliest, latest or an offset, not '%s'", from);
    }
}

static void check(int command)
{
    if (parsed.address == NULL || topics == NULL || partitions == 0)
        fail("--address, --topics and --partitions are needed; see load --help");
    queues_parse(&parsed.queues, topics, partitions);
    parse_acks();
    parse_from();
    if (parsed.seconds == 0 && parsed.bytes == 0 && !(command == FOR_FETCH && parsed.until_end))
        fail("say when to end: --seconds, --bytes%s", command == FOR_FETCH ? " or --until-end" : "");
    if (parsed.queues_per_request > parsed.queues.count)
        fail("--queues-per-request %llu: there are %u queues", (unsigned long long)parsed.queues_per_request,
             parsed.queues.count);
    if (parsed.leaders && parsed.no_check)
        fail("--leaders asks for metadata, which --no-check leaves out");
    if (parsed.leaders && parsed.tls_address != NULL)
        fail("--leaders sends to the addresses that metadata names, and --tls-address is none of them");
    if (parsed.kernel_times && parsed.tls_address != NULL)
        fail("--kernel-times: the kernel notes when bytes have come, and --tls-address has them read by OpenSSL");
    if (parsed.request_batches == 0)
        parsed.request_batches = parsed.queues_per_request;
    if (parsed.request_batches != parsed.queues_per_request)
        fail("--request-batches %llu, --queues-per-request %llu: Kafka takes exactly one batch of a queue in "
             "a request",
             (unsigned long long)parsed.request_batches, (unsigned long long)parsed.queues_per_request);
    if (parsed.rate > 0 && parsed.seconds == 0)
        fail("--rate needs --seconds, so that the schedule has an end");
    if (parsed.interval_seconds > 0 && parsed.interval_seconds < 0.001)
        fail("--interval-seconds is at least 0.001");
}

void options_parse(struct options *options, int count, char **arguments)
{
    parsed = (struct options){
        .connections = 1,
        .in_flight = 5,
        .seed = 1,
        .queues_per_request = 1,
        .record_bytes = 100,
        .batch_records = 10,
        .pool_bytes = 512ULL << 20,
        .max_bytes = 50 << 20,
        .partition_max_bytes = 1 << 20,
        .min_bytes = 1,
        .max_wait_ms = 500,
    };
    for (int at = 1; at < count; at++)
        if (strcmp(arguments[at], "--help") == 0)
            help();
    parsed.command = count > 1 ? arguments[1] : "";
    int command = strcmp(parsed.command, "produce") == 0 ? FOR_PRODUCE
                  : strcmp(parsed.command, "fetch") == 0 ? FOR_FETCH
                                                         : 0;
    if (strcmp(parsed.command, "self-check") == 0 && count == 2) {
        *options = parsed;
        return;
    }
    if (command == 0)
        fail("the command is produce, fetch or self-check; see load --help");
    for (int at = 2; at < count; at++) {
        const struct row *row = find(arguments[at], command);
        if (row->kind != FLAG && at + 1 == count)
            fail("%s needs a value", row->name);
        set(row, row->kind == FLAG ? NULL : arguments[++at]);
    }
    check(command);
    *options = parsed;
}
