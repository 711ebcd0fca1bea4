"""Sends what the leaders of a node have gathered for followers that they do not count on, all write groups at once.

With three members a leader needs one of the two others for a majority. The third is sent every small block all the
same, but together with those of the next moment, of all write groups that this node leads: one delivery, one write and
one acknowledgement stand for what would have been some of each.

In between it looks every few ms whether a leader waits for the follower that it counts on. If so, the other one is sent
everything at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

STEP_SECONDS = 0.004
"""Between two looks. If the follower that a leader counts on stands still, its clients wait one to two of these for the
other one; it was 5 ms before anything was gathered (`raft_outbox.Bounds.waits_seconds`)."""

STEPS = 5
"""After so many of these all leaves: after 20 ms. With five hundred small requests a second to each node that is ten
blocks, and a tenth is left of what each by itself costs. Followers hear what is committed no more often than every
tenth of a second where there is little load, so that nobody counts on their being nearer."""


class WithheldEntries:
    """Looks from the first `note` on until every write group that was noted has sent its entries; on the event loop."""

    def __init__(self, send: Callable[[int, bool], bool]) -> None:
        """`send(group, late)` has a write group send what it withholds, unless it may wait for `late`; returns whether
        it withholds anything from then on."""
        self._send = send
        self._groups: set[int] = set()
        self._steps = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def note(self, group: int) -> None:
        """A write group withholds entries."""
        self._groups.add(group)
        if self._timer is None and not self._closed:
            self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(STEP_SECONDS, self._look)

    def _look(self) -> None:
        self._steps += 1
        late = self._steps >= STEPS
        groups, self._groups = self._groups, set()
        asked: set[int] = set()
        try:
            for group in groups:
                asked.add(group)
                if self._send(group, late):
                    self._groups.add(group)
        finally:  # whatever one of them met: it is reported, and the others do not wait for a heartbeat
            self._groups |= groups - asked
            if late or not self._groups:
                self._steps = 0
            self._timer = None
            if self._groups and not self._closed:
                self._wait()

    def close(self) -> None:
        """Send nothing any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
