"""Says for how long runs of topics of the remote tier wait until they are merged, however few they are.

Runs do not move to the tier, and those of a write group that nobody writes to any more would wait for ever. They wait
for as long as a topic's messages stay on disk 2 anyway:

    local.retention.ms of the write group's topics in the tier, the least of them, but an hour or more
    a day, where none says less; and for runs of topics without the tier, which may be from before a topic asked for it

So a write group has one such merge in an hour at the most. The agreed clock gives the time, as it does for all that
goes by age: while it does not, only merges that are worth it for their size are made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import numpy

from mainstem.model import PARTITION_BITS, Topic
from mainstem.storage.agreed_clock import AgreedClock
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.merging.merge_lines import Integers
from mainstem.storage.queue_store.changes.aged_runs import AgedBefore, AgedOf, none_aged

AGE_MS_MIN = 3_600_000
"""Each merge by age leaves small files in the tier: in an hour, 24 of them a day and write group."""

AGE_MS_MAX = 24 * 3_600_000
"""A disk that is lost a day later loses nothing of the tier's topics that the tier has not, of small ones neither."""

TOPICS_PER_TURN = 5_000
"""Topics looked at in one turn of the event loop: about a millisecond."""

QUEUES_PER_TURN = 65_536
"""Queues whose write groups are looked up in one turn of the event loop: about a millisecond."""


class TierAges:
    """Of the write groups of one node."""

    def __init__(
        self,
        groups: int,
        groups_of: Callable[[QueueIds], Integers],
        topics: Callable[[], Iterable[Topic]],
        allowed: Callable[[], bool],
        clock: AgreedClock,
    ) -> None:
        """`groups_of` gives the write group of each queue; `allowed`: files may move to the tier."""
        self._groups = groups
        self._groups_of = groups_of
        self._topics = topics
        self._allowed = allowed
        self._clock = clock

    def grow(self, groups: int) -> None:
        """From now on there are so many write groups."""
        self._groups = groups

    async def aged(self) -> AgedOf:
        """The limits of each write group as of now."""
        time = self._clock.now()
        if time is None or not self._allowed():
            return none_aged
        waits = (await self._waits()).tolist()
        now_ms = time.earliest

        def aged_of(group: int) -> AgedBefore | None:
            wait_ms = waits[group] if group < len(waits) else 0  # the write group came since
            return AgedBefore(now_ms - wait_ms, now_ms - AGE_MS_MAX) if wait_ms else None

        return aged_of

    async def _waits(self) -> Integers:
        """Per write group for how long (ms) its runs wait; 0: for ever, as no topic of the tier has a queue in it."""
        waits = numpy.zeros(self._groups, numpy.int64)
        for wait_ms, topic in await self._asking():
            for first in range(0, topic.partitions, QUEUES_PER_TURN):
                if waits.all():
                    return waits  # all others wait for as long, or longer
                partitions = numpy.arange(first, min(first + QUEUES_PER_TURN, topic.partitions), dtype=numpy.uint64)
                groups = numpy.unique(self._groups_of(numpy.uint64(topic.number << PARTITION_BITS) | partitions))
                groups = groups[groups < len(waits)]  # without those that came meanwhile
                waits[groups] = numpy.where(waits[groups] == 0, wait_ms, waits[groups])
                await asyncio.sleep(0)
        return waits

    async def _asking(self) -> list[tuple[int, Topic]]:
        """The topics that are copied to the tier, those whose runs wait least first, and for how long (ms) they do."""
        found: list[tuple[int, Topic]] = []
        for looked_at, topic in enumerate(self._topics(), 1):
            settings = topic.settings
            if settings.remote_storage_enable and not settings.remote_log_copy_disable and not topic.internal:
                found.append((wait_of(settings.local_retention_ms), topic))
            if looked_at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        return sorted(found, key=lambda one: one[0])


def wait_of(local_retention_ms: int) -> int:
    """For how long (ms) runs of a topic with this `local.retention.ms` wait; a negative one says nothing."""
    return min(max(local_retention_ms, AGE_MS_MIN), AGE_MS_MAX) if local_retention_ms >= 0 else AGE_MS_MAX
