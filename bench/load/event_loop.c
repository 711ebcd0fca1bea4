/* See event_loop.h. */
#include "event_loop.h"

#include "clock.h"
#include "fail.h"

#include <errno.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* Woken this much early: more than the wake-up of an idle processor takes, little enough to burn. */
#define POLL_NS 60000ULL

/* The longest sleep: intervals, deadlines and stalls are looked at this often. */
enum { SLEEP_MS_MAX = 100 };

void event_loop_open(struct event_loop *loop)
{
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    loop->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    loop->armed_ns = NEVER_NS;
    if (loop->epoll < 0 || loop->timer < 0)
        fail("no epoll or timer: %s", strerror(errno));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(loop->epoll, EPOLL_CTL_ADD, loop->timer, &event) != 0)
        fail("epoll refuses the timer: %s", strerror(errno));
}

static void watch(struct event_loop *loop, struct connection *connection, int operation)
{
    uint32_t events = connection->waits_to_write ? EPOLLIN | EPOLLOUT : EPOLLIN;
    struct epoll_event event = {.events = events, .data.ptr = connection};
    if (epoll_ctl(loop->epoll, operation, connection->socket, &event) != 0)
        fail("epoll refuses connection %u: %s", connection->number, strerror(errno));
}

void event_loop_add(struct event_loop *loop, struct connection *connection)
{
    watch(loop, connection, EPOLL_CTL_ADD);
}

void event_loop_write(struct event_loop *loop, struct connection *connection)
{
    bool full = !connection_write(connection);
    if (full != connection->waits_to_write) {
        connection->waits_to_write = full;
        watch(loop, connection, EPOLL_CTL_MOD);
    }
}

static void arm(struct event_loop *loop, uint64_t at_ns)
{
    if (at_ns == loop->armed_ns)
        return;
    struct itimerspec setting = {0}; /* all zero: off */
    if (at_ns != NEVER_NS) {
        setting.it_value.tv_sec = (time_t)(at_ns / SECOND_NS);
        setting.it_value.tv_nsec = (long)(at_ns % SECOND_NS);
    }
    timerfd_settime(loop->timer, TFD_TIMER_ABSTIME, &setting, NULL);
    loop->armed_ns = at_ns;
}

int event_loop_wait(struct event_loop *loop, uint64_t now_ns, uint64_t due_ns)
{
    int timeout_ms = SLEEP_MS_MAX;
    if (due_ns != NEVER_NS && due_ns <= now_ns + POLL_NS)
        timeout_ms = 0;
    else
        arm(loop, due_ns == NEVER_NS ? NEVER_NS : due_ns - POLL_NS);
    int count = epoll_wait(loop->epoll, loop->events, EVENTS_PER_WAIT, timeout_ms);
    if (count < 0 && errno != EINTR)
        fail("epoll: %s", strerror(errno));
    return count < 0 ? 0 : count;
}

struct event event_loop_event(struct event_loop *loop, int number)
{
    const struct epoll_event *event = &loop->events[number];
    struct connection *connection = event->data.ptr;
    if (connection == NULL) {
        uint64_t expirations;
        if (read(loop->timer, &expirations, sizeof expirations) == sizeof expirations)
            loop->armed_ns = NEVER_NS;
        return (struct event){0};
    }
    if (event->events & EPOLLOUT)
        event_loop_write(loop, connection);
    /* an error or a hang-up is found, and explained, by the receive */
    return (struct event){.connection = connection,
                          .readable = (event->events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0};
}
