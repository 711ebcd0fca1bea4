/* The consuming side: follows every queue from where it is told to, at the speed it gets or at a given one. */
#ifndef LOAD_FETCH_H
#define LOAD_FETCH_H

#include "options.h"

/* Runs until its end and prints the result. */
void fetch_run(const struct options *options);

#endif
