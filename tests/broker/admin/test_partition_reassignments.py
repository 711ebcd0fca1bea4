"""ListPartitionReassignments against a fake cluster, in which every queue is a write group of its own."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.broker.admin.admin_broker import AdminBroker
from tests.fakes.standing import FakeStanding

from mainstem.broker.handlers import list_partition_reassignments
from mainstem.model import MoveUnderWay
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.protocol.encoded_array import elements
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.partition_reassignments import (
    ListedReassignmentTopic,
    ListPartitionReassignmentsRequest,
)

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
