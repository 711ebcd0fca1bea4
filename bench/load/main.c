/* load: drives Kafka brokers harder than a client library can.
 *
 * A benchmark's client must not be what is measured. So everything a request needs is built before the run,
 * the loop does system calls and little else, and one core of it saturates a broker. It is single-threaded:
 * run several for more. Plain Kafka (Produce v7, Fetch v11, Metadata v4, ListOffsets v1), so that every
 * broker can be put under it.
 *
 * From here: produce.c and fetch.c are the two loops, request_set.c builds what is produced, fetch_response.c
 * reads what is fetched, connection.c and event_loop.c move bytes, control.c asks what must be known first,
 * measurement.c counts and prints. */
#include "fetch.h"
#include "options.h"
#include "produce.h"
#include "self_check.h"

#include <string.h>

int main(int count, char **arguments)
{
    static struct options options;
    options_parse(&options, count, arguments);
    if (strcmp(options.command, "produce") == 0)
        produce_run(&options);
    else if (strcmp(options.command, "fetch") == 0)
        fetch_run(&options);
    else
        self_check_run();
    return 0;
}
