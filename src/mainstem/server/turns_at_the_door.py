"""Whose turn it is to bring batches to the store, where that has no room for all, or clients share it.

Mostly connections wait in the order of their coming until the store has room, and one goes on in each turn of the event
loop. While several tenants share the store, or a flood comes beside clients that bring little, connections wait in one
line per sharer (`Session.sharer`: a tenant, a principal, or the clients of an address that have one name), and:

* the sharer that has brought the fewest bytes comes next (`FairTurns`), for as long as one turn of the loop has for it;
* a light one, which has brought little since the store last had room for all, waits for nothing but its turn;
* one that brings little at a time does not even wait for that, and the turns of the others are put off once after it,
  so that its batches are written before theirs are appended;
* one that brings much leaves the next turn of the loop to its write: both together are what a light one waits for;
* a request takes its turn when it has come as a whole: until then it is read on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from mainstem.ports import Clock, Dispatcher
from mainstem.server.connection import Connection
from mainstem.server.fair_turns import SHARERS_KEPT_MAX, FairTurns

SHARED_TURNS_SECONDS = 0.0003
"""For which connections that take turns are served within one turn of the loop: one more may begin, and go on for
`DISPATCH_SECONDS_MAX`. A request of a megabyte takes about as long."""

LIGHT_BYTES_MAX = 64 * 1024
"""A sharer is let past a full store until it has brought so much since the store last had room for all: the requests of
one that brings a few megabytes a second. A flood brings more in its first turn."""

PASSED_BYTES_MAX = 32 * 1024
"""A sharer that brings no more than this in `PASSED_SECONDS` does not wait for turns: three megabytes a second."""

PASSED_BYTES_MOST = 8 * PASSED_BYTES_MAX
"""By all sharers together: as many small requests as take a third of the node's time. With more sharers, those that
come last wait for their turns, so that a crowd of names is no way past them."""

PASSED_BYTES_LEAST = 2 * 1024
"""Counted for each time that one does not wait, however little it brings: sixteen small requests in `PASSED_SECONDS`,
less than half a millisecond of the node's work."""

PASSED_SECONDS = 0.01

SHARED_ROOM_SECONDS = 0.002
"""Between two looks whether the store has written enough for the next turn of those that share it."""


class TurnsAtTheDoor:
    """The turns of all connections of a server."""

    def __init__(self, clock: Clock, dispatcher: Callable[[], Dispatcher]) -> None:
        self._clock = clock
        self._dispatcher = dispatcher
        self.waiting: FairTurns[Connection] = FairTurns()
        """Connections whose next request brings batches that the store has no room for, or that take turns with those
        of others."""
        self._due = False
        """Whether `_give` is scheduled."""
        self._light_due = False
        """Whether `_give_to_light` is scheduled."""
        self._brought: Counter[str] = Counter()
        """Bytes that each sharer has brought since the store last had room for all, or there were too many of them."""
        self._passed: Counter[str] = Counter()
        """Bytes that each sharer was let past with since a while."""
        self._passed_all = 0
        self._passed_until = 0.0
        """When they are counted anew."""
        self._gives_way = False
        """Whether the next turns are put off, since a connection was let past."""
        self._gave_way = False
        """Whether the last ones were: others are not put off twice."""
        self._brought_much = False
        """Whether the last turns were those of sharers that bring much, whose batches are not written yet."""

    def wait(self, connection: Connection) -> None:
        """Have a connection told when it is its turn to bring batches."""
        dispatcher = self._dispatcher()
        self.waiting.add(connection, connection.session.sharer)
        if not self._due:
            self._due = True
            if dispatcher.shared() and self._may_go_on():
                asyncio.get_running_loop().call_soon(self._give)
            else:
                dispatcher.tell_of_room(self._give)
        elif not self._light_due and dispatcher.shared() and self._is_light():
            self._light_due = True
            asyncio.get_running_loop().call_soon(self._give_to_light)

    def lets_past(self, connection: Connection, size_bytes: int, *, complete: bool) -> bool:
        """Whether a connection need not wait for its turn with the batches that have come: clients share the store, and
        its sharer brings little, or the request has not come as a whole."""
        dispatcher = self._dispatcher()
        if not dispatcher.shared():
            return False
        if not complete:
            return dispatcher.has_room()
        now, sharer = self._clock.monotonic(), connection.session.sharer
        if now >= self._passed_until:
            self._passed.clear()
            self._passed_all = 0
            self._passed_until = now + PASSED_SECONDS
        counted = max(size_bytes, PASSED_BYTES_LEAST)
        passed, brought = self._passed[sharer] + counted, self._brought[sharer] + size_bytes
        if passed > PASSED_BYTES_MAX or self._passed_all + counted > PASSED_BYTES_MOST or brought > LIGHT_BYTES_MAX:
            return False
        if not dispatcher.has_room(light=True):
            return False
        self._passed[sharer] = passed
        self._passed_all += counted
        self._bring(sharer, size_bytes)
        self._gives_way = not self._gave_way
        return True

    def _give(self) -> None:
        """There is room: let the connection go on whose turn it is, one in each turn of the loop; several where
        clients share it, whose connections come here with all that they bring."""
        waiting, dispatcher, loop = self.waiting, self._dispatcher(), asyncio.get_running_loop()
        shared = dispatcher.shared()
        self._gave_way, self._gives_way = self._gives_way, False
        if self._gave_way and waiting:  # what was let past is written first, by itself
            loop.call_soon(self._give)
            return
        rests, self._brought_much = self._brought_much, False
        if shared and rests:  # what was brought is written in this turn of the loop
            loop.call_soon(self._give)
            return
        if shared:
            self._give_shared()
        elif waiting:
            connection = waiting.take()  # it may come again
            size = connection.room_available()
            waiting.charge(connection.session.sharer, size)
        self._due = bool(waiting) or self._brought_much
        if self._brought_much or (waiting and dispatcher.has_room()):
            loop.call_soon(self._give)
        elif waiting and shared:  # the store has room, only not for so many
            loop.call_later(SHARED_ROOM_SECONDS, self._give)
        elif waiting:
            dispatcher.tell_of_room(self._give)

    def _give_to_light(self) -> None:
        """A light sharer waits for nothing but its turn, whatever others wait for."""
        self._light_due = False
        if self.waiting and self._dispatcher().shared() and self._is_light():
            self._give_shared()

    def _give_shared(self) -> None:
        """Let connections go on by turns for as long as one turn of the loop has for them, and as the store has room
        for the next."""
        waiting, dispatcher = self.waiting, self._dispatcher()
        until = self._clock.monotonic() + SHARED_TURNS_SECONDS
        while waiting and self._may_go_on():
            light = self._is_light()
            connection = waiting.take()  # it may come again
            size = connection.room_available(light)
            sharer = connection.session.sharer
            waiting.charge(sharer, size, taken_up=not dispatcher.has_room())
            self._bring(sharer, size)
            self._brought_much = size > LIGHT_BYTES_MAX
            if self._brought_much or self._clock.monotonic() >= until:
                return

    def _bring(self, sharer: str, size_bytes: int) -> None:
        if len(self._brought) >= SHARERS_KEPT_MAX:
            self._brought.clear()
        self._brought[sharer] += size_bytes

    def _is_light(self) -> bool:
        """Whether the sharer whose turn it is has brought little since the store had room for all."""
        return self._brought[self.waiting.next_sharer] < LIGHT_BYTES_MAX

    def _may_go_on(self) -> bool:
        """Whether the store has room for the sharer whose turn it is."""
        dispatcher = self._dispatcher()
        if dispatcher.has_room():
            self._brought.clear()
            return True
        return self._is_light() and dispatcher.has_room(light=True)
