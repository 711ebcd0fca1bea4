"""Moves of replicas, listed and asked for, against a fake cluster in which every queue is a write group of its own."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.broker.admin.admin_broker import AdminBroker, versions_of
from tests.fakes.standing import FakeStanding

from mainstem.broker.handlers import alter_partition_reassignments, list_partition_reassignments
from mainstem.model import MoveUnderWay, Node, NodeRole
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.protocol.encoded_array import elements
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListedReassignmentTopic,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

Wanted = Mapping[tuple[str, int], tuple[int, ...] | None]
Moving = dict[tuple[str, int], tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]


class MovingBroker(AdminBroker):
    """Topics a and b of four partitions; of a-1 a replica moves from node 3 to 4, of b-0 and b-3 only a part of that is
    left to do."""

    def __init__(self) -> None:
        super().__init__()
        self.standing = self.broker.standing = FakeStanding()
        for name in ("a", "b"):
            self.create(name, 4)
        self.move("a", 1, (1, 2, 4), old=3, new=4)
        self.move("b", 0, (1, 2, 4), old=3, new=0)
        self.move("b", 3, (5, 1, 2), old=0, new=5)

    def move(self, name: str, partition: int, placed: tuple[int, ...], *, old: int, new: int) -> None:
        topic = self.metadata.topic(name)
        assert topic is not None
        group = topic.queue_id(partition)
        self.standing.replicas[group] = placed
        self.standing.under_way.append(MoveUnderWay(group, old, new))

    def alter(self, wanted: Wanted, version: int | None = None) -> AlterPartitionReassignmentsResponse:
        topics = tuple(
            ReassignableTopic(name=name, partitions=(ReassignablePartition(partition_index=index, replicas=replicas),))
            for (name, index), replicas in wanted.items()
        )
        request = AlterPartitionReassignmentsRequest(topics=topics)
        return self.ask(alter_partition_reassignments.handle, request, version)

    def refused(self, wanted: Wanted, version: int | None = None) -> dict[tuple[str, int], tuple[int, str | None]]:
        answer = self.alter(wanted, version)
        assert (answer.error_code, answer.allow_replication_factor_change) == (ErrorCode.NONE, True)
        return {
            (topic.name, it.partition_index): (it.error_code, it.error_message)
            for topic in answer.responses
            for it in topic.partitions
        }

    def listed(self, named: Mapping[str, tuple[int, ...]] | None) -> Moving:
        topics = None
        if named is not None:
            topics = tuple(ListedReassignmentTopic(name=name, partition_indexes=it) for name, it in named.items())
        answer = self.ask(list_partition_reassignments.handle, ListPartitionReassignmentsRequest(topics=topics))
        assert answer.error_code == ErrorCode.NONE
        return {
            (topic.name, it.partition_index): (it.replicas, it.adding_replicas, it.removing_replicas)
            for topic in elements(answer.topics)
            for it in elements(topic.partitions)
        }


ALL: Moving = {
    ("a", 1): ((1, 2, 4, 3), (4,), (3,)),
    ("b", 0): ((1, 2, 4, 3), (), (3,)),
    ("b", 3): ((5, 1, 2), (5,), ()),
}


def test_partitions_on_their_way_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MovingBroker().listed(None) == ALL
    monkeypatch.setattr(list_partition_reassignments, "PARTITIONS_PER_TURN", 3)
    assert MovingBroker().listed(None) == ALL, "in slices, too"


def test_only_partitions_that_are_named_are_listed() -> None:
    admin = MovingBroker()
    assert admin.listed({"b": (3, 3, 1, -1, 99), "nowhere": (0,)}) == {("b", 3): ALL["b", 3]}
    assert admin.listed({"a": (0,)}) == {}
    assert admin.listed({}) == {}


def test_several_replicas_of_a_write_group_may_be_on_their_way() -> None:
    admin = MovingBroker()
    admin.move("a", 1, (1, 4, 5), old=2, new=5)
    assert admin.listed({"a": (1,)}) == {("a", 1): ((1, 4, 5, 3, 2), (4, 5), (3, 2))}


def test_nothing_is_listed_where_nothing_moves_and_failures_are_told() -> None:
    admin = MovingBroker()
    admin.standing.under_way.clear()
    assert admin.listed(None) == {}
    admin.standing.refuse = MetadataUnavailable("no leader")
    answer = admin.ask(list_partition_reassignments.handle, ListPartitionReassignmentsRequest())
    assert (answer.error_code, answer.error_message) == (ErrorCode.NOT_CONTROLLER, "no leader")


# asked for

INVALID = ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize("version", versions_of(AlterPartitionReassignmentsRequest))
def test_no_partition_moves_by_itself_in_any_version(version: int) -> None:
    admin = MovingBroker()
    admin.metadata.nodes_known += [Node(node_id=it, host="h", port=it) for it in (2, 3, 4)]
    admin.metadata.nodes_known.append(Node(node_id=5, host="h", port=5, roles=frozenset({NodeRole.BROKER})))
    told = admin.refused(
        {
            ("a", 1): (1, 2, 4),
            ("b", 0): (1, 2, 3),
            ("b", 3): (1, 2, 5),
            ("a", 0): (1, 1),
            ("a", 2): (),
            ("a", 9): (1,),
            ("nowhere", 0): (1,),
        },
        version,
    )
    assert told["a", 1] == (ErrorCode.NONE, None), "it is so already"
    code, why = told["b", 0]
    assert code == INVALID
    assert why is not None
    assert "no partition moves by itself" in why
    assert "on nodes 1, 2, 4" in why
    assert "mainstem cluster rebalance" in why
    assert told["b", 3] == (INVALID, "node 5 is not registered in this cluster, or does not store")
    different = "replicas are on different nodes, and there is at least one"
    assert told["a", 0] == told["a", 2] == (INVALID, different)
    assert told["a", 9] == told["nowhere", 0] == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
    admin.standing.refuse = MetadataUnavailable("nobody is asked")
    assert admin.refused({("a", 1): (1, 2, 4)}, version) == {("a", 1): (ErrorCode.NONE, None)}


def test_moves_are_not_cancelled_by_partition() -> None:
    admin = MovingBroker()
    told = admin.refused({("a", 0): None, ("a", 1): None, ("b", 0): None, ("b", 3): None, ("b", 9): None})
    assert told["a", 0] == (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
    assert told["b", 9] == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
    for index, way in (
        (("a", 1), "moves from node 3 to node 4"),
        (("b", 0), "moves from node 3"),
        (("b", 3), "moves to"),
    ):
        code, why = told[index]
        assert code == ErrorCode.REASSIGNMENT_IN_PROGRESS
        assert why is not None
        assert way in why
        assert "mainstem cluster drain NODE --cancel" in why
    admin.standing.refuse = MetadataUnavailable("no leader")
    answer = admin.alter({("a", 0): None})
    assert (answer.error_code, answer.error_message) == (ErrorCode.NOT_CONTROLLER, "no leader")


def test_the_reason_is_told_once_of_partitions_that_share_a_write_group() -> None:
    admin = MovingBroker()
    topic = admin.metadata.topic("a")
    assert topic is not None
    shared = topic.queue_id(1)
    admin.leadership.group_of = lambda queue_id: shared  # type: ignore[method-assign]
    told = admin.refused({("a", 0): (1,), ("a", 1): None, ("a", 2): (1,), ("a", 3): None})
    assert [why is None for _, why in told.values()] == [False, False, True, True]
    assert [code for code, _ in told.values()] == [INVALID, ErrorCode.REASSIGNMENT_IN_PROGRESS] * 2
