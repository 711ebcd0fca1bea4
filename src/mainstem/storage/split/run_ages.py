"""Says for how long runs wait until they are merged, however few they are.

Neither the remote tier nor a compaction takes runs, and those of a write group that little is written to would wait
for ever. In a write group that has topics of the tier runs wait for as long as messages stay on disk 2 anyway:

    local.retention.ms of the write group's topics in the tier, the least of them, but an hour or more
    a day, where none says less; and for runs of topics without the tier, which may be from before a topic asked for it

Runs of compacted topics wait for as long as Kafka has a segment written to, which it does not compact:

    segment.ms or max.compaction.lag.ms of the write group's compacted topics, the least of them, but ten minutes or
    more
    as long, but a day or more, for runs of others, which may be from before a topic was compacted

Internal topics have no say: those who write them keep them short. The agreed clock gives the time, as it does for all
that goes by age: while it does not, only merges that are worth it for their size are made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import numpy

from mainstem.model import PARTITION_BITS, Topic, TopicSettings
from mainstem.storage.agreed_clock import AgreedClock
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.merging.merge_lines import Integers
from mainstem.storage.queue_store.changes.aged_runs import NEVER_AGED, AgedBefore, AgedOf, none_aged

AGE_MS_MIN = 3_600_000
"""Each merge by age leaves small files in the tier: in an hour, 24 of them a day and write group."""

AGE_MS_MAX = 24 * 3_600_000
"""A disk that is lost a day later loses nothing of the tier's topics that the tier has not, of small ones neither."""

COMPACTED_AGE_MS_MIN = 600_000
"""A node without a splitter looks for merges so often (`MERGE_LOOK_SECONDS`). The outputs of 64 such merges, which
lie side by side, are merged once more: every ten hours or so."""

TOPICS_PER_TURN = 5_000
"""Topics looked at in one turn of the event loop: about a millisecond."""

QUEUES_PER_TURN = 65_536
"""Queues whose write groups are looked up in one turn of the event loop: about a millisecond."""

COMPACT = "compact"

Asking = list[tuple[int, Topic]]
"""Topics, and for how long (ms) their runs wait at the most."""


class RunAges:
    """Of the write groups of one node."""

    def __init__(
        self,
        groups: int,
        groups_of: Callable[[QueueIds], Integers],
        topics: Callable[[], Iterable[Topic]],
        moves: Callable[[], bool],
        clock: AgreedClock,
    ) -> None:
        """`groups_of` gives the write groups in which these queues have records; `moves`: files may move to the
        tier."""
        self._groups = groups
        self._groups_of = groups_of
        self._topics = topics
        self._moves = moves
        self._clock = clock

    def grow(self, groups: int) -> None:
        """From now on there are so many write groups."""
        self._groups = groups

    async def aged(self) -> AgedOf:
        """The limits of each write group as of now."""
        time = self._clock.now()
        if time is None:
            return none_aged
        moving, compacted = await self._asking()
        for_tier = (await self._waits(moving)).tolist()
        for_compaction = (await self._waits(compacted)).tolist()
        now_ms = time.earliest

        def aged_of(group: int) -> AgedBefore | None:
            if group >= len(for_tier):  # the write group came since
                return None
            tier_ms, compaction_ms = for_tier[group], for_compaction[group]
            if tier_ms:
                return AgedBefore(
                    now_ms - tier_ms, now_ms - AGE_MS_MAX, now_ms - compaction_ms if compaction_ms else NEVER_AGED
                )
            if compaction_ms:
                others_ms = now_ms - max(compaction_ms, AGE_MS_MAX)
                return AgedBefore(others_ms, others_ms, now_ms - compaction_ms)
            return None

        return aged_of

    async def _waits(self, asking: Asking) -> Integers:
        """Per write group for how long (ms) its runs wait; 0: for ever, as none of these topics has a queue in it."""
        waits = numpy.zeros(self._groups, numpy.int64)
        for wait_ms, topic in sorted(asking, key=lambda one: one[0]):
            for first in range(0, topic.partitions, QUEUES_PER_TURN):
                if waits.all():
                    return waits  # all others wait for as long, or longer
                partitions = numpy.arange(first, min(first + QUEUES_PER_TURN, topic.partitions), dtype=numpy.uint64)
                groups = numpy.unique(self._groups_of(numpy.uint64(topic.number << PARTITION_BITS) | partitions))
                groups = groups[groups < len(waits)]  # without those that came meanwhile
                waits[groups] = numpy.where(waits[groups] == 0, wait_ms, waits[groups])
                await asyncio.sleep(0)
        return waits

    async def _asking(self) -> tuple[Asking, Asking]:
        """The topics that are copied to the tier, and those that are compacted."""
        moving: Asking = []
        compacted: Asking = []
        moves = self._moves()
        for looked_at, topic in enumerate(self._topics(), 1):
            settings = topic.settings
            if not topic.internal:
                if moves and settings.remote_storage_enable and not settings.remote_log_copy_disable:
                    moving.append((wait_of(settings.local_retention_ms), topic))
                if COMPACT in settings.cleanup_policy:
                    compacted.append((compacted_wait_of(settings), topic))
            if looked_at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        return moving, compacted


def wait_of(local_retention_ms: int) -> int:
    """For how long (ms) runs of a topic with this `local.retention.ms` wait; a negative one says nothing."""
    return min(max(local_retention_ms, AGE_MS_MIN), AGE_MS_MAX) if local_retention_ms >= 0 else AGE_MS_MAX


def compacted_wait_of(settings: TopicSettings) -> int:
    """For how long (ms) runs of a compacted topic with these settings wait."""
    return max(min(settings.segment_ms, settings.max_compaction_lag_ms), COMPACTED_AGE_MS_MIN)
