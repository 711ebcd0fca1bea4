/* See connection.h. Failures name the connection, what was in flight and the usual reason: brokers say
 * nothing, they close. */
#include "connection.h"

#include "clock.h"
#include "fail.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    PIECES_PER_SEND = 1024, /* UIO_MAXIOV: the kernel refuses more */
    ENCRYPTED_AT_ONCE = 64 << 10,
    UNNOTED_MAX = 64, /* Linux begins to note a moment after the machine's first socket has asked for it */
};

int connect_to(const char *address)
{
    char host[256];
    const char *colon = strrchr(address, ':');
    if (colon == NULL || colon == address || (size_t)(colon - address) >= sizeof host || colon[1] == '\0')
        fail("--address is HOST:PORT, not '%s'", address);
    size_t length = (size_t)(colon - address);
    memcpy(host, address, length);
    host[length] = '\0';
    char *name = host;
    if (host[0] == '[' && host[length - 1] == ']') {
        host[length - 1] = '\0';
        name = host + 1;
    }
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    int code = getaddrinfo(name, colon + 1, &hints, &found);
    if (code != 0)
        fail("%s: %s", address, gai_strerror(code));
    int connected = -1;
    int reason = 0;
    for (struct addrinfo *one = found; one != NULL && connected < 0; one = one->ai_next) {
        int candidate = socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol);
        if (candidate >= 0 && connect(candidate, one->ai_addr, one->ai_addrlen) == 0) {
            connected = candidate;
        } else {
            reason = errno;
            if (candidate >= 0)
                close(candidate);
        }
    }
    freeaddrinfo(found);
    if (connected < 0)
        fail("cannot connect to %s: %s", address, strerror(reason));
    int on = 1;
    setsockopt(connected, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return connected;
}

void connection_open(struct connection *connection, uint32_t number, const char *address, bool tls,
                     uint32_t in_flight_max, size_t receive_bytes)
{
    *connection = (struct connection){
        .socket = connect_to(address),
        .number = number,
        .address = address,
        .flights = allocate(in_flight_max, sizeof(struct flight)),
        .capacity = in_flight_max,
        .in = allocate(receive_bytes, 1),
        .in_capacity = receive_bytes,
        .woken_at = 1,
    };
    if (tls) {
        connection->tls = tls_open(connection->socket, address);
        connection->out = allocate(ENCRYPTED_AT_ONCE, 1);
    }
    fcntl(connection->socket, F_SETFL, fcntl(connection->socket, F_GETFL) | O_NONBLOCK);
}

void connection_note_times(struct connection *connection)
{
    assert(connection->tls == NULL);
    int on = 1;
    if (setsockopt(connection->socket, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on) != 0)
        fail("the kernel does not tell when bytes have come: %s", strerror(errno));
    connection->notes_times = true;
}

void connection_close(struct connection *connection)
{
    if (connection->tls != NULL)
        tls_close(connection->tls);
    close(connection->socket);
    free(connection->out);
    free(connection->flights);
    free(connection->in);
}

void connection_enqueue(struct connection *connection, const struct request *request, uint32_t work,
                        uint64_t since_ns)
{
    assert(connection_has_room(connection));
    struct flight *flight = &connection->flights[connection_position_next(connection)];
    flight->request = request;
    flight->since_ns = since_ns;
    flight->work = work;
    flight->correlation = connection->correlation_next;
    connection->correlation_next = (connection->correlation_next + 1) & INT32_MAX;
    uint8_t *at = flight->head;
    put_i32(&at, (int32_t)(REQUEST_HEAD_BYTES - 4 + request->bytes));
    put_i16(&at, request->api_key);
    put_i16(&at, request->api_version);
    put_i32(&at, flight->correlation);
    connection->count++;
}

static struct iovec piece_of(struct flight *flight, uint32_t piece)
{
    if (piece == 0)
        return (struct iovec){.iov_base = flight->head, .iov_len = REQUEST_HEAD_BYTES};
    return flight->request->pieces[piece - 1];
}

static struct flight *unwritten(const struct connection *connection, uint32_t behind)
{
    return &connection->flights[(connection->first + connection->written + behind) % connection->capacity];
}

/* Lists the pieces from the cursor on, at most PIECES_PER_SEND. */
static int gather(const struct connection *connection, struct iovec *pieces)
{
    int count = 0;
    uint32_t piece = connection->piece;
    for (uint32_t behind = 0; connection->written + behind < connection->count; behind++, piece = 0) {
        struct flight *flight = unwritten(connection, behind);
        for (; piece <= flight->request->piece_count && count < PIECES_PER_SEND; piece++)
            pieces[count++] = piece_of(flight, piece);
    }
    pieces[0].iov_base = (uint8_t *)pieces[0].iov_base + connection->piece_offset;
    pieces[0].iov_len -= connection->piece_offset;
    return count;
}

static void advance(struct connection *connection, size_t sent, uint64_t given_ns)
{
    while (sent > 0) {
        struct flight *flight = unwritten(connection, 0);
        size_t left = piece_of(flight, connection->piece).iov_len - connection->piece_offset;
        if (sent < left) {
            connection->piece_offset += sent;
            return;
        }
        sent -= left;
        connection->piece_offset = 0;
        if (++connection->piece > flight->request->piece_count) {
            connection->piece = 0;
            connection->written++;
            flight->given_ns = given_ns;
        }
    }
}

static _Noreturn void lost(const struct connection *connection, const char *how)
{
    uint32_t oldest = connection->count > 0 ? connection->flights[connection->first].request->bytes : 0;
    fail("connection %u to %s: %s after %llu answers with %u requests unanswered (the oldest of %u bytes). "
         "Kafka brokers close a connection without a word for a request they cannot parse, for one larger "
         "than socket.request.max.bytes, and for an error under acks=0; their log names the reason",
         connection->number, connection->address, how, (unsigned long long)connection->answers,
         connection->count, oldest + REQUEST_HEAD_BYTES);
}

/* The pieces in one stretch, as clients encrypt them, or a record would be made of each. */
static ssize_t send_encrypted(struct connection *connection, const struct iovec *pieces, int count)
{
    size_t bytes = 0;
    for (int piece = 0; piece < count && bytes < ENCRYPTED_AT_ONCE; piece++) {
        size_t left = ENCRYPTED_AT_ONCE - bytes;
        size_t some = pieces[piece].iov_len < left ? pieces[piece].iov_len : left;
        memcpy(connection->out + bytes, pieces[piece].iov_base, some);
        bytes += some;
    }
    return tls_write(connection->tls, connection->out, bytes);
}

static ssize_t send_pieces(struct connection *connection, struct iovec *pieces, int count)
{
    if (connection->tls != NULL)
        return send_encrypted(connection, pieces, count);
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)count};
    return sendmsg(connection->socket, &message, MSG_NOSIGNAL);
}

bool connection_write(struct connection *connection)
{
    struct iovec pieces[PIECES_PER_SEND];
    while (connection->written < connection->count) {
        int count = gather(connection, pieces);
        uint64_t given_ns = connection->notes_times ? wall_clock_ns() : 0;
        ssize_t sent = send_pieces(connection, pieces, count);
        if (sent == 0)
            lost(connection, "the broker closed it");
        if (sent < 0) {
            if (errno == EINTR)
                continue;
            if (errno == EAGAIN || errno == EWOULDBLOCK)
                return false;
            lost(connection,
                 errno == EPIPE || errno == ECONNRESET ? "the broker closed it" : strerror(errno));
        }
        advance(connection, (size_t)sent, given_ns);
    }
    return true;
}

static const struct flight *take_oldest(struct connection *connection)
{
    const struct flight *flight = &connection->flights[connection->first];
    connection->first = (connection->first + 1) % connection->capacity;
    connection->count--;
    connection->written--;
    return flight;
}

const struct flight *connection_answered(struct connection *connection, int32_t correlation)
{
    if (connection->written == 0)
        connection_broken(connection, "an answer came with no request in flight");
    if (connection->flights[connection->first].correlation != correlation)
        connection_broken(connection, "an answer has the correlation id of another request than the oldest");
    connection->answers++;
    return take_oldest(connection);
}

const struct flight *connection_forget(struct connection *connection)
{
    assert(connection->written > 0);
    return take_oldest(connection);
}

static ssize_t receive_noting(struct connection *connection, uint8_t *to, size_t bytes)
{
    struct iovec piece = {to, bytes};
    union {
        struct cmsghdr header; /* for its alignment */
        uint8_t bytes[CMSG_SPACE(sizeof(struct timespec))];
    } control;
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t received = recvmsg(connection->socket, &message, 0);
    struct cmsghdr *note = received > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (note != NULL && note->cmsg_level == SOL_SOCKET && note->cmsg_type == SCM_TIMESTAMPNS) {
        struct timespec came;
        memcpy(&came, CMSG_DATA(note), sizeof came);
        connection->came_ns = (uint64_t)came.tv_sec * SECOND_NS + (uint64_t)came.tv_nsec;
        connection->unnoted = UNNOTED_MAX;
    } else if (received > 0 && connection->unnoted < UNNOTED_MAX) {
        connection->came_ns = wall_clock_ns();
        connection->unnoted++;
    } else if (received > 0) {
        fail("connection %u to %s: the kernel does not tell when bytes have come", connection->number,
             connection->address);
    }
    return received;
}

static ssize_t receive_once(struct connection *connection, uint8_t *to, size_t bytes, int flags)
{
    if (connection->tls != NULL)
        return tls_read(connection->tls, to, bytes);
    if (connection->notes_times)
        return receive_noting(connection, to, bytes);
    return recv(connection->socket, to, bytes, flags);
}

/* The bytes of one receive, 0 when nothing has come. Fails when the broker has closed. */
static size_t receive(struct connection *connection, uint8_t *to, size_t bytes, int flags)
{
    for (;;) {
        ssize_t received = receive_once(connection, to, bytes, flags);
        if (received > 0)
            return (size_t)received;
        if (received == 0)
            lost(connection, "the broker closed it");
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        if (errno != EINTR)
            lost(connection, errno == ECONNRESET ? "the broker closed it" : strerror(errno));
    }
}

bool connection_receive(struct connection *connection)
{
    if (connection->in_begin == connection->in_end) {
        connection->in_begin = connection->in_end = 0;
    } else if (connection->in_begin > 0 &&
               connection->in_capacity - connection->in_end < connection->in_capacity / 2) {
        memmove(connection->in, connection->in + connection->in_begin,
                connection->in_end - connection->in_begin);
        connection->in_end -= connection->in_begin;
        connection->in_begin = 0;
    }
    if (connection->in_end == connection->in_capacity)
        connection_broken(connection, "an answer is larger than any that is due");
    size_t received = receive(connection, connection->in + connection->in_end,
                              connection->in_capacity - connection->in_end, 0);
    connection->in_end += received;
    return received > 0;
}

void connection_wake_at(struct connection *connection, uint32_t bytes)
{
    if (connection->tls != NULL || connection->woken_at == bytes)
        return;
    int least = (int)bytes;
    if (setsockopt(connection->socket, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) != 0)
        fail("the kernel does not wait for %d bytes: %s", least, strerror(errno));
    connection->woken_at = bytes;
}

size_t connection_discard(struct connection *connection, size_t bytes)
{
    /* MSG_TRUNC on a TCP socket: the bytes are taken off the stream, nothing is written to the buffer; which
     * is large enough all the same, for kernels that know better */
    size_t most = bytes < connection->in_capacity ? bytes : connection->in_capacity;
    return receive(connection, connection->in, most, MSG_TRUNC);
}

_Noreturn void connection_broken(const struct connection *connection, const char *what)
{
    fail("connection %u to %s: %s (after %llu answers)", connection->number, connection->address, what,
         (unsigned long long)connection->answers);
}
