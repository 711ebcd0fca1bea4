"""Which producers have expired: those that were last seen long ago by the agreed time and by this node's own uptime.

The time that a producer's state carries is that of the leader which took its batch, and in a cluster that does not
exchange its clocks yet, or of a node alone, the agreed time is that of one clock. Either may be years off, and whoever
forgets a producer by it takes the retry of a batch once more, or differs from the other replicas. So a clock does not
decide alone: from time to time this node notes up to which block each write group is applied. A producer has expired
only if its newest batch was applied here as long ago, by monotonic time, as producers are remembered.

The notes are not kept over a restart: producers then stay for as long again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from mainstem.ports import Clock
from mainstem.storage.agreed_clock import AgreedClock

NOTES_MAX = 16
"""Of each write group; so a producer may stay for a sixteenth of the time longer than it has to."""

FOREVER_MS = (1 << 63) - 1

NO_INDEX = -1


class Applied(Protocol):
    """What is asked of a write group."""

    @property
    def applied_index(self) -> int: ...


class Expired(NamedTuple):
    """A producer has expired that was last seen before a time (ms) and whose newest batch is in a block up to this."""

    before_ms: int
    up_to_index: int


NOBODY = Expired(-FOREVER_MS, NO_INDEX)


class ProducerExpiry:
    """Says who has expired; `look` is to be called again and again."""

    def __init__(
        self, clock: Clock, agreed_clock: AgreedClock, groups: Sequence[Applied], *, seconds: float
    ) -> None:
        self.seconds = seconds
        self._clock = clock
        self._agreed_clock = agreed_clock
        self._groups = groups
        self._notes: list[deque[tuple[float, int]]] = [deque() for _ in groups]
        """Of each write group: when, and what was applied then; oldest first."""

    def look(self) -> None:
        """Note what is applied now."""
        now = self._clock.monotonic()
        for group, notes in zip(self._groups, self._notes, strict=True):
            index = group.applied_index
            if notes and index < notes[-1][1]:
                notes.clear()  # the replica began anew: its blocks may have been numbered again
            while len(notes) > 1 and now - notes[1][0] >= self.seconds:
                notes.popleft()
            if not notes or now - notes[-1][0] >= self.seconds / NOTES_MAX:
                notes.append((now, index))

    def expired(self, number: int) -> Expired:
        """Of a write group. Nobody, while it is not known what time it is, or this node has not run for long."""
        time, now = self._agreed_clock.now(), self._clock.monotonic()
        seen = [index for at, index in self._notes[number] if now - at >= self.seconds]
        if time is None or not seen:
            return NOBODY
        return Expired(time.earliest - int(self.seconds * 1000), seen[-1])
