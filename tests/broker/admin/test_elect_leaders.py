"""ElectLeaders against a fake cluster, in which every queue is a write group of its own."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.broker.admin.admin_broker import AdminBroker, versions_of
from tests.fakes.standing import FakeStanding

from mainstem.broker.handlers import elect_leaders
from mainstem.errors import LeaderMissing
from mainstem.protocol.encoded_array import elements
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.elect_leaders import (
    PREFERRED,
    UNCLEAN,
    ElectLeadersRequest,
    ElectLeadersTopicPartitions,
)

NONE, NOT_NEEDED = ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED
NOT_AVAILABLE, TIMED_OUT = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

Named = Mapping[str, tuple[int, ...]] | None
Told = dict[tuple[str, int], tuple[int, str | None]]


class TwoNodes(AdminBroker):
    """Topics a and b of three partitions. Node 1 leads all; of a-0, a-1 and b-2 node 2 should. The leader of a-1 cannot
    hand over, b-1 has no leader."""

    def __init__(self) -> None:
        super().__init__()
        self.standing = self.broker.standing = FakeStanding()
        for name in ("a", "b"):
            self.create(name, 3)
            for partition in range(3):
                self.standing.replicas[self.group(name, partition)] = (1, 2)
        for name, partition in (("a", 0), ("a", 1), ("b", 2)):
            self.standing.replicas[self.group(name, partition)] = (2, 1)
        self.metadata.leaders[self.group("b", 1)] = -1
        self.silent = {self.group("a", 1)}
        """Write groups whose preferred leader cannot take over."""
        self.standing.leads = self.take_over

    def group(self, name: str, partition: int) -> int:
        topic = self.metadata.topic(name)
        assert topic is not None
        return topic.queue_id(partition)

    def take_over(self, group: int, node_id: int) -> None:
        if group in self.silent:
            raise LeaderMissing(f"node {node_id} is silent")
        self.metadata.leaders[group] = node_id

    def elect(self, named: Named, kind: int = PREFERRED, version: int | None = None, timeout_ms: int = 60_000) -> Told:
        topics = None
        if named is not None:
            topics = tuple(ElectLeadersTopicPartitions(topic=name, partitions=it) for name, it in named.items())
        request = ElectLeadersRequest(election_type=kind, topic_partitions=topics, timeout_ms=timeout_ms)
        answer = self.ask(elect_leaders.handle, request, version)
        assert answer.error_code == NONE
        return {
            (topic.topic, it.partition_id): (it.error_code, it.error_message)
            for topic in elements(answer.replica_election_results)
            for it in elements(topic.partition_result)
        }


@pytest.mark.parametrize("version", versions_of(ElectLeadersRequest))
def test_preferred_leaders_of_named_partitions_in_every_version(version: int) -> None:
    admin = TwoNodes()
    told = admin.elect({"a": (0, 1, 2, 2, 9, -1), "b": (1,), "nowhere": (0,)}, version=version)
    assert told == {
        ("a", 0): (NONE, None),
        ("a", 1): (NOT_AVAILABLE, "node 2 is silent"),
        ("a", 2): (NOT_NEEDED, None),
        ("a", 9): (UNKNOWN, None),
        ("a", -1): (UNKNOWN, None),
        ("b", 1): (NOT_AVAILABLE, f"write group {admin.group('b', 1)} has no leader now that could hand over"),
        ("nowhere", 0): (UNKNOWN, None),
    }
    assert admin.metadata.leaders[admin.group("a", 0)] == 2
    assert admin.group("b", 2) not in admin.metadata.leaders, "nobody named it"
    assert admin.elect({"a": (0,)}, version=version) == {("a", 0): (NOT_NEEDED, None)}


def test_of_all_partitions_only_those_are_told_that_should_have_another_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(elect_leaders, "PARTITIONS_PER_TURN", 2)
    admin = TwoNodes()
    told = admin.elect(None)
    assert {key: code for key, (code, _) in told.items()} == {
        ("a", 0): NONE, ("a", 1): NOT_AVAILABLE, ("b", 1): NOT_AVAILABLE, ("b", 2): NONE,
    }  # fmt: skip
    admin.silent.clear()
    admin.metadata.leaders[admin.group("b", 1)] = 1
    assert admin.elect(None) == {("a", 1): (NONE, None)}
    assert admin.elect(None) == {}
    assert admin.elect({}) == {}


def test_a_node_that_does_not_take_over_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = TwoNodes()
    admin.standing.leads = lambda group, node_id: None
    assert admin.elect({"a": (0,)}, timeout_ms=0)["a", 0][0] == TIMED_OUT
    monkeypatch.setattr(elect_leaders, "HAND_OVER_SECONDS_MAX", 0.0)
    code, message = admin.elect({"a": (0,)})["a", 0]
    assert code == NOT_AVAILABLE
    assert message is not None
    assert "node 2 did not take over" in message


def test_unclean_elections_are_refused() -> None:
    admin = TwoNodes()
    assert admin.elect({"a": (0,), "b": (1,)}, UNCLEAN) == {
        ("a", 0): (NOT_NEEDED, None),
        ("b", 1): (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, elect_leaders.UNCLEAN_REFUSED),
    }
    assert list(admin.elect(None, UNCLEAN)) == [("b", 1)]
    request = ElectLeadersRequest(election_type=2, topic_partitions=None)
    assert admin.ask(elect_leaders.handle, request).error_code == ErrorCode.INVALID_REQUEST


def test_the_reason_is_told_once_of_partitions_that_share_a_write_group() -> None:
    admin = TwoNodes()
    shared = admin.group("a", 1)
    admin.leadership.groups_of = lambda queue_ids: (queue_ids * 0 + shared).astype("int64")  # type: ignore[method-assign]
    told = admin.elect({"a": (2, 1, 0)})
    assert told == {
        ("a", 2): (NOT_AVAILABLE, "node 2 is silent"), ("a", 1): (NOT_AVAILABLE, None), ("a", 0): (NOT_AVAILABLE, None),
    }  # fmt: skip
