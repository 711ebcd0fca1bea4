/* One non-blocking connection: requests go out in order, answers come back in the same order.
 *
 * A request is a read-only list of pieces that many connections may send at the same time; what differs from
 * sending to sending, the twelve bytes with the correlation id, lies in the connection's own ring of requests
 * in flight. So nothing is copied or patched, a short write is a cursor that stands still, and the requests
 * waiting on a connection leave in one system call. The ring, its bound and the receive buffer are made when
 * the connection is opened. */
#ifndef LOAD_CONNECTION_H
#define LOAD_CONNECTION_H

#include "tls.h"
#include "wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

struct request {
    const struct iovec *pieces; /* everything after the correlation id */
    uint32_t piece_count;
    uint32_t bytes; /* of all pieces */
    int16_t api_key;
    int16_t api_version;
};

struct flight {
    const struct request *request;
    uint64_t since_ns; /* when its latency began: sent, or scheduled to be */
    uint64_t given_ns; /* with kernel times: when the kernel was given its last byte, by the wall clock */
    uint32_t work;     /* which part of the load it is; the caller's */
    int32_t correlation;
    uint8_t head[REQUEST_HEAD_BYTES];
};

struct connection {
    int socket;
    struct tls *tls; /* NULL: bytes cross the socket as they are */
    uint8_t *out;    /* with TLS: what is encrypted next, gathered from the pieces */
    uint32_t number;
    const char *address;

    struct flight *flights; /* a ring: `count` from `first`, of which the first `written` are wholly sent */
    uint32_t capacity, first, count, written;
    uint32_t piece; /* the cursor: in the flight after the written ones, head = piece 0 */
    size_t piece_offset;
    int32_t correlation_next;
    bool waits_to_write; /* the socket is full; nothing is sent until it says otherwise */
    bool queued_to_write; /* is in its owner's list of connections to write */

    uint8_t *in;
    size_t in_capacity, in_begin, in_end;
    uint32_t woken_at; /* bytes that the kernel has before it tells of them */
    uint64_t answers;

    bool notes_times;    /* whether the kernel tells when bytes have come */
    uint64_t came_ns;    /* then: the last that were received, by the wall clock */
    uint32_t unnoted;    /* receives before the kernel began to note them, which count as noted by this client */
};

/* Connects (blocking; fails with a reason). Capacities: requests in flight; bytes of the receive buffer. */
void connection_open(struct connection *connection, uint32_t number, const char *address, bool tls,
                     uint32_t in_flight_max, size_t receive_bytes);
void connection_close(struct connection *connection);

/* A connected blocking socket to HOST:PORT or [IPv6]:PORT. */
int connect_to(const char *address);

static inline bool connection_has_room(const struct connection *connection)
{
    return connection->count < connection->capacity;
}

/* A connection with room, searched round robin from `next`, which moves on; NULL when none has any. */
static inline struct connection *connections_next_with_room(struct connection *connections, uint32_t count,
                                                            uint32_t *next)
{
    for (uint32_t tried = 0; tried < count; tried++) {
        struct connection *connection = &connections[*next];
        *next = *next + 1 == count ? 0 : *next + 1;
        if (connection_has_room(connection))
            return connection;
    }
    return NULL;
}

/* The ring position the next request will take, below `capacity`. */
static inline uint32_t connection_position_next(const struct connection *connection)
{
    return (connection->first + connection->count) % connection->capacity;
}

/* Has the kernel tell from now on when bytes have come. Not with TLS. */
void connection_note_times(struct connection *connection);

/* Puts a request in flight. There must be room. It is sent by the next connection_write. */
void connection_enqueue(struct connection *connection, const struct request *request, uint32_t work,
                        uint64_t since_ns);

/* Sends what waits, as far as the socket takes it. True when everything is sent, false when the socket is
 * full. */
bool connection_write(struct connection *connection);

/* Takes the oldest request in flight off the ring; `correlation` must be its. The flight is valid until the
 * next enqueue. */
const struct flight *connection_answered(struct connection *connection, int32_t correlation);

/* Takes the oldest off the ring although no answer comes (acks=0): it must be wholly sent. */
const struct flight *connection_forget(struct connection *connection);

/* One receive into the buffer behind what is unread there. False when nothing has come. */
bool connection_receive(struct connection *connection);

/* Has the kernel tell of bytes once it has so many (1: any). More than that must be due. Not with TLS. */
void connection_wake_at(struct connection *connection, uint32_t bytes);

/* Whether bytes have come that no event tells of: receive again. */
static inline bool connection_pending(const struct connection *connection)
{
    return connection->tls != NULL && tls_pending(connection->tls);
}

/* Receives and drops up to `bytes` bytes without copying them out of the kernel; how many. The receive buffer
 * must be empty: what is in it is lost. */
size_t connection_discard(struct connection *connection, size_t bytes);

/* Fails because the broker's bytes are not what the protocol says. */
_Noreturn void connection_broken(const struct connection *connection, const char *what);

#endif
