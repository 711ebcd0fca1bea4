"""Changes of queues all over the cluster: asked of the leaders of write groups, again until they are made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import pytest
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.errors import LeaderUntold
from mainstem.model import QueueRange
from mainstem.rpc.errors import DeadlineExceeded
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.cluster import DELETE_QUEUES, DeleteQueues, WriteGroupsNotLed
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.method import Method, Nothing, Reply
from mainstem.storage.errors import ChangesFailed, NotTheLeader, StorageError
from mainstem.storage.queues.cluster_queue_admin import CHANGE_SECONDS_MAX, LEADER_KNOWN_SECONDS, ClusterQueueAdmin


class Queues:
    """The news that a node's groups were told."""

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
        self.hanging: set[int] = set()
        self.asked_of: list[tuple[int, tuple[int, ...], float]] = []
        """The actions of other nodes: which, in which groups, when."""
        self.leaders = dict.fromkeys(range(4), 1)
        self.believed: dict[int, int] = {}
        self.believed_until = 0.0
        """Until then this node takes the leaders in `believed` for those that lead."""
        self.admin = ClusterQueueAdmin(
            self.queues,  # type: ignore[arg-type]
            1,
            4,
            self.leader_of,
            self,
            asyncio.get_running_loop(),  # type: ignore[arg-type]
            deletion_known,
        )
        self.handlers = Handlers()
        self.admin.register(self.handlers)

    def leader_of(self, group: int) -> int:
        """The leader of a write group, as far as this node believes."""
        return self.leaders[group] if self.now >= self.believed_until else self.believed.get(group, self.leaders[group])

    async def call(self, node_id: int, method: Method[Any, Any], request: Any, *, timeout_seconds: float) -> Reply[Any]:
        if node_id in self.hanging:
            await asyncio.sleep(timeout_seconds)
            raise DeadlineExceeded("no answer")
        if any(self.leaders[group] != node_id for group in request.groups):
            raise WriteGroupsNotLed("another one leads")
        self.asked_of.append((node_id, tuple(request.groups), self.now))
        return Reply(Nothing())

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def asked(self, method: Method[Any, Any], request: Any) -> Reply[Any]:
        """By another node."""
        found = self.handlers.find(method.number)
        assert found is not None
        reply: Reply[Any] = await found.handler(RpcCall(request, b"", "node 2", Identity("c", 2, b"i" * 16)))
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
        with pytest.raises(WriteGroupsNotLed, match="has not heard of the deletion yet"):
            await node.asked(DELETE_QUEUES, request)
        assert node.queues.deleted == []
        asking = asyncio.ensure_future(node.asked(DELETE_QUEUES, request))
        await asyncio.sleep(1)
        assert not asking.done()
        heard.set()
        await asking
        assert node.queues.deleted == [((0, 1), (7,))]

    simulated(story)


ONE_IN_EACH = [QueueRange(number, 0, 1) for number in range(4)]


def test_a_group_without_a_leader_and_a_node_that_hangs_hold_up_themselves_alone() -> None:
    async def story() -> None:
        node = Node()
        node.leaders.update({1: 2, 2: 3, 3: -1})
        node.hanging.add(3)
        creating = asyncio.ensure_future(node.admin.create(ONE_IN_EACH))
        await asyncio.sleep(0.5)
        assert node.queues.created == [(0,)]
        assert node.asked_of == [(2, (1,), 0.0)]
        node.leaders[3] = 2  # while node 3 still hangs
        await asyncio.sleep(0.5)
        assert [(node_id, groups) for node_id, groups, _ in node.asked_of] == [(2, (1,)), (2, (3,))]
        assert not creating.done()
        node.leaders[2] = 1
        await creating
        assert node.queues.created == [(0,), (2,)]
        assert node.now < 4

    simulated(story)


def test_what_stays_without_a_leader_is_named_when_the_time_is_over() -> None:
    async def story() -> None:
        node = Node()
        node.leaders.update({1: -1, 2: 3})
        node.hanging.add(3)
        with pytest.raises(NotTheLeader, match=r"write groups \[1, 2\] could not be changed"):
            await node.admin.create(ONE_IN_EACH)
        assert node.queues.created == [(0, 3)]
        assert CHANGE_SECONDS_MAX <= node.now < CHANGE_SECONDS_MAX + 4

    simulated(story)


def test_a_deletion_is_left_to_the_next_leader_where_there_is_none() -> None:
    async def story() -> None:
        node = Node()
        node.leaders.update({1: 2, 3: -1})
        await node.admin.delete([7])
        assert node.queues.deleted == [((0, 2), (7,))]
        assert [(node_id, groups) for node_id, groups, _ in node.asked_of] == [(2, (1,))]
        assert LEADER_KNOWN_SECONDS <= node.now < LEADER_KNOWN_SECONDS + 1

    simulated(story)


def test_a_leader_that_a_node_does_not_know_of_yet_is_told_of_a_deletion() -> None:
    """It goes on serving what was committed in the topic otherwise, whoever was told that the topic is deleted."""

    async def story() -> None:
        node = Node()
        node.leaders = dict.fromkeys(range(4), 2)
        node.believed, node.believed_until = dict.fromkeys(range(4), -1), 1.0
        await node.admin.delete([7])
        assert [(node_id, groups) for node_id, groups, _ in node.asked_of] == [(2, (0, 1, 2, 3))]

    simulated(story)


def test_a_leader_that_could_not_be_told_of_a_deletion_is_told_apart() -> None:
    async def story() -> None:
        node = Node()
        node.leaders[1] = 2
        node.hanging.add(2)
        with pytest.raises(LeaderUntold, match=r"write groups \[1\]"):
            await node.admin.delete([7])
        assert node.queues.deleted == [((0, 2, 3), (7,))]

    simulated(story)


def test_where_one_leader_fails_the_others_finish() -> None:
    async def story() -> None:
        node = Node()
        node.leaders[1] = 2

        async def ended(groups: Collection[int], ranges: Sequence[QueueRange]) -> None:
            raise ChangesFailed({0: StorageError("this node has no part in it any more")})

        async def slow(*arguments: Any, **options: Any) -> Reply[Any]:
            await asyncio.sleep(1)
            return await Node.call(node, *arguments, **options)

        node.queues.create_in = ended  # type: ignore[method-assign]
        node.call = slow  # type: ignore[method-assign]
        with pytest.raises(ChangesFailed, match=r"write group 0: .* no part in it") as failure:
            await node.admin.create(ONE_IN_EACH)
        assert failure.value.groups == {0}
        assert [(node_id, groups) for node_id, groups, _ in node.asked_of] == [(2, (1,))], "it was not cancelled"

    simulated(story)


def test_a_refusal_by_who_leads_no_more_is_followed_to_the_next() -> None:
    async def story() -> None:
        node = Node()
        node.leaders[1] = 2
        node.believed, node.believed_until = {1: 3}, 1.0
        await node.admin.create(ONE_IN_EACH)
        assert node.queues.created == [(0, 2, 3)]
        assert [(node_id, groups) for node_id, groups, _ in node.asked_of] == [(2, (1,))]

    simulated(story)
