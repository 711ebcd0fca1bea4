"""The reports of nodes to each other: on their stores, as a node with another one than the others does not start, and
on the write groups that they lead."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from mainstem.nameserver.state.plans.drain_plan import left_on
from mainstem.node.node_reports import NodeReports, standings_of
from mainstem.node.storage_role.store_directory import StoreUnsupported
from mainstem.raft import Membership
from mainstem.raft.leader.progress import PeerView, SendState
from mainstem.rpc.errors import ConnectionLost
from mainstem.rpc.messages.cluster import REPORT, NodeReport
from mainstem.rpc.other_nodes import SingleCalls
from mainstem.rpc.wire.method import Method, Reply
from mainstem.storage.role import Storage


class Neighbours:
    """The calls to other nodes that keep these stores; None: the node does not answer."""

    def __init__(self, stores: dict[int, str | None]) -> None:
        self._stores = stores

    async def call(
        self, node_id: int, method: Method[Any, Any], request: Any, *, timeout_seconds: float
    ) -> Reply[NodeReport]:
        assert method is REPORT
        store = self._stores[node_id]
        if store is None:
            raise ConnectionLost("nobody there")
        return Reply(NodeReport("", 0.0, [], store=store))


class NoWriteGroups:
    """As much of a storage role as a report of a node that leads nothing takes."""

    groups = ()

    class rejoining:
        not_back = dict

    class waiting:
        reasons = dict


def check(own: str, others: dict[int, str | None]) -> None:
    calls = cast(SingleCalls, Neighbours(others))
    reports = NodeReports(1, cast(Storage, NoWriteGroups()), calls, own)
    asyncio.run(reports.check_stores([1, *others]))


@pytest.mark.parametrize("store", ["", "s3://bucket/x", "a shared directory"])
def test_nodes_with_the_same_store_are_a_cluster(store: str) -> None:
    check(store, {2: store, 3: None})


@pytest.mark.parametrize(
    ("own", "other", "told"),
    [
        ("", "s3://bucket/x", "node 3 keeps its queue store in s3://bucket/x, this node in a directory of its own"),
        ("s3://bucket/x", "", "node 3 keeps its queue store in a directory of its own, this node in s3://bucket/x"),
        ("s3://bucket/y", "s3://bucket/x", "in s3://bucket/x, this node in s3://bucket/y"),
    ],
)
def test_a_node_with_another_store_is_refused(own: str, other: str, told: str) -> None:
    with pytest.raises(StoreUnsupported, match=told):
        check(own, {2: own, 3: other})


def test_an_earlier_version_has_a_directory_of_its_own() -> None:
    assert NodeReport("", 0.0, []).store == ""


class Led:
    """A write group whose leader has just logged that learner 4 goes, which no majority has yet."""

    group = 0
    term = 1
    serving = True
    last_index = 9
    applied_index = 8
    leads = True
    committed_membership = Membership.of({1, 2, 3}, {4})

    @property
    def consensus(self) -> Led:
        return self

    def peers(self) -> list[PeerView]:
        return [PeerView(node_id, SendState.REPLICATE, 8, 10, True) for node_id in (2, 3)]


class WithWriteGroup(NoWriteGroups):
    groups = (Led(),)  # type: ignore[assignment]


def test_a_learner_whose_removal_is_not_committed_is_a_member() -> None:
    """The next leader may not have heard of the removal, and send the learner more."""
    (led,) = NodeReports(1, cast(Storage, WithWriteGroup()), None).own().led
    assert [(member.node, member.voter) for member in led.members] == [(1, True), (2, True), (3, True), (4, False)]
    standings = standings_of({0: led}, {})
    assert standings[0].members == {1, 2, 3, 4}
    assert left_on(4, {0: (1, 2, 3)}, standings) == [0], "a drained node that learns is not empty"
