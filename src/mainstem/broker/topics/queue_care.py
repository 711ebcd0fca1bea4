"""The nodes that serve a topic's queues make or delete those that the node which changed the topic has left
over.

A node that changes a topic changes its queues next, in all write groups (`topic_admin`). If it dies in between, the
queues would stay as they are until a write group changes its leader. So a while after a node has heard of a topic's
change, it checks those of the topic's queues that it serves. As a rule there is nothing to do.

Queues of deleted topics may also be left on a node although no leader has them: a node that starts applies the log's
commands about queues with metadata that may be old, while the leader knew of the deletion when it applied the same
commands, made no queues, and finds none to delete. So a node looks for such queues of its own a while after it began,
and after deletions, and asks the leaders to log the deletion behind the commands that made them. A node makes no
queues of topics that it knows to be deleted.

Queues may also lack on a node alone: their making stands in the log of one write group, and the leader of another has
them from there, and nothing to make, while a node that has only the other one hears of them never. So a node that has a
replica and not the queues asks the leaders to log the making, a while after it began and after it heard of the topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from mainstem.errors import MainstemError
from mainstem.model import QueueRange, Topic
from mainstem.ports import Clock, MessageStore, Metadata, QueueAdmin, QueueLeadership

GRACE_SECONDS = 15.0
"""Longer than a change of queues takes, elections included."""

TOPICS_MAX = 100_000
"""Topics looked after at a time. If there are more, the rest is left to the next leaders."""

LEFT_OVER_MAX = 1_000
"""Deleted topics that the leaders are asked about at a time: two blocks in each log. A node that lags far
behind finds many whose deletion is on its way to it, and asks in vain once in `GRACE_SECONDS`."""

QUEUES_PER_TURN = 1_000
"""Queues checked within one turn of the event loop: about a millisecond."""

logger = logging.getLogger(__name__)


class QueueCare:
    """Holds the topics to check. `changed` notes one; `run` checks them when they are due."""

    def __init__(
        self,
        metadata: Metadata,
        leadership: QueueLeadership,
        store: MessageStore,
        queue_admin: QueueAdmin,
        clock: Clock,
        left_over: Callable[[], Awaitable[Sequence[int]]],
        lacking: Callable[[Topic | None], Awaitable[Sequence[QueueRange]]],
    ) -> None:
        """`left_over` finds the deleted topics that have queues on this node, whichever node leads these; `lacking` the
        queues of one topic, or of all for None, that this node should have and has not."""
        self._metadata = metadata
        self._leadership = leadership
        self._store = store
        self._queue_admin = queue_admin
        self._clock = clock
        self._left_over = left_over
        self._lacking = lacking
        self._due: deque[tuple[float, Topic | None]] = deque()
        """When to check which topic, in order; None: look for all that are left over."""
        self._looks_for_left_over = False
        """Whether the search for left-over queues is among what is due."""
        self._wake = asyncio.Event()

    def changed(self, topic: Topic) -> None:
        """A topic was created, grew, or was deleted, on any node."""
        if len(self._due) < TOPICS_MAX:
            self._due.append((self._clock.monotonic() + GRACE_SECONDS, topic))
            self._wake.set()

    def _look_for_left_over(self) -> None:
        if not self._looks_for_left_over:
            self._looks_for_left_over = True
            self._due.append((self._clock.monotonic() + GRACE_SECONDS, None))

    async def run(self) -> None:
        """Check topics, until cancelled."""
        self._look_for_left_over()
        while True:
            while not self._due:
                self._wake.clear()
                await self._wake.wait()
            due, topic = self._due[0]
            wait_seconds = due - self._clock.monotonic()
            if wait_seconds > 0:
                await asyncio.sleep(wait_seconds)
                continue
            self._due.popleft()
            if topic is None:
                await self._look()
                continue
            try:
                await self._look_after(topic)
            except (MainstemError, OSError) as error:
                logger.warning("queues of topic %s: %s; tried again", topic.name, error)
                self.changed(topic)
            await asyncio.sleep(0)

    async def _look(self) -> None:
        """Ask again and again until no queue is left over, and none lacks: a write group may have no leader now."""
        self._looks_for_left_over = False
        lacking = (await self._lacking(None))[:LEFT_OVER_MAX]
        numbers = (await self._left_over())[:LEFT_OVER_MAX]
        if lacking or numbers:
            self._look_for_left_over()
        if lacking:
            logger.warning("queues of %d topics lack here, as of number %d", len(lacking), lacking[0].topic_number)
            try:
                await self._queue_admin.create(lacking)
            except (MainstemError, OSError) as error:
                logger.warning("queues of %d topics: %s; tried again", len(lacking), error)
        if not numbers:
            return
        logger.warning("%d deleted topics have queues left here, as topic number %d: they go", len(numbers), numbers[0])
        try:
            await self._queue_admin.delete(numbers)
        except (MainstemError, OSError) as error:
            logger.warning("queues of %d deleted topics: %s; tried again", len(numbers), error)

    async def _look_after(self, topic: Topic) -> None:
        known = self._metadata.topic(topic.name)
        if known is None or known.number != topic.number:
            self._look_for_left_over()
            if await self._any(topic, there=True):
                logger.warning("topic %s is deleted, and has queues left: they go", topic.name)
                await self._queue_admin.delete([topic.number])
        elif await self._any(known, there=False) or await self._lacking(known):
            logger.warning("topic %s lacks queues: they are made", topic.name)
            await self._queue_admin.create([QueueRange(known.number, 0, known.partitions)])

    async def _any(self, topic: Topic, *, there: bool) -> bool:
        """Whether any of the topic's queues whose write group this node leads exists (`there`), or is missing."""
        leadership = self._leadership
        for first in range(0, topic.partitions, QUEUES_PER_TURN):
            queue_ids = map(topic.queue_id, range(first, min(first + QUEUES_PER_TURN, topic.partitions)))
            served = [queue_id for queue_id in queue_ids if leadership.leads(leadership.group_of(queue_id))]
            if any((offsets is not None) is there for offsets in await self._store.offsets(served)):
                return True
            await asyncio.sleep(0)
        return False
