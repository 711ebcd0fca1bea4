"""Decides which producers have expired: those last seen long ago both by the agreed time and by this node's own uptime.

The time in a producer's state is that of the leader which took its batch, and in a cluster that does not exchange its
clocks yet, or on a node alone, the agreed time is that of one clock. Either may be years off, and a node that forgets a
producer too early appends the retry of a batch once more, or differs from the other replicas. So a clock does not
decide alone: from time to time this node notes up to which block each write group is applied. A producer has expired
only if its newest batch was applied here, by monotonic time, at least as long ago as producers are remembered.

The notes are not kept over a restart: producers then stay for as long again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from mainstem.ports import Clock
from mainstem.storage.agreed_clock import AgreedClock

NOTES_MAX = 16
"""Notes kept per write group; so a producer may stay for a sixteenth of the time longer than it has to."""

FOREVER_MS = (1 << 63) - 1

NO_INDEX = -1


class Applied(Protocol):
    """The part of a write group that this module reads."""

    @property
    def applied_index(self) -> int: ...


class Expired(NamedTuple):
    """The bounds of expiry: a producer has expired if it was last seen before this time (ms) and its newest batch is in
    a block up to this index."""

    before_ms: int
    up_to_index: int


NOBODY = Expired(-FOREVER_MS, NO_INDEX)


class ProducerExpiry:
    """Gives the bounds by which producers have expired; the maintenance calls `look` again and again."""

    def __init__(self, clock: Clock, agreed_clock: AgreedClock, groups: Sequence[Applied], *, seconds: float) -> None:
        self.seconds = seconds
        self._clock = clock
        self._agreed_clock = agreed_clock
        self._groups = groups
        self.notes: list[deque[tuple[float, int]]] = [deque() for _ in groups]
        """Per write group: (monotonic time, block applied by then), oldest first."""

    def grow(self) -> None:
        """There are more write groups than before."""
        self.notes += [deque() for _ in range(len(self.notes), len(self._groups))]

    def look(self) -> None:
        """Note up to which block each write group is applied now."""
        now = self._clock.monotonic()
        for group, notes in zip(self._groups, self.notes, strict=True):
            index = group.applied_index
            if notes and index < notes[-1][1]:
                notes.clear()  # the replica began anew: its blocks may have been numbered again
            while len(notes) > 1 and now - notes[1][0] >= self.seconds:
                notes.popleft()
            if not notes or now - notes[-1][0] >= self.seconds / NOTES_MAX:
                notes.append((now, index))

    def applied(self, number: int) -> int:
        """The last applied block of a write group."""
        return self._groups[number].applied_index

    def expired(self, number: int) -> Expired:
        """The bounds for a write group. No producer has expired while the agreed time is unknown, or this node has not
        run for long."""
        time, now = self._agreed_clock.now(), self._clock.monotonic()
        seen = [index for at, index in self.notes[number] if now - at >= self.seconds]
        if time is None or not seen:
            return NOBODY
        return Expired(time.earliest - int(self.seconds * 1000), seen[-1])
