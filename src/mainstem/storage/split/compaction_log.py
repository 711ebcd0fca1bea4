"""Shows splitters what to compact, and records what they compacted.

Nothing is given before the cluster's feature level allows files on levels, nor while a majority's clocks do not tell
the time: ages count from it. Internal topics are the logs of replicated machines, which take a skipped offset for a
lost one: they are *covered*, that is, no batch of them is left out, and are given only to those who know how to do
that.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy

from mainstem.kernel import crc32c
from mainstem.model import PARTITION_BITS, Topic, TopicSettings
from mainstem.rpc.messages.compact import CompactedFile, CompactionWork
from mainstem.rpc.messages.split import MergeWaits
from mainstem.storage.agreed_clock import AgreedClock
from mainstem.storage.compacting.compact_plan import Flags, Integers, QueueRows, Rules, RulesOf
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.queue_store.changes.compactions import CompactionRules
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.remote.shared_queue_store import SharedQueueStore
from mainstem.storage.split.earlier_splitters import has_joined, without_joined
from mainstem.storage.store_files.store_file import StoreFile

TOPICS_PER_TURN = 2_000
"""Topics looked at in one turn of the event loop: about a millisecond."""

COMPACT = "compact"

WAIT_MS_MIN = 24 * 3_600_000
"""Files that small queues share are written again for a small part of them once a day at the most."""

NEVER_MS = (1 << 63) - 1

NOT_COMPACTED = TopicSettings()


class OfferedPass(NamedTuple):
    """A pass as it is given to a splitter."""

    work: CompactionWork
    queues: QueueRows | None = None


class LocalCompactionLog:
    """`CompactionLog` over this node's queue store."""

    def __init__(
        self,
        store: QueueStore | SharedQueueStore,
        groups: int,
        bounds_in: Callable[[int, QueueIds], tuple[Integers, Integers]],
        topics: Callable[[], Iterable[Topic]],
        allowed: Callable[[], bool],
        clock: AgreedClock,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
        joins: Callable[[], bool] = lambda: False,
        returned: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        """`bounds_in` says which offsets of queues a write group has; `allowed`: merged files may be written; `joins`:
        queue segments are to be one file each; `returned`: the queues that were in a write group twice."""
        self._store = store
        self._groups = groups
        self._bounds_in = bounds_in
        self._topics = topics
        self._allowed = allowed
        self._clock = clock
        self._new_id = new_id
        self._joins = joins
        self._returned = returned

    def grow(self, groups: int) -> None:
        """From now on there are so many write groups."""
        self._groups = groups

    async def work(
        self, in_force: Callable[[], bool], *, drain: bool, covers: bool = True, joins: bool = True
    ) -> OfferedPass:
        self._store.merges.give_up()
        time = self._clock.now()
        if not self._allowed() or time is None:
            return OfferedPass(CompactionWork())
        rules = await self._rules(covers=covers)
        pass_id = self._new_id().hex
        left: set[int] = set()
        """Write groups that have a pass which whoever asks cannot do: `begin` comes to the others first."""
        while True:
            begun, more = await self._store.compactions.begin(
                pass_id, self._groups, rules, time.earliest, in_force, drain=drain
            )
            if begun is None or joins or not has_joined(begun.inputs):
                break
            self._store.merges.end(pass_id)
            if begun.group in left:
                raise without_joined("compact", left)
            left.add(begun.group)
        if begun is None and left and not more:
            raise without_joined("compact", left)
        if begun is None:
            return OfferedPass(CompactionWork(more=more))
        work = CompactionWork(
            pass_id=pass_id,
            more=more,
            group=begun.group,
            began_ms=begun.began_ms,
            inputs=tuple(file.message() for file in begun.inputs),
            crc=crc32c(begun.queues.tobytes()),
            covered=tuple(sorted(begun.covered)),
            joined=self._joins(),
        )
        return OfferedPass(work, begun.queues)

    async def waits(self) -> MergeWaits:
        """How much the next pass would take, as far as files could be looked at in some seconds."""
        time = self._clock.now()
        if not self._allowed() or time is None:
            return MergeWaits(0)
        return await self._store.compactions.waits(self._groups, await self._rules(covers=True), time.earliest)

    async def record(self, pass_id: str, files: Sequence[CompactedFile]) -> str:
        outputs = {file.name: list(map(StoreFile.of, file.outputs)) for file in files}
        try:
            await self._store.compactions.record(pass_id, outputs)
        except (StorageError, OSError) as error:
            return f"refused: {error}"
        return "compacted"

    def _whole_in(self, group: int, queue_ids: QueueIds) -> Flags:
        firsts, ends = self._bounds_in(group, queue_ids)
        returned = numpy.array(sorted(self._returned()), numpy.uint64)  # some may have come back since the choice
        whole: Flags = (firsts == 0) & (ends == numpy.iinfo(numpy.int64).max) & ~numpy.isin(queue_ids, returned)
        return whole

    async def _rules(self, *, covers: bool) -> CompactionRules:
        found: dict[int, TopicSettings] = {}
        covered: set[int] = set()
        for looked_at, topic in enumerate(self._topics(), 1):
            if COMPACT in topic.settings.cleanup_policy and (covers or not topic.internal):
                found[topic.number] = topic.settings
                if topic.internal:
                    covered.add(topic.number)
            if looked_at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        return CompactionRules(frozenset(found), frozenset(covered), rules_of_topics(found, covered), self._whole_in)


def rules_of_topics(settings: Mapping[int, TopicSettings], internal: Collection[int]) -> RulesOf:
    """The rules of compacted topics, by their numbers. `internal`: those that their writers keep short, and that wait
    until it is worth it."""

    def wait_of(number: int) -> int:
        known = settings.get(number)
        return NEVER_MS if known is None or number in internal else max(known.segment_ms, WAIT_MS_MIN)

    def rules_of(queue_ids: QueueIds) -> Rules:
        numbers, which = numpy.unique(queue_ids >> numpy.uint64(PARTITION_BITS), return_inverse=True)
        known = [settings.get(number) for number in numbers.tolist()]
        found = [NOT_COMPACTED if one is None else one for one in known]
        return Rules(
            numpy.array([one is not None for one in known], numpy.bool_)[which],
            numpy.array([one.min_cleanable_dirty_ratio for one in found], numpy.float64)[which],
            numpy.array([one.min_compaction_lag_ms for one in found], numpy.int64)[which],
            numpy.array([one.max_compaction_lag_ms for one in found], numpy.int64)[which],
            numpy.array([one.delete_retention_ms for one in found], numpy.int64)[which],
            numpy.array(list(map(wait_of, numbers.tolist())), numpy.int64)[which],
        )

    return rules_of
