/* Waits for sockets and for the schedule.
 *
 * Sockets are level-triggered; writability is asked for only while a socket is full. The schedule needs
 * microseconds, epoll's timeout has milliseconds: a timerfd wakes shortly before a request is due and the
 * rest is spent polling. */
#ifndef LOAD_EVENT_LOOP_H
#define LOAD_EVENT_LOOP_H

#include "connection.h"

#include <stdint.h>
#include <sys/epoll.h>

enum { EVENTS_PER_WAIT = 256 };

struct event_loop {
    int epoll;
    int timer;
    uint64_t armed_ns; /* what the timer is set to, NEVER_NS for off */
    struct epoll_event events[EVENTS_PER_WAIT];
};

struct event {
    struct connection *connection;
    bool readable;
};

void event_loop_open(struct event_loop *loop);
void event_loop_add(struct event_loop *loop, struct connection *connection);

/* Sends what waits on the connection and sees to it that the rest is sent when the socket can take it. */
void event_loop_write(struct event_loop *loop, struct connection *connection);

/* Waits until a connection is ready, `due_ns` has come, or a tenth of a second is over. Returns the number of
 * events. */
int event_loop_wait(struct event_loop *loop, uint64_t now_ns, uint64_t due_ns);

/* Event `number` of the last wait. A full socket that can be written again has been written. `readable` is
 * false and the connection NULL for the timer. */
struct event event_loop_event(struct event_loop *loop, int number);

#endif
