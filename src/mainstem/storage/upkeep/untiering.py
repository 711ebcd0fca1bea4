"""Topics that gave up their remote tier lose what is there alone: with `remote.storage.enable=false` and
`remote.log.delete.on.disable=true` the log start of each of their queues moves to the first record that the leader's
own disks have.

The files in the tier go once nothing in them is live (`remote_retention.py`). The leader looks at a queue once in its
term, unless something could not be read; a topic that has had the tier again since is looked at anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from mainstem.kernel import COMMITTED_END, LOG_START, NO_SLOT, QueueTable
from mainstem.model import Topic
from mainstem.storage.errors import StorageError
from mainstem.storage.placement import Placement
from mainstem.storage.queues.queue_admin import LocalQueueAdmin
from mainstem.storage.upkeep.remote_files import RemoteFiles

log = logging.getLogger(__name__)

TOPICS_PER_TURN = 5_000
"""Topics looked at in one turn of the event loop: about a millisecond."""

SPANS_PER_TURN = 256
"""Spans searched for a queue in one turn of the event loop: some milliseconds."""

MOVES_AT_ONCE = 500
"""Log starts that are logged together."""

FirstHere = Callable[[int, int], Awaitable[int | None]]
"""(queue id, offset) → the offset itself if this node's own disks have it, else the next that they have; None: there is
none. Raises `StorageError`, OSError."""
LastThere = Callable[[int, int], Awaitable[int | None]]
"""(queue id, write group) → the last offset of a queue in the remote tier; None: it has none. Raises `StorageError`,
OSError."""


def gives_up(topic: Topic) -> bool:
    """Whether what a topic has in the tier alone is to go."""
    return not topic.settings.remote_storage_enable and topic.settings.remote_log_delete_on_disable


class Untiering:
    """Moves log starts of queues whose topics gave up their remote tier, in the write groups that this node leads."""

    def __init__(
        self,
        table: QueueTable,
        remote: RemoteFiles,
        placement: Placement,
        topics: Callable[[], Iterable[Topic]],
        terms: Callable[[], dict[int, int]],
        queues: LocalQueueAdmin,
        first_here: FirstHere,
        last_there: LastThere,
    ) -> None:
        """`terms`: the write groups that this node leads, each with its term."""
        self._table = table
        self._remote = remote
        self._placement = placement
        self._topics = topics
        self._terms = terms
        self._queues = queues
        self._first_here = first_here
        self._last_there = last_there
        self._done: dict[int, tuple[dict[int, int], dict[int, tuple[int, int]]]] = {}
        """By the topic's number, the terms in which all of its queues were looked at, and where slots had moved by
        then: queues that come later were not looked at here."""

    async def run(self) -> None:
        """One round over all topics."""
        if not len(self._remote.manifest.files):
            self._done.clear()
            return
        terms = self._terms()
        now = terms, dict(self._placement.placed)
        left: dict[int, Topic] = {}
        for looked_at, topic in enumerate(self._topics(), 1):
            if gives_up(topic):
                left[topic.number] = topic
            if looked_at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        self._done = {number: done for number, done in self._done.items() if number in left}
        for number, topic in left.items():
            if self._done.get(number) != now and await self._give_up(topic, terms):
                self._done[number] = now

    async def _give_up(self, topic: Topic, terms: dict[int, int]) -> bool:
        """Move the log starts of a topic's queues. False when something could not be read, or the topic has the tier
        again."""
        moves: dict[int, list[tuple[int, int]]] = {}
        moved, is_whole = 0, True
        for partition in range(topic.partitions):
            queue_id = topic.queue_id(partition)
            group = self._placement.group_of(queue_id)
            slot = self._table.find(queue_id)
            if group not in terms or slot == NO_SLOT:
                continue
            start, end = self._table.get(slot, LOG_START), self._table.get(slot, COMMITTED_END)
            if start >= end or not await self._may_be_remote(queue_id, start):
                continue
            try:
                first = await self._first_kept(queue_id, start, end)
            except (StorageError, OSError) as error:
                log.warning(
                    "topic %s, partition %d: its records in the remote tier stay: %s", topic.name, partition, error
                )
                is_whole = False
                continue
            if first > start:
                moves.setdefault(group, []).append((queue_id, first))
                moved += 1
                if moved % MOVES_AT_ONCE == 0:
                    if not await self._still_gives_up(topic):
                        return False
                    await self._queues.move_log_starts(moves)
                    moves = {}
        if moves:
            if not await self._still_gives_up(topic):
                return False
            await self._queues.move_log_starts(moves)
        if moved:
            log.info(
                "topic %s gave up its remote tier: %d of its partitions begin where disk 2 does", topic.name, moved
            )
        return is_whole

    async def _still_gives_up(self, topic: Topic) -> bool:
        """Whether a topic gives up its tier by its settings of now: to search all of its queues takes a while."""
        for looked_at, one in enumerate(self._topics(), 1):
            if one.number == topic.number:
                return gives_up(one)
            if looked_at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        return False

    async def _first_kept(self, queue_id: int, start: int, end: int) -> int:
        """The offset at which a queue begins without the tier. Raises `StorageError`, OSError."""
        first = await self._first_here(queue_id, start)
        if first is not None:
            return first
        groups = {stay.group for stay in self._placement.stays_from(queue_id, start)}
        lasts = [await self._last_there(queue_id, group) for group in sorted(groups)]
        return end if any(last is not None and last >= end - 1 for last in lasts) else start

    async def _may_be_remote(self, queue_id: int, start: int) -> bool:
        """Whether the tier may have something of a queue from an offset on, by the keys of its files."""
        for group in {stay.group for stay in self._placement.stays_from(queue_id, start)}:
            for looked_at, span in enumerate(self._remote.manifest.spans(group), 1):
                if any(True for _ in span.keyed(queue_id, 0)):
                    return True
                if looked_at % SPANS_PER_TURN == 0:
                    await asyncio.sleep(0)
        return False
