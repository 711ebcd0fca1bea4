"""Sends what the leaders of a node have gathered for followers that they do not count on, all write groups at once.

With three members a leader needs one of the two others for a majority. The third is sent every small block all the
same, but together with those of the next moment, of all write groups that this node leads: one delivery, one write and
one acknowledgement stand for what would have been some of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

WITHHELD_SECONDS = 0.005
"""As long as acknowledgements wait (`raft_outbox.Bounds.waits_seconds`): with a thousand small requests a second to
each node that is five in a delivery. If the follower that a leader counts on stands still, its clients wait that much
longer for the other one."""


class WithheldEntries:
    """Waits from the first `note` on, then has every write group that was noted send its entries; on the event loop."""

    def __init__(self, send: Callable[[int], None]) -> None:
        """`send` has a write group send what it withholds, if it still does."""
        self._send = send
        self._groups: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def note(self, group: int) -> None:
        """A write group withholds entries."""
        self._groups.add(group)
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(WITHHELD_SECONDS, self._send_all)

    def _send_all(self) -> None:
        self._timer = None
        groups, self._groups = self._groups, set()
        for group in groups:
            self._send(group)

    def close(self) -> None:
        """Send nothing any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
