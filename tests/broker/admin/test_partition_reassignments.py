"""Moves of replicas, listed and asked for, against a fake cluster in which every queue is a write group of its own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy
import pytest
from tests.broker.admin.admin_broker import AdminBroker, versions_of
from tests.fakes.cluster_admin import FakeClusterAdmin
from tests.fakes.queue_moves import FakeQueueMoves
from tests.fakes.standing import FakeStanding

from mainstem.broker.handlers import alter_partition_reassignments, list_partition_reassignments
from mainstem.model import FeatureLevel, MoveUnderWay, Node, NodeRole, slot_of
from mainstem.nameserver.errors import FeatureLevelTooLow, InvalidPlacement, MetadataUnavailable
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


class QueuesMoving(MovingBroker):
    """Topic q of eight partitions, all in write group 0 on nodes 1, 2, 3, where 1 shall lead. Write groups 1 and 2 are
    on the same nodes, as are 3 and 4 on others; 5 has one replica."""

    def __init__(self) -> None:
        super().__init__()
        self.moves = self.broker.queue_moves = FakeQueueMoves()
        self.moves.placed = {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2), 3: (2, 3, 4), 4: (3, 4, 2), 5: (4,)}
        self.metadata.nodes_known += [Node(node_id=it, host="h", port=it) for it in (2, 3, 4)]
        self.metadata.nodes_known.append(Node(node_id=5, host="h", port=5, roles=frozenset({NodeRole.BROKER})))
        self.create("q", 8)
        self.shared = {self.queue_id(it): 0 for it in range(8)}
        self.leadership.group_of = lambda queue_id: self.shared.get(queue_id, queue_id)  # type: ignore[method-assign]
        self.leadership.groups_of = lambda queue_ids: numpy.array(  # type: ignore[method-assign]
            [self.leadership.group_of(it) for it in queue_ids.tolist()], numpy.int64
        )

    def queue_id(self, partition: int) -> int:
        topic = self.metadata.topic("q")
        assert topic is not None
        return topic.queue_id(partition)

    def slot(self, partition: int) -> int:
        return slot_of(self.queue_id(partition))

    def told(self, partition: int, replicas: tuple[int, ...] | None, version: int | None = None) -> tuple[int, str]:
        """The answer about one partition of q."""
        code, why = self.refused({("q", partition): replicas}, version)["q", partition]
        return code, why or ""


@pytest.mark.parametrize("version", versions_of(AlterPartitionReassignmentsRequest))
def test_a_partition_moves_to_a_write_group_on_these_nodes(version: int) -> None:
    admin = QueuesMoving()
    told = admin.refused({("q", 0): (4, 2, 3), ("q", 1): (4,), ("q", 2): (2, 3, 4), ("q", 3): (1, 3, 2)}, version)
    assert set(told.values()) == {(ErrorCode.NONE, None)}
    assert admin.moves.begun == [("q", 0, 3), ("q", 1, 5), ("q", 2, 3)], "q-3 is there already"


def test_the_first_node_of_a_list_is_to_lead_where_a_write_group_has_it_so() -> None:
    admin = QueuesMoving()
    assert admin.told(0, (3, 2, 1)) == (ErrorCode.NONE, "")
    assert admin.told(1, (3, 2, 4)) == (ErrorCode.NONE, "")
    assert admin.moves.begun == [("q", 0, 2), ("q", 1, 4)]
    assert not admin.moves.asked_for_burdens, "there was nothing to choose"
    admin.moves.placed[2] = (1, 3, 2)
    assert admin.told(2, (3, 2, 1)) == (ErrorCode.NONE, ""), "nobody has node 3 lead: the present write group does"
    assert len(admin.moves.begun) == 2


def test_the_least_loaded_write_group_that_suits_takes_a_queue() -> None:
    admin = QueuesMoving()
    admin.moves.busy, admin.moves.queues = {0: 60.0, 3: 50.0, 4: 20.0}, 13  # ten bytes per second and queue
    wanted = {("q", it): (4, 3, 2) for it in range(8)}
    assert {code for code, _ in admin.refused(wanted).values()} == {ErrorCode.NONE}
    assert [group for _, _, group in admin.moves.begun] == [4, 4, 4, 3, 4, 3, 4, 3]
    assert admin.moves.asked_for_burdens == 1


def test_a_write_group_that_a_queue_has_left_lately_is_passed_over() -> None:
    admin = QueuesMoving()
    admin.moves.behind[admin.slot(0)] = (3,)
    assert admin.told(0, (2, 3, 4)) == (ErrorCode.NONE, "")
    assert admin.moves.begun == [("q", 0, 4)]
    admin.moves.behind[admin.slot(1)] = (3, 4)

    def refuse(topic: str, partition: int, group: int) -> None:
        raise InvalidPlacement("has been there before")

    admin.moves.refuse = refuse
    assert admin.told(1, (2, 3, 4)) == (INVALID, "has been there before")


@pytest.mark.parametrize("version", versions_of(AlterPartitionReassignmentsRequest))
def test_lists_that_no_write_group_has_are_refused_with_those_there_are(version: int) -> None:
    admin = QueuesMoving()
    code, why = admin.told(0, (4, 1), version)
    assert code == INVALID
    assert "on nodes 1, 4, and" in why
    assert "on nodes 1, 2, 3; 2, 3, 4; 4." in why
    assert "mainstem cluster write-groups TOTAL --replication-factor 2" in why
    assert why.endswith("None was made there: there are enough")
    assert admin.told(0, (1, 2, 5)) == (INVALID, "node 5 is not registered in this cluster, or does not store")
    different = (INVALID, "replicas are on different nodes, and there is at least one")
    assert admin.told(0, (1, 1)) == admin.told(0, ()) == different
    assert admin.told(8, (1,)) == admin.told(-1, (1,)) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
    assert admin.refused({("nowhere", 0): (1,)}) == {("nowhere", 0): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)}
    admin.moves.placed |= {group: (100 + group,) for group in range(6, 40)}
    assert "; and 27 more" in admin.told(0, (4, 1), version)[1]
    assert not admin.moves.begun


def test_write_groups_are_made_on_nodes_that_none_has_one_for_each_that_shall_lead() -> None:
    admin = QueuesMoving()
    admin.moves.makes = True
    told = admin.refused({("q", 0): (4, 1), ("q", 1): (1, 4), ("q", 2): (4, 1), ("q", 3): (4, 2, 1)})
    assert set(told.values()) == {(ErrorCode.NONE, None)}
    assert {group: admin.moves.placed[group] for group in (6, 7, 8)} == {6: (4, 1), 7: (1, 4), 8: (4, 1, 2)}
    assert admin.moves.begun == [("q", 0, 6), ("q", 1, 7), ("q", 2, 6), ("q", 3, 8)]
    assert admin.told(4, (1, 4)) == (ErrorCode.NONE, "")
    assert len(admin.moves.placed) == 9, "there is one by now"


def test_no_write_group_is_made_for_partitions_that_could_not_move_there(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = QueuesMoving()
    admin.broker.cluster_admin = changes = FakeClusterAdmin(FeatureLevel.UNPINNED)
    admin.moves.makes = True
    admin.create("kept", 1, configs={"cleanup.policy": "compact"})
    admin.create("aged", 1, configs={"cleanup.policy": "compact,delete"})
    admin.create("safe", 1, configs={"min.insync.replicas": "3"})
    told = admin.refused({("kept", 0): (4, 1), ("aged", 0): (4, 1), ("safe", 0): (4, 1)})
    assert [code for code, _ in told.values()] == [INVALID, INVALID, INVALID]
    assert [(why or "").partition("None was made there: ")[2] for _, why in told.values()] == [
        "queues with cleanup.policy=compact of kept move from feature level 23 on",
        "queues with cleanup.policy=compact,delete of aged move from feature level 22 on",
        "min.insync.replicas = 3 would refuse every batch with acks=all there",
    ]
    monkeypatch.setattr(alter_partition_reassignments, "GROUPS_MADE_MAX", 1)
    changes.feature_level = FeatureLevel.COMPACTED
    assert admin.refused({("kept", 0): (4, 1)})["kept", 0][0] == INVALID
    changes.feature_level = FeatureLevel.KEPT
    told = admin.refused({("kept", 0): (4, 1), ("aged", 0): (4, 1), ("q", 1): (4, 2)})
    assert [code for code, _ in told.values()] == [ErrorCode.NONE, ErrorCode.NONE, INVALID]
    assert "one request has 1 made at most" in (told["q", 1][1] or "")
    assert len(admin.moves.placed) == 7


def test_a_factor_changes_only_where_the_request_allows_that() -> None:
    admin = QueuesMoving()
    topics = tuple(
        ReassignableTopic(name="q", partitions=(ReassignablePartition(partition_index=index, replicas=replicas),))
        for index, replicas in ((0, (4,)), (1, (2, 3, 4)))
    )
    request = AlterPartitionReassignmentsRequest(topics=topics, allow_replication_factor_change=False)
    answer = admin.ask(alter_partition_reassignments.handle, request)
    assert not answer.allow_replication_factor_change
    (refused,), (moved,) = (topic.partitions for topic in answer.responses)
    assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "from 3 to 1" in (refused.error_message or "")
    assert moved.error_code == ErrorCode.NONE
    assert [partition for _, partition, _ in admin.moves.begun] == [1]
    admin.told(0, (4,), version=0)
    assert admin.moves.begun[-1] == ("q", 0, 5), "version 0 does not say, and allows it"


def test_the_reason_why_a_queue_cannot_move_is_passed_on_and_the_others_move() -> None:
    admin = QueuesMoving()

    def refuse(topic: str, partition: int, group: int) -> None:
        if partition == 0:
            raise InvalidPlacement("compacted topics do not move")
        if partition == 1:
            raise FeatureLevelTooLow("level 11")

    admin.moves.refuse = refuse
    told = admin.refused({("q", it): (4,) for it in range(3)})
    assert list(told.values()) == [
        (INVALID, "compacted topics do not move"), (ErrorCode.UNSUPPORTED_VERSION, "level 11"), (ErrorCode.NONE, None)
    ]  # fmt: skip

    def unavailable(topic: str, partition: int, group: int) -> None:
        raise MetadataUnavailable("no leader")

    admin.moves.refuse = unavailable
    answer = admin.alter({("q", 3): (4,)})
    assert (answer.error_code, answer.error_message) == (ErrorCode.NOT_CONTROLLER, "no leader"), "clients try again"


def test_partitions_of_one_slot_are_not_torn_apart() -> None:
    admin = QueuesMoving()
    admin.create("many", 5_000)
    many = admin.metadata.topic("many")
    assert many is not None
    twin = next(index for index in range(5_000) if slot_of(many.queue_id(index)) == admin.slot(0))
    admin.shared[many.queue_id(twin)] = 0
    first, second = ("many", twin), ("q", 0)
    together = admin.refused({first: (2, 3, 4), second: (2, 3, 4)})
    assert set(together.values()) == {(ErrorCode.NONE, None)}
    assert admin.moves.begun == [(*first, 3)]
    assert admin.moves.beside == [[first, second]], "both may have as few copies as that"
    for one, other in (((2, 3, 4), (4,)), ((2, 3, 4), (1, 2, 3)), ((1, 2, 3), (2, 3, 4))):
        told = admin.refused({first: one, second: other})
        assert told[first] == (ErrorCode.NONE, None)
        code, why = told[second]
        assert code == INVALID
        assert f"with many:{twin}, for which" in (why or "")


def test_a_queue_on_its_way_goes_on_and_is_listed() -> None:
    admin = QueuesMoving()
    admin.standing.under_way.clear()
    admin.moves.moving = {admin.slot(0): 3, admin.slot(1): 1}
    assert admin.listed(None) == {
        ("q", 0): ((2, 3, 4, 1), (4,), (1,)),
        ("q", 1): ((2, 3, 1), (), ()),
    }
    assert admin.listed({"q": (1, 2)}) == {("q", 1): ((2, 3, 1), (), ())}
    assert admin.told(0, (4, 2, 3)) == (ErrorCode.NONE, "")
    code, why = admin.told(0, (4,))
    assert code == ErrorCode.REASSIGNMENT_IN_PROGRESS
    assert "write group 3, on nodes 2, 3, 4" in why
    assert not admin.moves.begun


def test_a_move_that_has_not_begun_is_cancelled() -> None:
    admin = QueuesMoving()
    admin.moves.moving = {admin.slot(index): 3 for index in range(4)}
    admin.moves.late = {admin.slot(2)}
    assert admin.told(0, None) == (ErrorCode.NONE, "")
    assert admin.told(0, None) == (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "")
    assert admin.told(1, (3, 1, 2)) == (ErrorCode.NONE, ""), "the nodes where it is: it stays"
    assert admin.told(2, None) == (ErrorCode.REASSIGNMENT_IN_PROGRESS, "it is too late")
    assert admin.moves.moving.keys() == {admin.slot(2), admin.slot(3)}
    del admin.moves.moving[admin.slot(2)]
    admin.moves.late.clear()
    admin.moves.under_way = lambda: {admin.slot(2): 3}  # type: ignore[method-assign]
    assert admin.told(2, None) == (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "it is there"), "it arrived meanwhile"


def test_the_reason_is_told_once() -> None:
    admin = QueuesMoving()
    told = admin.refused({("q", 0): (1,), ("q", 1): (1,), ("q", 2): (2,), ("a", 1): None, ("b", 0): None})
    assert [why is None for _, why in told.values()] == [False, True, False, False, False]
    assert [code for code, _ in told.values()] == [INVALID] * 3 + [ErrorCode.REASSIGNMENT_IN_PROGRESS] * 2


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
