"""Streams groups and their members: who runs which tasks, what the log makes of it, and what others hear."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.broker.consumer_groups.heartbeats import GROUP, REBALANCE_MS, Table
from tests.broker.consumer_groups.streams_clients import (
    AT_ONCE,
    CALLER,
    WORDS,
    StreamsClient,
    application,
    beat,
    group_of,
    internal,
    part,
    settle,
    with_standbys,
)

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.step import StreamsRecord
from mainstem.broker.consumer_groups.streams.streams_group import StreamsGroup
from mainstem.broker.consumer_groups.streams.topology import Status
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import JoinGroupRequest, JoinGroupRequestProtocol
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from mainstem.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from mainstem.protocol.messages.producer_transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from mainstem.protocol.messages.streams_groups import (
    DescribedStreamsGroup,
    StreamsEndpoint,
    StreamsKeyValue,
    StreamsTaskIds,
    StreamsTaskOffset,
)

EVERYTHING = {(name, index) for name in ("0", "1") for index in range(2)}


def described(table: Table, group: str = GROUP) -> DescribedStreamsGroup:
    [found] = table.ask(lambda ticket: table.machine.administration.describe_streams(ticket, [group], table.now))
    assert isinstance(found, DescribedStreamsGroup)
    return found


def commit(table: Table, member: str, epoch: int, topic: str = "lines", partition: int = 0) -> ErrorCode:
    row = OffsetCommitRequestPartition(partition_index=partition, committed_offset=5, committed_metadata="")
    request = OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=epoch,
        member_id=member,
        topics=(OffsetCommitRequestTopic(name=topic, partitions=(row,)),),
    )
    caller = CALLER._replace(version=9)
    answer = table.ask(lambda ticket: table.machine.offsets.commit(ticket, request, caller, table.now))
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def commit_in_transaction(table: Table, epoch: int, topic: str, index: int) -> ErrorCode:
    """Of the member m1."""
    row = TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=6, committed_metadata="")
    request = TxnOffsetCommitRequest(
        transactional_id="t", group_id=GROUP, producer_id=1, producer_epoch=0, generation_id=epoch, member_id="m1",
        topics=(TxnOffsetCommitRequestTopic(name=topic, partitions=(row,)),),
    )  # fmt: skip
    answer = table.ask(lambda ticket: table.machine.offsets.commit_in_transaction(ticket, request, 0, 0, table.now))
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def fetch_error(table: Table, member: str | None, epoch: int) -> ErrorCode:
    wanted = OffsetFetchRequestGroup(group_id=GROUP, member_id=member, member_epoch=epoch, topics=None)
    answer = table.ask(lambda ticket: table.machine.offsets.fetch(ticket, wanted, table.now))
    return ErrorCode(answer.error_code)


def test_an_application_gets_its_topics_and_then_its_tasks() -> None:
    table = Table(AT_ONCE)
    client = StreamsClient(table, "m1")
    assert client.beat() is ErrorCode.NONE
    assert client.statuses == {Status.MISSING_SOURCE_TOPICS: "source topics are missing: lines"}
    assert (client.active, described(table).group_state) == (set(), "NotReady")
    table.make_topic("lines", 2)
    table.wait(1_000)
    client.beat()
    assert list(client.statuses) == [Status.MISSING_INTERNAL_TOPICS]
    assert {name: table.topics[name].partitions for name in ("by-word", "counts-changelog")} == {
        "by-word": 2,
        "counts-changelog": 2,
    }
    settle(client)
    assert (client.active, client.statuses) == (EVERYTHING, {})
    shown = described(table)
    assert (shown.group_state, shown.assignment_epoch) == ("Stable", shown.group_epoch)
    assert shown.topology is not None
    assert shown.topology.subtopologies is not None
    [counting] = [it for it in shown.topology.subtopologies if it.subtopology_id == "1"]
    assert counting.repartition_source_topics[0].partitions == 2
    assert shown.members[0].assignment == shown.members[0].target_assignment


def test_tasks_move_to_members_that_join_and_back_when_they_leave() -> None:
    table = Table(AT_ONCE, lines=2)
    one, two = StreamsClient(table, "m1"), StreamsClient(table, "m2")
    settle(one)
    two.beat()
    assert two.active == set(), "the tasks are with the other until it has given them up"
    assert group_of(table).state.value == "Reconciling"
    one.beat()
    assert len(one.active) == 2, "it hears what to keep"
    two.beat()
    assert two.active == set(), "the other has not said that it gave them up"
    settle(one, two)
    assert one.active | two.active == EVERYTHING
    assert not one.active & two.active
    assert one.epoch == two.epoch == group_of(table).epoch
    assert two.leave() is ErrorCode.NONE
    settle(one)
    assert one.active == EVERYTHING


def test_a_new_group_waits_for_more_members() -> None:
    table = Table(ConsumerGroupsConfig(), lines=2, **{"by-word": 2, "counts-changelog": 2})
    one, two = StreamsClient(table, "m1"), StreamsClient(table, "m2")
    one.beat()
    assert list(one.statuses) == [Status.ASSIGNMENT_DELAYED]
    assert one.active == set()
    assert one.epoch > 0, "a member that waits has joined"
    two.beat()
    table.wait(3_000)
    settle(one, two)
    assert len(one.active) == len(two.active) == 2
    two.leave()
    one.beat()
    assert list(one.statuses) == [], "the last assignment is old enough"


def test_the_group_survives_a_restart_and_a_snapshot() -> None:
    table = Table(AT_ONCE, lines=2)
    one, two = StreamsClient(table, "m1"), StreamsClient(table, "m2")
    settle(one)
    two.beat()
    one.beat()  # in the middle of a reconciliation
    for again in (table.restart, table.compact, table.restart):
        before = [(it.current, group_of(table).target(it.member_id)) for it in group_of(table).members.values()]
        again()
        assert before == [(it.current, group_of(table).target(it.member_id)) for it in group_of(table).members.values()]
    settle(one, two)
    assert one.active | two.active == EVERYTHING
    [listed] = table.ask(lambda ticket: table.machine.administration.list_groups(ticket, table.now))
    assert (listed.group_type, listed.protocol_type, listed.group_state) == ("streams", "streams", "Stable")


def test_standbys_follow_in_other_processes() -> None:
    table = Table(with_standbys(1), lines=2)
    one, also_one = StreamsClient(table, "m1", process="p"), StreamsClient(table, "m2", process="p")
    settle(one, also_one)
    assert not one.standby | also_one.standby, "there is one process"
    two = StreamsClient(table, "m3", process="q")
    settle(one, also_one, two)
    followed = one.standby | also_one.standby | two.standby
    assert followed == {("1", 0), ("1", 1)}, "tasks with state alone are followed"
    assert not two.active & two.standby
    assert not (one.active | also_one.active) & (one.standby | also_one.standby)
    running = two.active
    two.leave()
    settle(one, also_one)
    assert running <= one.active | also_one.active


def test_other_standbys_than_before_begin_an_epoch() -> None:
    table = Table(AT_ONCE, lines=2)
    one, two = StreamsClient(table, "m1"), StreamsClient(table, "m2")
    settle(one, two)
    before = one.epoch
    table.own[GROUP] = with_standbys(1)
    settle(one, two)
    assert one.epoch == two.epoch == before + 1
    assert one.standby | two.standby == {("1", 0), ("1", 1)}
    table.own.clear()
    settle(one, two)
    assert not one.standby | two.standby


def test_members_that_fall_silent_or_do_not_give_up_are_gone() -> None:
    table = Table(AT_ONCE, lines=2)
    one, two = StreamsClient(table, "m1"), StreamsClient(table, "m2")
    settle(one)
    two.beat()
    one.beat()  # it is told to give up tasks
    for _ in range(REBALANCE_MS // 10_000):
        table.wait(10_000)
        beat(table, "m1", one.epoch)  # it lives, and says nothing of its tasks
        two.beat()
    settle(two)
    assert two.active == EVERYTHING
    assert beat(table, "m1", one.epoch).response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    table.wait(table.config.streams_session_timeout_ms)
    assert group_of(table).empty
    [deleted] = table.ask(lambda ticket: table.machine.administration.delete_groups(ticket, [GROUP], table.now))
    assert deleted.error_code == ErrorCode.NONE
    table.restart()
    assert GROUP not in table.machine.state.streams


def test_epochs_fence_and_lost_answers_are_repeated() -> None:
    table = Table(AT_ONCE, lines=2)
    one, two = StreamsClient(table, "m1"), StreamsClient(table, "m2")
    settle(one)
    assert beat(table, "m1", one.epoch + 1).response.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    two.beat()
    one.beat()
    one.beat(loses_answer=True)  # it confirms, and does not hear of its new epoch
    assert beat(table, "m1", one.epoch).response.error_code == ErrorCode.FENCED_MEMBER_EPOCH, (
        "it does not say its tasks"
    )
    assert one.beat() is ErrorCode.NONE
    settle(one, two)
    assert one.active | two.active == EVERYTHING
    assert beat(table, "m1", one.epoch - 1).response.error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_who_asks_for_the_end_of_the_application_is_heard_by_all() -> None:
    table = Table(AT_ONCE, lines=2)
    one, two = StreamsClient(table, "m1"), StreamsClient(table, "m2")
    settle(one, two)
    assert two.leave(shutdown_application=True) is ErrorCode.NONE
    one.beat()
    assert "m2" in one.statuses[Status.SHUTDOWN_APPLICATION]
    one.leave()
    one.beat()
    assert Status.SHUTDOWN_APPLICATION not in one.statuses


def test_a_running_application_keeps_its_topology() -> None:
    table = Table(AT_ONCE, lines=2, other=1)
    one = StreamsClient(table, "m1")
    settle(one)
    changed = application(part("0", "lines", "other"))
    other = StreamsClient(table, "m2", topology=changed)
    assert other.beat() is ErrorCode.INVALID_REQUEST
    assert list(group_of(table).members) == ["m1"]
    one.leave()
    settle(other)
    assert other.active == {("0", 0), ("0", 1)}, "without members a group takes another"
    newer = StreamsClient(table, "m3", topology=replace(changed, epoch=4))
    other.leave()
    settle(newer)
    stale = StreamsClient(table, "m4", topology=changed)
    settle(stale, newer)
    assert list(stale.statuses) == [Status.STALE_TOPOLOGY]
    assert (len(newer.active), stale.active) == (2, set())


def test_endpoints_are_told_when_they_change() -> None:
    table = Table(AT_ONCE, lines=2)
    one = StreamsClient(table, "m1", endpoint=StreamsEndpoint(host="one", port=80))
    two = StreamsClient(table, "m2")
    settle(one, two)
    assert two.answer is not None
    assert two.answer.partitions_by_user_endpoint is None, "nothing is new"
    told = beat(table, "m2", two.epoch, endpoint_information_epoch=-1).response
    assert told.partitions_by_user_endpoint is not None
    [row] = told.partitions_by_user_endpoint
    assert row.user_endpoint == StreamsEndpoint(host="one", port=80)
    assert {(it.topic, index) for it in row.active_partitions for index in it.partitions} == {
        ({"0": "lines", "1": "by-word"}[name], index) for name, index in one.active
    }
    known = two.endpoint_epoch
    one.leave()
    two.beat()
    assert two.endpoint_epoch > known
    assert two.answer.partitions_by_user_endpoint == ()


def test_a_group_is_of_one_kind_and_changes_it_while_it_is_empty() -> None:
    table = Table(AT_ONCE, lines=2)
    client = StreamsClient(table, "m1")
    settle(client)
    assert commit(table, "m1", client.epoch) is ErrorCode.NONE
    assert table.join("c1", "lines").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    request = JoinGroupRequest(
        group_id=GROUP, session_timeout_ms=10_000, rebalance_timeout_ms=REBALANCE_MS, member_id="",
        protocol_type="consumer", protocols=(JoinGroupRequestProtocol(name="range", metadata=b""),),
    )  # fmt: skip
    joining = lambda ticket: table.machine.membership.join(ticket, request, CALLER, table.now)  # noqa: E731
    assert table.ask(joining).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    client.leave()
    consumer = table.join("c1", "lines")
    assert consumer.error_code == ErrorCode.NONE
    assert client.beat() is ErrorCode.GROUP_ID_NOT_FOUND
    table.beat("c1", -1)
    settle(client)
    assert client.active == EVERYTHING
    for again in (table.restart, table.compact, table.restart):
        again()
        state = table.machine.state
        assert (list(state.streams), list(state.modern), list(state.classic)) == ([GROUP], [], [])
        assert state.offsets.get(GROUP, "lines", 0) is not None, "offsets stay"


def test_commits_of_an_earlier_epoch_are_taken_for_tasks_that_the_member_had_then() -> None:
    table = Table(AT_ONCE, lines=2)
    one, two = StreamsClient(table, "m1"), StreamsClient(table, "m2")
    settle(one)
    former = one.epoch
    settle(one, two)
    assert one.epoch > former
    kept = min(index for name, index in one.active if name == "0") if any(n == "0" for n, _ in one.active) else None
    topic, index = ("lines", kept) if kept is not None else ("by-word", min(one.active)[1])
    assert commit(table, "m1", one.epoch, topic, index) is ErrorCode.NONE
    assert commit(table, "m1", former, topic, index) is ErrorCode.NONE
    lost_topic, lost = next(({"0": "lines", "1": "by-word"}[name], partition) for name, partition in sorted(two.active))
    assert commit(table, "m1", former, lost_topic, lost) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(table, "m1", one.epoch + 1, topic, index) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(table, "nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(table, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    for epoch, expected in ((former, ErrorCode.NONE), (one.epoch, ErrorCode.NONE), (99, ErrorCode.ILLEGAL_GENERATION)):
        assert commit_in_transaction(table, epoch, topic, index) is expected
    assert fetch_error(table, "m1", one.epoch) is ErrorCode.NONE
    assert fetch_error(table, "m1", 99) is ErrorCode.STALE_MEMBER_EPOCH
    assert fetch_error(table, None, -1) is ErrorCode.NONE
    one.leave()
    two.leave()
    assert commit(table, "", -1) is ErrorCode.NONE, "an administrator resets offsets"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"instance_id": "i"}, ErrorCode.INVALID_REQUEST),
        ({"task_offsets": (StreamsTaskOffset(subtopology_id="0", partition=0, offset=1),)}, ErrorCode.INVALID_REQUEST),
        ({"warmup_tasks": (StreamsTaskIds(subtopology_id="0", partitions=(0,)),)}, ErrorCode.INVALID_REQUEST),
        ({"active_tasks": (StreamsTaskIds(subtopology_id="0", partitions=(0,)),)}, ErrorCode.INVALID_REQUEST),
        ({"topology": None}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"standby_tasks": None}, ErrorCode.INVALID_REQUEST),
        ({"topology": application(part("0"))}, ErrorCode.STREAMS_INVALID_TOPOLOGY),
        (
            {"topology": application(part("0", "lines", keeps=[internal(f"log-{n}") for n in range(10_000)]))},
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
        ),
        (
            {"client_tags": tuple(StreamsKeyValue(key=str(n), value="x" * 900) for n in range(1_200))},
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
def test_joins_that_contradict_themselves_or_ask_for_too_much(said: dict[str, Any], code: ErrorCode) -> None:
    table = Table(AT_ONCE, lines=2)
    well: dict[str, Any] = {
        "rebalance_timeout_ms": REBALANCE_MS, "topology": WORDS, "active_tasks": (), "standby_tasks": (),
        "warmup_tasks": (), "process_id": "p",
    }  # fmt: skip
    assert beat(table, "m1", 0, **{**well, **said}).response.error_code == code
    assert (table.log, table.machine.state.streams) == ([], {}), "a refusal leaves nothing behind"
    assert beat(table, "m1", 0, **well).response.error_code == ErrorCode.NONE


def test_members_and_groups_that_are_not_there() -> None:
    table = Table(AT_ONCE, lines=2)
    assert beat(table, "m1", 3).response.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert described(table).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    settle(StreamsClient(table, "m1"))
    assert beat(table, "m2", 3).response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(table, "m1", -2).response.error_code == ErrorCode.INVALID_REQUEST
    [refused] = table.ask(lambda ticket: table.machine.administration.delete_groups(ticket, [GROUP], table.now))
    assert refused.error_code == ErrorCode.NON_EMPTY_GROUP


def test_what_members_and_topologies_hold_is_given_back() -> None:
    table = Table(AT_ONCE, lines=2)
    clients = [StreamsClient(table, f"m{number}") for number in range(3)]
    settle(*clients)
    holdings = Holdings(1_000_000)
    group = StreamsGroup(GROUP, holdings)
    for record in table.log:
        assert isinstance(record, StreamsRecord)
        group.replay(record.key, record.value)
    with_members = holdings.bytes_held
    for key in group.records.keys_of_member(GROUP, "m1"):
        group.replay(key, None)
    assert 0 < holdings.bytes_held < with_members
    group.abandon()
    assert holdings.bytes_held == 0
