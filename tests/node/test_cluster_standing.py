"""The knowledge of a broker about moves of replicas, asked of the leaders of the write groups."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from mainstem.model import MoveUnderWay, Node, NodeRole
from mainstem.nameserver.nameserver import Nameserver
from mainstem.node.broker_role.cluster_standing import NodeClusterStanding
from mainstem.node.node_reports import NodeReports
from mainstem.rpc.errors import ConnectionLost
from mainstem.rpc.messages.cluster import (
    REPORT,
    TRANSFER_LEADER,
    LedWriteGroup,
    MemberState,
    NodeReport,
    TransferLeader,
    TransferRefused,
)
from mainstem.rpc.other_nodes import SingleCalls
from mainstem.rpc.wire.method import Method, Nothing, Reply


def led(group: int, *voters: int, learner: int = 0) -> LedWriteGroup:
    members = [MemberState(node_id, 5, True, True) for node_id in voters]
    members += [MemberState(learner, 1, True, False)] * bool(learner)
    return LedWriteGroup(group, 1, True, 5, 5, members)


class Leaders:
    """The calls to nodes that lead these write groups; None: the node does not answer."""

    def __init__(self, groups_of: dict[int, list[LedWriteGroup] | None]) -> None:
        self.groups_of = groups_of
        self.asked: list[int] = []

    async def call(
        self, node_id: int, method: Method[Any, Any], request: Any, *, timeout_seconds: float
    ) -> Reply[NodeReport]:
        assert method is REPORT
        self.asked.append(node_id)
        await asyncio.sleep(0)
        groups = self.groups_of[node_id]
        if groups is None:
            raise ConnectionLost("nobody there")
        return Reply(NodeReport("", 0.0, groups))


class OfThree:
    """A nameserver of a cluster in which node 1 stores nothing; write group 0 shall move from node 3 to node 4."""

    others: object | None = object()

    class registration:
        rpc = "two:9093"

    class lookups:
        @staticmethod
        def nodes() -> list[Node]:
            broker = Node(node_id=1, host="h", port=1, roles=frozenset({NodeRole.BROKER}))
            return [broker, *(Node(node_id=it, host="h", port=1) for it in (2, 3, 4))]

        @staticmethod
        def placements() -> dict[int, tuple[int, ...]]:
            return {0: (2, 4), 1: (2, 3), 2: (3, 4)}

        @staticmethod
        def registered(node_id: int) -> object:
            return OfThree.registration if node_id == 2 else None


def standing_over(leaders: Leaders, nameserver: object = OfThree) -> NodeClusterStanding:
    seconds = iter(range(1_000))
    reports = NodeReports(1, None, cast(SingleCalls, leaders))
    return NodeClusterStanding(cast(Nameserver, nameserver), reports, lambda group: 2, lambda: float(next(seconds)))


LEADING: dict[int, list[LedWriteGroup] | None] = {2: [led(0, 2, 3, learner=4)], 3: [led(1, 2, 3)], 4: None}


def test_moves_are_those_of_which_the_leaders_tell() -> None:
    leaders = Leaders(dict(LEADING))
    standing = standing_over(leaders)
    assert asyncio.run(standing.moves()) == [MoveUnderWay(0, 3, 4)]
    assert sorted(leaders.asked) == [2, 3, 4], "nodes that store"
    leaders.groups_of[2] = [led(0, 2, 4)]
    assert asyncio.run(standing.moves()) == []


def test_questions_that_come_together_share_the_next_look() -> None:
    leaders = Leaders(dict(LEADING))
    standing = standing_over(leaders)

    async def all_at_once() -> None:
        answers = await asyncio.gather(*(standing.moves() for _ in range(20)))
        assert answers == [[MoveUnderWay(0, 3, 4)]] * 20

    asyncio.run(all_at_once())
    assert len(leaders.asked) == 2 * 3, "one look, and one for all who came while it was under way"


def test_a_node_alone_moves_nothing() -> None:
    class Alone(OfThree):
        others = None

    leaders = Leaders({})
    assert asyncio.run(standing_over(leaders, Alone).moves()) == ()
    assert leaders.asked == []


def test_nodes_have_the_addresses_that_they_registered() -> None:
    standing = standing_over(Leaders({}))
    assert standing.address(2) == ("two", 9093)
    assert standing.address(3) is None
    assert standing.placed(0) == (2, 4)
    assert standing.placed(9) == ()


class RefusingLeader:
    """Node 2, which leads all write groups and hands over none."""

    def __init__(self) -> None:
        self.asked: list[TransferLeader] = []

    async def call(
        self, node_id: int, method: Method[Any, Any], request: TransferLeader, *, timeout_seconds: float
    ) -> Reply[Nothing]:
        assert (node_id, method) == (2, TRANSFER_LEADER)
        self.asked.append(request)
        raise TransferRefused("it is silent")


def test_the_leader_hands_over_to_a_node_that_is_close_behind_or_says_why_not() -> None:
    class Counted(OfThree.lookups):
        @staticmethod
        def write_groups() -> int:
            return 3

    class Counting(OfThree):
        lookups = Counted

    leader = RefusingLeader()
    standing = standing_over(cast(Leaders, leader), Counting)
    with pytest.raises(TransferRefused, match="it is silent"):
        asyncio.run(standing.lead(1, 3))
    with pytest.raises(TransferRefused, match="there is no write group 3"):
        asyncio.run(standing.lead(3, 3))
    assert leader.asked == [TransferLeader(1, 3, close_behind=True)]
