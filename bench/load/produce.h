/* The producing side: closed loop, as many requests in flight as allowed, or open loop, requests on a
 * schedule. */
#ifndef LOAD_PRODUCE_H
#define LOAD_PRODUCE_H

#include "options.h"

/* Runs until its end and prints the result. */
void produce_run(const struct options *options);

#endif
