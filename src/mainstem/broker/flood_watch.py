"""Finds out whether somebody floods the node beside others that bring little: then connections take turns at bringing
batches (`server/turns_at_the_door.py`), with tenants or without.

The watch counts what each connection brings in a tenth of a second. A flood is what brings much in all, and a
connection is light beside it that brings a small part of what the heaviest does, in two such windows in a row of those
in which it brings anything: one that has just begun, or ends, brings little in one. Equal connections are none of both,
however many they are and however much they bring: they wait for the store in the order of their coming, which costs
nothing.

A client that comes when a flood is there already would wait for that in what the flood has in the store. So there is
an early sign as well: beside a flood of the window before, a connection brings next to nothing in a fifth of a window.
Then turns are taken at once, but only for as long as it takes to find out.

A connection alone pays for an addition and two comparisons with each burst of requests.
"""

from __future__ import annotations

from collections.abc import Callable

from mainstem.ports import Brought

WINDOW_SECONDS = 0.1
"""Long enough for a client of large requests to bring about as much as its equals, and short beside the quarter of a
second for which a client waits that comes when a flood has filled the store."""

FLOOD_BYTES_PER_SECOND = 4 * 1024 * 1024
"""Connections that bring less in all keep nobody waiting: a disk takes it in a few milliseconds of each second."""

LIGHT_PART = 16
"""A light connection brings no more than one in so many bytes of the heaviest. Clients that do the same work differ by
less."""

LIGHT_WINDOWS = 2
"""In a row: a connection that has just begun, or ends, brings little in one."""

EARLY_SECONDS = WINDOW_SECONDS / 5
"""For which a connection has brought next to nothing, from its first request on, when turns are taken early. One that
does the same work as the heaviest brings a fifth of it meanwhile, and with a single request more than…"""

EARLY_PART = 64
"""…one byte in so many of what the heaviest brought in the window before."""

EARLY_SHARED_SECONDS = 0.5
"""For which connections take turns early: five windows, of which two in which a connection brings something are enough
to find it light."""

CONNECTIONS_WATCHED_MAX = 5_000
"""In one window, those that came first: half a millisecond to look at."""

SHARED_SECONDS = 60.0
"""For which connections take turns after a flood was last seen beside others, or another tenant produced than before:
one that produces now and then is not to wait behind what a flood has piled up since."""


class FloodWatch:
    """Watches the connections of one node."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._last: Brought | None = None
        """By whom batches came last."""
        self._window = 0
        self._began = self._ends = 0.0
        self._active: list[Brought] = []
        """Connections that have brought anything in this window."""
        self._shared_until = 0.0
        self._next_to_nothing = -1
        """Bytes in `EARLY_SECONDS` beside the heaviest connection of the window before; -1: there was no flood."""

    def note(self, brought: Brought, size_bytes: int) -> None:
        """A connection has brought requests of so many bytes."""
        if brought is not self._last:
            self._last = brought
            now = self._monotonic()
            if now >= self._ends:
                self._end_window(now)
            if self._next_to_nothing >= 0:
                self._look_early(brought, size_bytes, now)
        if brought.window != self._window:
            brought.window, brought.size_bytes = self._window, 0
            if len(self._active) < CONNECTIONS_WATCHED_MAX:
                self._active.append(brought)
        brought.size_bytes += size_bytes

    def share(self) -> None:
        """Connections take turns from now on for a while."""
        self._shared_until = self._monotonic() + SHARED_SECONDS

    def takes_turns(self) -> bool:
        """Whether connections take turns."""
        return bool(self._shared_until) and self._monotonic() < self._shared_until

    def _look_early(self, brought: Brought, size_bytes: int, now: float) -> None:
        if brought.window != self._window:
            brought.came_at = now
        elif brought.size_bytes + size_bytes <= self._next_to_nothing and now - brought.came_at >= EARLY_SECONDS:
            self._shared_until = max(self._shared_until, now + EARLY_SHARED_SECONDS)

    def _end_window(self, now: float) -> None:
        active = self._active
        most = max((brought.size_bytes for brought in active), default=0)
        self._next_to_nothing = -1
        if most and sum(brought.size_bytes for brought in active) >= FLOOD_BYTES_PER_SECOND * (now - self._began):
            if now < self._ends + WINDOW_SECONDS:  # else that flood is over
                self._next_to_nothing = most // EARLY_PART
            for brought in active:
                if LIGHT_PART * brought.size_bytes > most:
                    brought.light_windows = 0
                    continue
                brought.light_windows += 1
                if brought.light_windows >= LIGHT_WINDOWS:
                    self._shared_until = now + SHARED_SECONDS
        active.clear()
        self._window += 1
        self._began, self._ends = now, now + WINDOW_SECONDS
