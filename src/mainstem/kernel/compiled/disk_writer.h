/* A thread that makes durable writes, or writes zeros, one after the other, and that never takes the interpreter's lock.
 *
 * Writes are given and taken back by one thread; those that are over are told by way of an eventfd, which a loop can
 * wait for. A write belongs to its writer from `ms_writer_give` until `ms_writer_over` hands it back; what its vectors
 * point to stays where it is for so long. */
#ifndef MAINSTEM_DISK_WRITER_H
#define MAINSTEM_DISK_WRITER_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef RWF_DSYNC
#define RWF_DSYNC 0x00000002
#endif

#define MS_VECTORS_MAX 1024             /* the kernel's IOV_MAX: a vectored write of more buffers fails */
#define MS_VECTOR_BYTES_MAX ((size_t)1 << 30) /* a write of 2 GiB or more is cut short by the kernel */
#define MS_ZEROS_PIECE ((size_t)128 << 10) /* 20 us of copying, 0.3 ms where the memory has to be found first */
#define MS_SYNC_PIECE ((off_t)512 << 10) /* 20 us of the processor to hand to the disk */
#define MS_STRETCH_NANOSECONDS 50000 /* of the processor, between two rests: others wait for it, and for a piece */
#define MS_REST_NANOSECONDS 400000 /* so that a ninth of the processor is this thread's, where pieces are short */

struct ms_write {
    struct ms_write *next;
    int descriptor; /* below 0: there is nothing to do */
    int whole_file; /* what was written to the file before is made durable, too */
    off_t position;
    size_t zeros; /* above 0: so many are written in place of the vectors, without sync */
    size_t count;
    int error; /* of one that is over: 0, or the errno */
    long long nanoseconds; /* of one of zeros that is over: the processor time it took */
    struct iovec vectors[];
};

struct ms_writer {
    pthread_mutex_t lock;
    pthread_cond_t given_or_ends;
    struct ms_write *given, **last_given;
    struct ms_write *over, **last_over;
    int ends;
    int wake; /* the eventfd: readable when writes are over */
    long long zeros_nanoseconds; /* the processor time that zeros took, of writes that are over */
    int nice; /* added to the nice value of whoever starts the thread */
    char name[16];
    pthread_t thread;
    int runs;
};

static inline struct ms_write *ms_write_new(size_t count) {
    struct ms_write *write = malloc(sizeof *write + count * sizeof(struct iovec));
    if (write) {
        write->next = NULL;
        write->zeros = 0;
        write->count = count;
        write->error = 0;
        write->nanoseconds = 0;
    }
    return write;
}

/* Write all vectors, changing them. 0 or the errno. */
static int ms_write_all(int descriptor, off_t position, struct iovec *vectors, size_t count) {
    size_t first = 0;
    while (first < count) {
        if (!vectors[first].iov_len) {
            first++;
            continue;
        }
        size_t last = first, size = 0;
        while (last < count && last - first < MS_VECTORS_MAX && (last == first || size < MS_VECTOR_BYTES_MAX))
            size += vectors[last++].iov_len;
        ssize_t written = pwritev(descriptor, vectors + first, (int)(last - first), position);
        if (written < 0) {
            if (errno == EINTR) continue;
            return errno;
        }
        if (!written) return EIO; /* the disk took no byte */
        position += written;
        while (first < count && (size_t)written >= vectors[first].iov_len) written -= vectors[first++].iov_len;
        if (written) {
            vectors[first].iov_base = (char *)vectors[first].iov_base + written;
            vectors[first].iov_len -= (size_t)written;
        }
    }
    return 0;
}

/* Write vectors, changing them, each call up to the next multiple of `piece` in the file: how many bytes were written,
 * fewer than there are where a call was cut short or failed behind the first; -1 with errno where the first did. */
static ssize_t ms_write_pieces(int descriptor, off_t position, struct iovec *vectors, size_t count, size_t piece,
                               int flags) {
    size_t first = 0;
    ssize_t whole = 0;
    while (first < count) {
        size_t room = piece - (size_t)(position % (off_t)piece), last = first, size = 0, behind = 0;
        while (last < count && last - first < MS_VECTORS_MAX && size < room) size += vectors[last++].iov_len;
        if (size > room) { /* the rest of the last one is for the next call */
            behind = size - room;
            vectors[last - 1].iov_len -= behind;
            size = room;
        }
        ssize_t written = size ? pwritev2(descriptor, vectors + first, (int)(last - first), position, flags) : 0;
        if (written < 0) {
            if (errno == EINTR) written = 0;
            else if (whole) return whole;
            else return -1;
        }
        position += written;
        whole += written;
        if ((size_t)written < size) return whole;
        if (behind) {
            last--;
            vectors[last].iov_base = (char *)vectors[last].iov_base + vectors[last].iov_len;
            vectors[last].iov_len = behind;
        }
        first = last;
    }
    return whole;
}

/* Write zeros, a piece at a time, so that a thread that wants the processor waits for one piece. 0 or the errno. */
static int ms_write_zeros(int descriptor, off_t position, size_t count) {
    static const char zeros[MS_ZEROS_PIECE];
    while (count) {
        ssize_t written = pwrite(descriptor, zeros, count < sizeof zeros ? count : sizeof zeros, position);
        if (written < 0) {
            if (errno == EINTR) continue;
            return errno;
        }
        if (!written) return EIO; /* the disk took no byte */
        position += written;
        count -= (size_t)written;
        sched_yield(); /* else a thread that waits may do so for a tick, some milliseconds, however nice this one is */
    }
    return 0;
}

/* Write, and have the bytes on the disk, in one system call where that can be. 0 or the errno. */
static int ms_write_durably(struct ms_write *write) {
    size_t size = 0;
    for (size_t at = 0; at < write->count; at++) size += write->vectors[at].iov_len;
    if (!write->whole_file && size && write->count <= MS_VECTORS_MAX && size <= MS_VECTOR_BYTES_MAX) {
        ssize_t written = pwritev2(write->descriptor, write->vectors, (int)write->count, write->position, RWF_DSYNC);
        if (written == (ssize_t)size) return 0;
        /* cut short: all of it again; not known to this file system: in two steps */
        if (written < 0 && errno != EINTR && errno != EOPNOTSUPP && errno != EINVAL && errno != ENOSYS) return errno;
    }
    int error = ms_write_all(write->descriptor, write->position, write->vectors, write->count);
    if (error) return error;
    return fdatasync(write->descriptor) ? errno : 0;
}

static long long ms_thread_nanoseconds(void) {
    struct timespec taken;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &taken);
    return (long long)taken.tv_sec * 1000000000 + taken.tv_nsec;
}

/* Between two pieces of work: rest, if the thread has had the processor for a stretch since `began`. Whoever just gives
 * it up (sched_yield) gets it back at once as long as it has had less of it than those who wait: a thread that is seldom
 * busy would keep it for a millisecond and more. */
static void ms_rest(long long *began) {
    if (ms_thread_nanoseconds() - *began < MS_STRETCH_NANOSECONDS) return;
    struct timespec rest = {0, MS_REST_NANOSECONDS};
    nanosleep(&rest, NULL);
    *began = ms_thread_nanoseconds();
}

static int ms_write_make(struct ms_write *write) {
    if (write->descriptor < 0) return 0;
    if (write->zeros) {
        long long began = ms_thread_nanoseconds();
        int error = ms_write_zeros(write->descriptor, write->position, write->zeros);
        write->nanoseconds = ms_thread_nanoseconds() - began;
        return error;
    }
    return ms_write_durably(write);
}

static void *ms_writer_work(void *given) {
    struct ms_writer *writer = given;
    if (writer->nice) setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + writer->nice); /* of this thread alone */
    pthread_mutex_lock(&writer->lock);
    for (;;) {
        struct ms_write *write = writer->given;
        if (!write) {
            if (writer->ends) break;
            pthread_cond_wait(&writer->given_or_ends, &writer->lock);
            continue;
        }
        writer->given = write->next;
        if (!writer->given) writer->last_given = &writer->given;
        pthread_mutex_unlock(&writer->lock);
        write->next = NULL;
        write->error = ms_write_make(write);
        pthread_mutex_lock(&writer->lock);
        writer->zeros_nanoseconds += write->nanoseconds;
        int first = !writer->over;
        *writer->last_over = write;
        writer->last_over = &write->next;
        if (first) { /* the others are found with it */
            pthread_mutex_unlock(&writer->lock);
            while (eventfd_write(writer->wake, 1) < 0 && errno == EINTR) {}
            pthread_mutex_lock(&writer->lock);
        }
    }
    pthread_mutex_unlock(&writer->lock);
    return NULL;
}

/* A writer without a thread, which the first write starts; NULL with errno. */
static struct ms_writer *ms_writer_new(const char *name, int nice) {
    struct ms_writer *writer = calloc(1, sizeof *writer);
    if (!writer) {
        errno = ENOMEM;
        return NULL;
    }
    writer->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (writer->wake < 0) {
        int error = errno;
        free(writer);
        errno = error;
        return NULL;
    }
    writer->nice = nice;
    strncpy(writer->name, name, sizeof writer->name - 1);
    pthread_mutex_init(&writer->lock, NULL);
    pthread_cond_init(&writer->given_or_ends, NULL);
    writer->last_given = &writer->given;
    writer->last_over = &writer->over;
    return writer;
}

/* Signals stay those of the interpreter's threads. 0 or the error. */
static int ms_writer_start(struct ms_writer *writer) {
    if (writer->runs) return 0;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&writer->thread, NULL, ms_writer_work, writer);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) return error;
    pthread_setname_np(writer->thread, writer->name);
    writer->runs = 1;
    return 0;
}

static void ms_writer_give(struct ms_writer *writer, struct ms_write *write) {
    pthread_mutex_lock(&writer->lock);
    *writer->last_given = write;
    writer->last_given = &write->next;
    pthread_cond_signal(&writer->given_or_ends);
    pthread_mutex_unlock(&writer->lock);
}

/* The processor time that the zeros of all writes took that are over. */
static long long ms_writer_zeros_nanoseconds(struct ms_writer *writer) {
    pthread_mutex_lock(&writer->lock);
    long long taken = writer->zeros_nanoseconds;
    pthread_mutex_unlock(&writer->lock);
    return taken;
}

/* The writes that are over, in the order in which they were given. */
static struct ms_write *ms_writer_over(struct ms_writer *writer) {
    eventfd_t count;
    while (eventfd_read(writer->wake, &count) < 0 && errno == EINTR) {}
    pthread_mutex_lock(&writer->lock);
    struct ms_write *over = writer->over;
    writer->over = NULL;
    writer->last_over = &writer->over;
    pthread_mutex_unlock(&writer->lock);
    return over;
}

/* Return once all that was given is over, and the thread has ended. */
static void ms_writer_end(struct ms_writer *writer) {
    if (!writer->runs) return;
    pthread_mutex_lock(&writer->lock);
    writer->ends = 1;
    pthread_cond_signal(&writer->given_or_ends);
    pthread_mutex_unlock(&writer->lock);
    pthread_join(writer->thread, NULL);
    writer->runs = writer->ends = 0;
}

/* Of one that has ended and has handed back all writes. */
static void ms_writer_free(struct ms_writer *writer) {
    close(writer->wake);
    pthread_cond_destroy(&writer->given_or_ends);
    pthread_mutex_destroy(&writer->lock);
    free(writer);
}

/* Give what was written to a file to the disk, a piece at a time, and return once all of it is durable: a thread that
 * wants the processor waits for one piece. To sync a file with much that is not on the disk is milliseconds of work
 * otherwise, which Linux does not interrupt. 0 or the errno. */
static int ms_sync_in_pieces(int descriptor) {
#ifdef SYNC_FILE_RANGE_WRITE
    struct stat known;
    long long began = ms_thread_nanoseconds();
    if (!fstat(descriptor, &known)) {
        for (off_t position = 0; position < known.st_size; position += MS_SYNC_PIECE) {
            if (sync_file_range(descriptor, position, MS_SYNC_PIECE, SYNC_FILE_RANGE_WRITE)) break; /* not known here */
            ms_rest(&began);
        }
    }
#endif
    return fdatasync(descriptor) ? errno : 0;
}

/* Fill memory from a place of a file on, a piece at a time, up to the end of the file; how many bytes there were, or
 * -1 with errno. A piece that ends in mid-page is the last. */
static ssize_t ms_fill_pieces(int descriptor, char *memory, size_t size, off_t position, size_t piece, size_t page) {
    size_t filled = 0;
    long long began = ms_thread_nanoseconds();
    while (filled < size) {
        size_t wanted = size - filled < piece ? size - filled : piece;
        ssize_t count = pread(descriptor, memory + filled, wanted, position + (off_t)filled);
        if (count < 0) {
            if (errno == EINTR) continue;
            return -1;
        }
        filled += (size_t)count;
        if (!count || (size_t)count % page) break;
        if (filled < size) ms_rest(&began);
    }
    return (ssize_t)filled;
}

#endif
