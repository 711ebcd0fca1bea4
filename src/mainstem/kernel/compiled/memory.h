/* Memory for blocks, directories and requests: what one gives back the next takes, so that in the long run nothing is
 * written to pages the kernel has yet to hand out and clear (a quarter of all time, measured).
 *
 * Sizes are rounded up to powers of two from 4 KiB to 8 MiB and kept on one list per size; below and above, and beyond
 * the bound on what is kept, malloc and free. Callers hold the interpreter's lock: every extension module has its own
 * lists (a module is its own translation unit), and memory goes back to the module it came from. Under
 * AddressSanitizer nothing is kept or rounded up, for it to see every end and every second use. */
#ifndef MAINSTEM_MEMORY_H
#define MAINSTEM_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__)

static inline size_t ms_size_taken(size_t size) { return size; }
static inline void *ms_take(size_t size) { return malloc(size ? size : 1); }
static inline void ms_give(void *memory, size_t size) { (void)size; free(memory); }

#else

#define MS_SPARE_SMALLEST 12 /* 4 KiB */
#define MS_SPARE_LARGEST 23  /* 8 MiB */
#define MS_SPARE_BYTES_MAX ((size_t)32 << 20)

struct ms_spare { struct ms_spare *next; };

static struct ms_spare *ms_spares[MS_SPARE_LARGEST + 1];
static size_t ms_spare_bytes;

static inline int ms_size_class(size_t size) {
    int bits = size <= 1 ? 0 : 64 - __builtin_clzll((unsigned long long)size - 1);
    return bits < MS_SPARE_SMALLEST || bits > MS_SPARE_LARGEST ? 0 : bits;
}

/* What `ms_take(size)` really has. */
static inline size_t ms_size_taken(size_t size) {
    int class = ms_size_class(size);
    return class ? (size_t)1 << class : size;
}

/* Memory for `size` bytes, not cleared; NULL when there is none. */
static inline void *ms_take(size_t size) {
    int class = ms_size_class(size);
    if (!class) return malloc(size ? size : 1);
    struct ms_spare *spare = ms_spares[class];
    if (!spare) return malloc((size_t)1 << class);
    ms_spares[class] = spare->next;
    ms_spare_bytes -= (size_t)1 << class;
    return spare;
}

/* Give back what `ms_take(size)`, of the same size, returned. */
static inline void ms_give(void *memory, size_t size) {
    int class = ms_size_class(size);
    if (!memory) return;
    if (!class || ms_spare_bytes + ((size_t)1 << class) > MS_SPARE_BYTES_MAX) {
        free(memory);
        return;
    }
    struct ms_spare *spare = memory;
    spare->next = ms_spares[class];
    ms_spares[class] = spare;
    ms_spare_bytes += (size_t)1 << class;
}

#endif
#endif
