"""The reports of nodes to each other on their stores: a node with another one than the others does not start."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from mainstem.node.node_reports import NodeReports
from mainstem.node.storage_role.store_directory import StoreUnsupported
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
