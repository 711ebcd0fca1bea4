"""Finds the queues that bring most of a node's bytes, without counting any: one batch is looked at each so many bytes.

A queue's part of the samples is its part of the bytes, whatever its batches are like. The distance between two samples
follows the rate, so that about `SAMPLES_PER_SECOND` are taken at any load, and `SAMPLES_PER_LOOK_MAX` between two looks
at most: a block that has no sample costs one comparison. Weights halve in `HALF_SECONDS`, and there is a bound to their
number: a million queues cost as much as ten. Nothing is sampled as long as nobody looks.
"""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import numpy

from mainstem.model import Buffer
from mainstem.storage.journal.encoding.format import DIRECTORY_ROW

SAMPLES_PER_SECOND = 64.0
"""A sample costs 8 to 17 µs, so that all of them take a thousandth of a processor. A part of 0.3 is known to within
0.02 after a minute."""

SAMPLES_PER_LOOK_MAX = 256
"""Looks are a second apart. If the rate grows faster than that, the samples stop until the next one."""

STEP_BYTES_MIN = 4096
"""Of a node with next to no load: nearer samples tell nothing more."""

HALF_SECONDS = 60.0
"""Loads are smoothed over half a minute; parts of them need more samples than that brings."""

QUEUES_MAX = 4096
"""The lightest are forgotten: each has had one sample in some minutes. 400 KB."""

WEIGHT_MIN = 0.25
"""A queue is forgotten two halvings after its only sample."""

SAMPLES_MIN = 100.0
"""A write group with fewer does not tell which of its queues are busy."""

PART_MIN = 0.1
"""A queue with a smaller part of its write group is none that would be worth moving."""

BUSIEST_MAX = 4
"""Queues of a write group that are told."""


class QueuePart(NamedTuple):
    queue_id: int
    part: float
    """Of the bytes of its write group, 0 to 1."""


class BusyQueues:
    """Of one node: hears of each data block that is applied."""

    def __init__(self) -> None:
        self._left = math.inf
        """Bytes until the next sample."""
        self._step = 0.0
        """The mean distance between two samples."""
        self._random = random.Random(0)
        """Distances differ, or a load that repeats itself would show the same part of it again and again. Nobody has to
        be kept from foretelling them."""
        self._seen = 0
        """Bytes since the last look."""
        self._taken = 0
        """Samples since the last look."""
        self._looked_at: float | None = None
        self._weights: dict[int, dict[int, float]] = {}
        """By write group, of each queue that was sampled."""
        self._wholes: dict[int, float] = {}
        """By write group, of all its samples: those of queues that are forgotten count for the others' parts."""

    def applied(self, group: int, directory: Buffer, size: int) -> None:
        """A block with so many bytes of batches was applied."""
        self._seen += size
        if self._left >= size:
            self._left -= size
        else:
            self._sample(group, directory, size)

    def _sample(self, group: int, directory: Buffer, size: int) -> None:
        places: list[float] = []
        while self._left < size and self._taken < SAMPLES_PER_LOOK_MAX:
            places.append(self._left)
            self._left += 2 * self._step * self._random.random()
            self._taken += 1
        self._left = self._left - size if self._taken < SAMPLES_PER_LOOK_MAX else math.inf
        rows = numpy.frombuffer(directory, DIRECTORY_ROW)
        found = numpy.searchsorted(rows["length"].cumsum(dtype=numpy.int64), places, side="right")
        weights = self._weights.setdefault(group, {})
        for queue_id in rows["queue_id"][numpy.minimum(found, len(rows) - 1)].tolist():
            weights[queue_id] = weights.get(queue_id, 0.0) + 1.0
        self._wholes[group] = self._wholes.get(group, 0.0) + len(places)

    def look(self, now: float) -> None:
        """From now on samples are as near to each other as the rate since the last look asks for."""
        if self._looked_at is None:
            self._begin(now)
            return
        elapsed = now - self._looked_at
        if elapsed <= 0:
            return
        self._fade(0.5 ** (elapsed / HALF_SECONDS))
        self._step = max(float(STEP_BYTES_MIN), self._seen / elapsed / SAMPLES_PER_SECOND)
        self._left = min(self._left, self._step)
        self._begin(now)

    def _fade(self, kept: float) -> None:
        left = [
            (kept * weight, group, queue_id)
            for group, weights in self._weights.items()
            for queue_id, weight in weights.items()
            if kept * weight >= WEIGHT_MIN
        ]
        if len(left) > QUEUES_MAX:
            left = sorted(left, reverse=True)[:QUEUES_MAX]
        self._wholes = {group: kept * whole for group, whole in self._wholes.items() if kept * whole >= WEIGHT_MIN}
        self._weights = {}
        for weight, group, queue_id in left:
            self._weights.setdefault(group, {})[queue_id] = weight

    def _begin(self, now: float) -> None:
        self._looked_at, self._seen, self._taken = now, 0, 0
        if not self._step:
            self._step = self._left = float(STEP_BYTES_MIN)

    def busiest(self, group: int) -> list[QueuePart]:
        """The queues of a write group that bring much of what it takes in, the busiest first."""
        own, whole = self._weights.get(group, {}), self._wholes.get(group, 0.0)
        if whole < SAMPLES_MIN:
            return []
        found = [QueuePart(queue_id, weight / whole) for queue_id, weight in own.items() if weight >= PART_MIN * whole]
        return sorted(found, key=lambda it: (-it.part, it.queue_id))[:BUSIEST_MAX]
