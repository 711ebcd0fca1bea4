"""Queues that whoever made or deleted a topic did not come to make or delete: settled by those who serve them.

A node that changes a topic changes its queues next, in all write groups (`topics`). Should it die in between, nobody
would see to them before a write group changes its leader. So every node looks at a topic a while after it heard of its
change, at those of the queues that it serves itself. As a rule there is nothing to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from mainstem.errors import MainstemError
from mainstem.model import QueueRange, Topic
from mainstem.ports import Clock, Leadership, MessageStore, Metadata, QueueAdmin

GRACE_SECONDS = 15.0
"""Longer than a change of queues takes, elections included."""

TOPICS_MAX = 100_000
"""Looked after at a time. Should there be more, the rest is left to the next leaders."""

QUEUES_PER_TURN = 1_000
"""Looked at between two turns of the event loop: about a millisecond."""

logger = logging.getLogger(__name__)


class QueueCare:
    """Tell it of topics that `changed`; `run` looks after them."""

    def __init__(
        self,
        metadata: Metadata,
        leadership: Leadership,
        store: MessageStore,
        queue_admin: QueueAdmin,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._leadership = leadership
        self._store = store
        self._queue_admin = queue_admin
        self._clock = clock
        self._due: deque[tuple[float, Topic]] = deque()
        """When to look at which topic, in order."""
        self._wake = asyncio.Event()

    def changed(self, topic: Topic) -> None:
        """A topic was made, has grown, or was deleted, on whatever node."""
        if len(self._due) < TOPICS_MAX:
            self._due.append((self._clock.monotonic() + GRACE_SECONDS, topic))
            self._wake.set()

    async def run(self) -> None:
        """Look after topics, until cancelled."""
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
            try:
                await self._look_after(topic)
            except (MainstemError, OSError) as error:
                logger.warning("queues of topic %s: %s; tried again", topic.name, error)
                self.changed(topic)
            await asyncio.sleep(0)

    async def _look_after(self, topic: Topic) -> None:
        known = self._metadata.topic(topic.name)
        if known is None or known.number != topic.number:
            if await self._any(topic, there=True):
                logger.warning("topic %s is deleted, and has queues left: they go", topic.name)
                await self._queue_admin.delete([topic.number])
        elif await self._any(known, there=False):
            logger.warning("topic %s lacks queues: they are made", topic.name)
            await self._queue_admin.create([QueueRange(known.number, 0, known.partitions)])

    async def _any(self, topic: Topic, *, there: bool) -> bool:
        """Whether any of the topic's queues that this node serves is there, or is not."""
        leadership = self._leadership
        for first in range(0, topic.partitions, QUEUES_PER_TURN):
            queue_ids = map(topic.queue_id, range(first, min(first + QUEUES_PER_TURN, topic.partitions)))
            served = [queue_id for queue_id in queue_ids if leadership.serves(leadership.group_of(queue_id))]
            if any((offsets is not None) is there for offsets in self._store.offsets(served)):
                return True
            await asyncio.sleep(0)
        return False
