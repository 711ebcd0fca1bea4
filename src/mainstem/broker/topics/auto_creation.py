"""Creates missing topics that clients ask for: many together, in bounded numbers, and only while a client
waits.

Clients repeat a request until they learn of the topic, and many ask for the same. So a name is created once for all
that ask; names that come while a change is under way are created together in the next one; and no client waits long:
as a rule a topic exists within milliseconds, and a client that is told LEADER_NOT_AVAILABLE asks again. A name for
which no client waits any more before its change begins is dropped. Queues that wait for a slow node or a missing
leader hold up no other creation: those in write groups without a leader are left to one task, and where it fails to
the next leaders.
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
from mainstem.supervised import Errands, Supervision

NAMES_MAX = 10_000
"""Names that wait; more are refused for now. Ten times what the metadata takes in one change."""

NAMES_TOGETHER_MAX = 1_000
"""Topics created in one change of the metadata, which is one entry of its log."""

QUEUES_AT_ONCE_MAX = 8
"""Changes whose queues are made at a time, side by side: a change that hangs is over in ten seconds. The
queues of further changes are left to the task for late ones."""

TOPICS_PER_TURN = 20
"""Names checked within one turn of the event loop: about a millisecond."""

WAIT_SECONDS_MAX = 3.0
"""After this long a client hears that its topic does not exist yet. Its other requests wait behind this one
meanwhile."""

logger = logging.getLogger(__name__)

Outcome = Topic | MainstemError


class _Creation:
    """The creation of one name; `wanted_by` counts the requests that wait for it."""

    __slots__ = ("name", "settled", "wanted_by")

    def __init__(self, name: str) -> None:
        self.name = name
        self.wanted_by = 0
        self.settled: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()


class AutoCreation:
    """Holds the waiting names of one node. `close` it before the parts it uses."""

    def __init__(
        self,
        metadata_admin: MetadataAdmin,
        queue_admin: QueueAdmin,
        has_leaders: Callable[[Topic], bool],
        partitions: int,
        replication_factor: int,
        supervision: Supervision | None = None,
    ) -> None:
        """`has_leaders`: whether every write group of a topic has a leader now, as far as this node knows.
        The numbers are for topics created without numbers of their own."""
        self._metadata_admin = metadata_admin
        self._queue_admin = queue_admin
        self._has_leaders = has_leaders
        self.partitions = partitions
        self.replication_factor = replication_factor
        self._creations: dict[str, _Creation] = {}
        self._waiting: deque[_Creation] = deque()
        self._change: asyncio.Task[None] | None = None
        """The change of the metadata under way, one at a time: the metadata takes one at a time, too."""
        self._changes = Errands(supervision, "auto-creation of topics")
        self._queues = Errands(supervision, "queues of new topics")
        self._late: list[Topic] = []
        """Topics that are created, but for some of their queues."""
        self._late_makers = Errands(supervision, "late queues of new topics")

    async def topics(self, names: Sequence[str]) -> dict[str, Outcome]:
        """Create topics of these names. A name that is not settled within a while, or is one too many, gets
        `MetadataUnavailable`; one that waits for a leader `LeaderMissing`. If the call is cancelled, changes
        that were begun finish by themselves, and the rest is dropped."""
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

    @property
    def awaited(self) -> dict[str, int]:
        """Topics that are being created, or are about to be, and how many requests wait for each."""
        return {creation.name: creation.wanted_by for creation in self._creations.values()}

    async def close(self) -> None:
        """Stop; unfinished work is left to the leaders of the write groups."""
        for errands in (self._changes, self._queues, self._late_makers):
            errands.cancel()
        for errands in (self._changes, self._queues, self._late_makers):
            await errands.ended()

    # the metadata

    def _begin(self) -> None:
        if self._waiting and self._change is None:
            self._change = self._changes.start(self._make_all())

    async def _make_all(self) -> None:
        """Work until no request waits."""
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
        wanted = [NewTopic(it.name, self.partitions, self.replication_factor, {}) for it in batch]
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
            self._queues.start(self._make_queues(ready))

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
        except LeaderMissing as missing:  # some of the topics wait for a leader, or all
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
        if not self._late_makers:
            self._late_makers.start(self._keep_making())

    async def _keep_making(self) -> None:
        while self._late:
            topics, self._late = self._late, []
            try:
                await self._queue_admin.create([QueueRange(it.number, 0, it.partitions) for it in topics])
            except MainstemError as missing:
                logger.warning("queues of %d new topics are left to the next leaders: %s", len(topics), missing)
