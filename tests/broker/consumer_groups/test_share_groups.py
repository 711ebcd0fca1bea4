"""Share groups and their members: who reads which partitions, what the log makes of it, and what others hear."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from tests.broker.consumer_groups.heartbeats import GROUP, REBALANCE_MS, Table, id_of

from mainstem.broker.consumer_groups.shared.simple_assignor import assign_simply
from mainstem.broker.consumer_groups.step import Caller
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import JoinGroupRequest, JoinGroupRequestProtocol
from mainstem.protocol.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

CALLER = Caller(1, "client", "/10.0.0.1")


def beat(table: Table, member: str, epoch: int, *topics: str, group: str = GROUP) -> ShareGroupHeartbeatResponse:
    request = ShareGroupHeartbeatRequest(
        group_id=group, member_id=member, member_epoch=epoch, subscribed_topic_names=topics or None
    )
    response = table.ask(lambda ticket: table.machine.membership.share_heartbeat(ticket, request, CALLER, table.now))
    assert isinstance(response, ShareGroupHeartbeatResponse)
    return response


def given(response: ShareGroupHeartbeatResponse) -> set[tuple[UUID, int]]:
    assert response.assignment is not None
    return {(row.topic_id, index) for row in response.assignment.topic_partitions for index in row.partitions}


def test_members_share_partitions_out_and_one_partition_together() -> None:
    table = Table(a=2)
    topic = table.topics["a"].topic_id
    first = beat(table, "m1", 0, "a")
    assert given(first) == {(topic, 0), (topic, 1)}
    second = beat(table, "m2", 0, "a")
    third = beat(table, "m3", 0, "a")
    held = Counter(
        at for it in (beat(table, "m1", first.member_epoch), second, third) if it.assignment for at in given(it)
    )
    assert held.keys() == {(topic, 0), (topic, 1)}, "nobody waits for another to give a partition up"
    assert beat(table, "m2", second.member_epoch).member_epoch == third.member_epoch


def test_the_group_survives_a_restart_and_a_snapshot() -> None:
    table = Table(a=3)
    joined = beat(table, "m1", 0, "a")
    for again in (table.restart, table.compact, table.restart):
        again()
        answer = beat(table, "m1", joined.member_epoch)
        assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, joined.member_epoch, None)
    (listed,) = table.ask(lambda ticket: table.machine.administration.list_groups(ticket, table.now))
    assert (listed.group_type, listed.group_state, listed.protocol_type) == ("share", "Stable", "share")


def test_members_leave_and_fall_silent_and_the_group_is_deleted() -> None:
    table = Table(a=1)
    one, two = beat(table, "m1", 0, "a"), beat(table, "m2", 0, "a")
    assert beat(table, "m1", -1).member_epoch == -1
    assert beat(table, "m1", one.member_epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert two.error_code == ErrorCode.NONE
    [refused] = table.ask(lambda ticket: table.machine.administration.delete_groups(ticket, [GROUP], table.now))
    assert refused.error_code == ErrorCode.NON_EMPTY_GROUP
    table.wait(table.config.share_session_timeout_ms)
    assert table.machine.state.shared[GROUP].empty
    [deleted] = table.ask(lambda ticket: table.machine.administration.delete_groups(ticket, [GROUP], table.now))
    assert deleted.error_code == ErrorCode.NONE
    table.restart()
    assert GROUP not in table.machine.state.shared


def test_epochs_fence() -> None:
    table = Table(a=1)
    joined = beat(table, "m1", 0, "a")
    assert beat(table, "m1", joined.member_epoch + 5).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert beat(table, "m1", -2).error_code == ErrorCode.INVALID_REQUEST
    assert beat(table, "", 0, "a").error_code == ErrorCode.INVALID_REQUEST
    assert beat(table, "m2", 0).error_code == ErrorCode.INVALID_REQUEST
    assert beat(table, "m1", 1, group="none").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_new_partition_is_read() -> None:
    table = Table(a=1)
    joined = beat(table, "m1", 0, "a")
    table.make_topic("a", 4)
    table.wait(1_000)
    answer = beat(table, "m1", joined.member_epoch)
    assert answer.member_epoch == joined.member_epoch + 1
    assert len(given(answer)) == 4


def test_a_group_is_of_one_kind() -> None:
    table = Table(a=1)
    beat(table, "m1", 0, "a")
    assert table.join("c1", "a").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    request = JoinGroupRequest(
        group_id=GROUP, session_timeout_ms=10_000, rebalance_timeout_ms=REBALANCE_MS, member_id="",
        protocol_type="consumer", protocols=(JoinGroupRequestProtocol(name="range", metadata=b""),),
    )  # fmt: skip
    refused = table.ask(lambda ticket: table.machine.membership.join(ticket, request, CALLER, table.now))
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other = Table(a=1)
    other.join("c1", "a")
    assert beat(other, "m1", 0, "a").error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(("members", "sizes"), [(1, [3]), (3, [2, 1]), (5, [2]), (2, [1, 1, 1, 1]), (4, [7, 3])])
def test_every_partition_has_a_reader_and_every_member_a_partition(members: int, sizes: list[int]) -> None:
    topics = {id_of(number): size for number, size in enumerate(sizes, 1)}
    found = assign_simply({f"m{number}": frozenset(topics) for number in range(members)}, topics)
    readers = Counter((topic, index) for has in found.values() for topic, indexes in has.items() for index in indexes)
    assert readers.keys() == {(topic, index) for topic, size in topics.items() for index in range(size)}
    assert all(found.values())
    loads = [sum(map(len, has.values())) for has in found.values()]
    assert max(loads) - min(loads) <= len(sizes)
