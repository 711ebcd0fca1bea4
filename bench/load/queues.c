/* Names are made when requests are built and parsed once per topic of a response; neither is in the way. */
#include "queues.h"

#include "fail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void queues_parse(struct queues *queues, const char *text, uint64_t partitions)
{
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    unsigned long long topics = colon ? strtoull(colon + 1, &end, 10) : 0;
    if (colon == NULL || colon == text || end == colon + 1 || *end != '\0' || topics == 0)
        fail("--topics is PREFIX:COUNT, not '%s'", text);
    size_t length = (size_t)(colon - text);
    if (length + 12 > TOPIC_NAME_BYTES_MAX)
        fail("the topic prefix has %zu characters; with its number it must not pass %d", length,
             TOPIC_NAME_BYTES_MAX);
    if (partitions == 0 || topics > QUEUE_COUNT_MAX || partitions > QUEUE_COUNT_MAX / topics)
        fail("%llu topics of %llu partitions: a run has 1 to %d queues", topics,
             (unsigned long long)partitions, QUEUE_COUNT_MAX);
    memcpy(queues->prefix, text, length);
    queues->prefix[length] = '\0';
    queues->topics = (uint32_t)topics;
    queues->partitions = (uint32_t)partitions;
    queues->count = (uint32_t)(topics * partitions);
}

size_t queues_topic_name(const struct queues *queues, uint32_t number, char *name)
{
    return (size_t)snprintf(name, TOPIC_NAME_BYTES_MAX + 1, "%s-%u", queues->prefix, number);
}

int64_t queues_topic_number(const struct queues *queues, const uint8_t *name, size_t length)
{
    size_t prefix = strlen(queues->prefix);
    if (length < prefix + 2 || length > prefix + 11 || memcmp(name, queues->prefix, prefix) != 0 ||
        name[prefix] != '-')
        return -1;
    uint64_t number = 0;
    for (size_t at = prefix + 1; at < length; at++) {
        if (name[at] < '0' || name[at] > '9')
            return -1;
        number = number * 10 + (uint64_t)(name[at] - '0');
    }
    return number < queues->topics ? (int64_t)number : -1;
}
