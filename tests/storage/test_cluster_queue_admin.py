"""Changes of queues all over the cluster: asked of the leaders of write groups, again until they are made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import pytest
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.model import QueueRange
from mainstem.rpc.errors import CallFailed
from mainstem.rpc.handlers import Call, Handlers
from mainstem.rpc.identity import Identity
from mainstem.rpc.method import Method, Reply
from mainstem.rpc.queues import DELETE_QUEUES, DeleteQueues, GroupsNotLed
from mainstem.storage.cluster_queue_admin import ClusterQueueAdmin


class Queues:
    """What a node's groups were told."""

    def __init__(self) -> None:
        self.deleted: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.created: list[tuple[int, ...]] = []

    def groups_with(self, ranges: Sequence[QueueRange]) -> set[int]:
        return {one.topic_number % 4 for one in ranges}

    async def create_in(self, groups: Collection[int], ranges: Sequence[QueueRange]) -> None:
        self.created.append(tuple(sorted(groups)))

    async def delete_in(self, groups: Collection[int], topic_numbers: Sequence[int]) -> None:
        self.deleted.append((tuple(sorted(groups)), tuple(topic_numbers)))


class Node:
    def __init__(self, deletion_known: Callable[[Sequence[int]], Awaitable[None]] | None = None) -> None:
        self.queues = Queues()
        self.leaders = dict.fromkeys(range(4), 1)
        self.admin = ClusterQueueAdmin(
            self.queues,  # type: ignore[arg-type]
            1,
            4,
            self.leaders.__getitem__,
            self,
            asyncio.get_running_loop(),  # type: ignore[arg-type]
            deletion_known,
        )
        self.handlers = Handlers()
        self.admin.register(self.handlers)

    async def call(
        self, node_id: int, method: Method[Any, Any], request: Any, *, timeout_seconds: float
    ) -> Reply[Any]:
        raise CallFailed("nobody is there")

    async def asked(self, method: Method[Any, Any], request: Any) -> Reply[Any]:
        """By another node."""
        found = self.handlers.find(method.number)
        assert found is not None
        reply: Reply[Any] = await found.handler(Call(request, b"", "node 2", Identity("c", 2, b"i" * 16)))
        return reply


def simulated(story: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(story())  # type: ignore[arg-type]


def test_queues_go_when_this_node_has_heard_that_their_topics_are_deleted_and_not_before() -> None:
    async def story() -> None:
        heard = asyncio.Event()

        async def known(topic_numbers: Sequence[int]) -> None:
            assert topic_numbers == [7]
            await heard.wait()

        node = Node(known)
        request = DeleteQueues([0, 1], [7])
        with pytest.raises(GroupsNotLed, match="has not heard of the deletion yet"):
            await node.asked(DELETE_QUEUES, request)
        assert node.queues.deleted == []
        asking = asyncio.ensure_future(node.asked(DELETE_QUEUES, request))
        await asyncio.sleep(1)
        assert not asking.done()
        heard.set()
        await asking
        assert node.queues.deleted == [((0, 1), (7,))]

    simulated(story)
