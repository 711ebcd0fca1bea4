/* The consuming side: follows every queue from where it is told to, as fast as it can or at a given speed. */
#ifndef LOAD_FETCH_H
#define LOAD_FETCH_H

#include "options.h"

/* Runs until its end and prints the result. */
void fetch_run(const struct options *options);

#endif
