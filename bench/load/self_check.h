/* What can be checked without a broker: checksums and quantiles. */
#ifndef LOAD_SELF_CHECK_H
#define LOAD_SELF_CHECK_H

/* Fails on the first thing that is wrong, prints a line otherwise. */
void self_check_run(void);

#endif
