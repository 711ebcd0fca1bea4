"""The steps of a node when it begins to lead a write group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast
from uuid import UUID

from tests.harness.patience import PATIENCE_SECONDS

from mainstem.model import Topic
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.node.storage_role.served_write_groups import ServedWriteGroups
from mainstem.storage.queues.queue_admin import LocalQueueAdmin

TOPIC = Topic(name="t", number=1, topic_id=UUID(int=1), partitions=1)


class Settling:
    """A node's queues, and metadata that is behind until it was brought up to date."""

    def __init__(self, unavailable: int = 0) -> None:
        self.topics = [TOPIC]
        self.settled: list[tuple[int, list[Topic]]] = []
        self.unavailable = unavailable
        self.served = ServedWriteGroups(lambda: self.topics, lambda number: False, self.current)
        self.queues = cast(LocalQueueAdmin, self)

    async def current(self) -> None:
        if self.unavailable:
            self.unavailable -= 1
            raise MetadataUnavailable("no leader is known")
        self.topics = []  # it was deleted while this node was away

    async def settle(self, group: int, topics: Iterable[Topic], was_deleted: Callable[[int], Any]) -> None:
        self.settled.append((group, list(topics)))


def test_queues_of_a_topic_that_was_deleted_while_the_node_was_away_do_not_come_back() -> None:
    async def story() -> None:
        node = Settling()
        node.served.changed(3, True)
        await node.served.settle(node.queues)
        assert node.settled == [(3, [])]

    asyncio.run(story())


def test_queues_are_settled_once_the_metadata_has_a_leader() -> None:
    async def story() -> None:
        node = Settling(unavailable=1)
        node.served.changed(3, True)
        running = asyncio.create_task(node.served.run(node.queues))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not node.settled:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.01)
        running.cancel()
        assert node.settled == [(3, [])]

    asyncio.run(story())
