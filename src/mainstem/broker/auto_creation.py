"""Topics that clients ask for and that are not there: made together, a bounded number, for those who still wait.

Clients ask again and again for what they are not told, and many ask for the same. So a name is made once whoever asks
for it, names that come while a change is under way are made together in the next one, and nobody waits long: as a rule
a topic is there within milliseconds, and who is told LEADER_NOT_AVAILABLE asks again. A name that nobody waits for any
more before its change begins is not made. Queues that a slow node or a missing leader keeps from being made hold up no
other creation: those in write groups without a leader are left to one task, and where it fails to the next leaders.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from mainstem.errors import LeaderMissing, MainstemError
from mainstem.model import NewTopic, QueueRange, Topic
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.ports import MetadataAdmin, QueueAdmin

NAMES_MAX = 10_000
"""Waiting to be made; more are refused for now. Ten times what the metadata takes in one change."""

NAMES_TOGETHER_MAX = 1_000
"""Made in one change of the metadata, which is one entry of its log."""

QUEUES_AT_ONCE_MAX = 8
"""Of so many changes the queues are made at a time, side by side: one that hangs is over in ten seconds. Those of
further changes are left to the task for what is late."""

TOPICS_PER_TURN = 20
"""Looked at between two turns of the event loop: about a millisecond."""

WAIT_SECONDS_MAX = 3.0
"""A client hears after this long that its topic is not there yet. Its other requests wait behind this one meanwhile."""

logger = logging.getLogger(__name__)

Outcome = Topic | MainstemError


class _Creation:
    """Of one name; `wanted_by` counts those who wait."""

    __slots__ = ("name", "settled", "wanted_by")

    def __init__(self, name: str) -> None:
        self.name = name
        self.wanted_by = 0
        self.settled: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()


class AutoCreation:
    """Of one node. `close` it before what it stands on."""

    def __init__(
        self,
        metadata_admin: MetadataAdmin,
        queue_admin: QueueAdmin,
        has_leaders: Callable[[Topic], bool],
        partitions: int,
        replication_factor: int,
    ) -> None:
        """`has_leaders`: whether every write group of a topic has one now, as far as this node knows. The numbers are
        those of topics that nobody gave any."""
        self._metadata_admin = metadata_admin
        self._queue_admin = queue_admin
        self._has_leaders = has_leaders
        self._partitions = partitions
        self._replication_factor = replication_factor
        self._creations: dict[str, _Creation] = {}
        self._waiting: deque[_Creation] = deque()
        self._change: asyncio.Task[None] | None = None
        """Of the metadata, one at a time: it takes one at a time, too."""
        self._queues: set[asyncio.Task[None]] = set()
        self._late: list[Topic] = []
        """Made, but for some of their queues."""
        self._late_task: asyncio.Task[None] | None = None

    async def topics(self, names: Sequence[str]) -> dict[str, Outcome]:
        """Make topics of these names. What is not settled within a while, or is too much, is `MetadataUnavailable`;
        what waits for a leader `LeaderMissing`. Cancelled, it leaves what was begun to itself, and the rest undone."""
        outcomes: dict[str, Outcome] = {}
        wanted: list[_Creation] = []
        for name in names:
            creation = self._creations.get(name)
            if creation is None:
                if len(self._waiting) >= NAMES_MAX:
                    outcomes[name] = MetadataUnavailable("too many topics are being created; ask again")
                    continue
                creation = self._creations[name] = _Creation(name)
                self._waiting.append(creation)
            creation.wanted_by += 1
            wanted.append(creation)
        self._begin()
        try:
            if wanted:
                await asyncio.wait([creation.settled for creation in wanted], timeout=WAIT_SECONDS_MAX)
        finally:
            for creation in wanted:
                creation.wanted_by -= 1
        for creation in wanted:
            unsettled = MetadataUnavailable("the topic is being created; ask again")
            outcomes[creation.name] = creation.settled.result() if creation.settled.done() else unsettled
        return outcomes

    async def close(self) -> None:
        """End; what was not finished is left to the leaders of the write groups."""
        tasks = [task for task in (self._change, self._late_task, *self._queues) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # the metadata

    def _begin(self) -> None:
        if self._waiting and self._change is None:
            self._change = asyncio.get_running_loop().create_task(self._make_all(), name="auto-creation of topics")

    async def _make_all(self) -> None:
        """Until nobody waits."""
        try:
            while batch := self._next_batch():
                try:
                    await self._make(batch)
                except Exception:
                    logger.exception("topics could not be created")
                    self._fail(batch)
        finally:
            self._change = None

    def _next_batch(self) -> list[_Creation]:
        batch: list[_Creation] = []
        while self._waiting and len(batch) < NAMES_TOGETHER_MAX:
            creation = self._waiting.popleft()
            if creation.wanted_by:
                batch.append(creation)
            else:
                del self._creations[creation.name]
        return batch

    async def _make(self, batch: Sequence[_Creation]) -> None:
        wanted = [NewTopic(it.name, self._partitions, self._replication_factor, {}) for it in batch]
        made: Sequence[Outcome]
        try:
            made = await self._metadata_admin.create_topics(wanted)
        except MainstemError as refusal:
            made = [refusal] * len(batch)
        ready: list[tuple[_Creation, Topic]] = []
        for looked_at, (creation, topic) in enumerate(zip(batch, made, strict=True), 1):
            if not isinstance(topic, Topic):
                self._settle(creation, topic)
            elif len(self._queues) < QUEUES_AT_ONCE_MAX and self._has_leaders(topic):
                ready.append((creation, topic))
            else:
                self._settle(creation, LeaderMissing(f"topic {topic.name}: its queues wait for a leader"))
                self._make_late([topic])
            if looked_at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        if ready:
            task = asyncio.get_running_loop().create_task(self._make_queues(ready), name="queues of new topics")
            self._queues.add(task)
            task.add_done_callback(self._queues.discard)

    def _settle(self, creation: _Creation, outcome: Outcome) -> None:
        if not creation.settled.done():
            creation.settled.set_result(outcome)
            del self._creations[creation.name]

    def _fail(self, batch: Sequence[_Creation]) -> None:
        for creation in batch:
            self._settle(creation, MetadataUnavailable("the topic could not be created; ask again"))

    # the queues

    async def _make_queues(self, ready: Sequence[tuple[_Creation, Topic]]) -> None:
        topics = [topic for _, topic in ready]
        try:
            await self._queue_admin.create([QueueRange(it.number, 0, it.partitions) for it in topics])
        except LeaderMissing as missing:  # some of them wait for it, or all
            for creation, _ in ready:
                self._settle(creation, missing)
            self._make_late(topics)
        except Exception:
            logger.exception("queues of %d new topics could not be made", len(topics))
            self._fail([creation for creation, _ in ready])
        else:
            for creation, topic in ready:
                self._settle(creation, topic)

    def _make_late(self, topics: Sequence[Topic]) -> None:
        self._late += topics
        if self._late_task is None or self._late_task.done():
            work = self._keep_making()
            self._late_task = asyncio.get_running_loop().create_task(work, name="late queues of new topics")

    async def _keep_making(self) -> None:
        while self._late:
            topics, self._late = self._late, []
            try:
                await self._queue_admin.create([QueueRange(it.number, 0, it.partitions) for it in topics])
            except MainstemError as missing:
                logger.warning("queues of %d new topics are left to the next leaders: %s", len(topics), missing)
