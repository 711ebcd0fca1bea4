/* How the program gives up: one line on stderr, exit code 1, nothing on stdout.
 *
 * Everything the machine or the broker can do wrong ends here; what only a bug can do wrong is an assert. */
#ifndef LOAD_FAIL_H
#define LOAD_FAIL_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((format(printf, 1, 2))) _Noreturn static inline void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

/* Zeroed memory for `count` items. Called while a run is prepared, never while it is measured. */
static inline void *allocate(size_t count, size_t item_bytes)
{
    void *memory = calloc(count ? count : 1, item_bytes ? item_bytes : 1);
    if (memory == NULL)
        fail("no memory for %zu items of %zu bytes", count, item_bytes);
    return memory;
}

#endif
