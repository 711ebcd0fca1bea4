"""Consumer groups whose partitions the coordinator assigns: epochs, revocation before assignment, static members, what
is refused, timeouts, restarts, and their neighbours of the classic protocol."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from tests.broker.consumer_groups.heartbeats import GROUP, REBALANCE_MS, Consumer, Table, given, id_of, named
from tests.broker.consumer_groups.transcript import protocols

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.modern.group_changes import LARGE_GROUP
from mainstem.broker.consumer_groups.modern.heartbeat import WAITING_HEARTBEAT_MS
from mainstem.broker.consumer_groups.step import Caller
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import JoinGroupRequest, LeaveGroupRequest, MemberIdentity
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from mainstem.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics

FLIGHTS = id_of(1)
ALL_FOUR = frozenset((FLIGHTS, index) for index in range(4))


def settle(*consumers: Consumer, rounds: int = 8) -> None:
    for _ in range(rounds):
        for consumer in consumers:
            assert consumer.beat() is ErrorCode.NONE


def two_of(table: Table) -> tuple[Consumer, Consumer]:
    first, second = Consumer(table, "a", ("flights",)), Consumer(table, "b", ("flights",))
    settle(first, second)
    return first, second


def commit(table: Table, member_id: str, epoch: int, *, version: int = 9) -> ErrorCode:
    request = OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        topics=(
            OffsetCommitRequestTopic(
                name="flights",
                topic_id=FLIGHTS,
                partitions=(
                    OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata=""),
                ),
            ),
        ),
    )
    caller = Caller(version, "c", "/10.0.0.1")
    response = table.ask(lambda ticket: table.machine.offsets.commit(ticket, request, caller, table.now))
    return ErrorCode(response.topics[0].partitions[0].error_code)


def fetch(table: Table, member_id: str | None = None, epoch: int = -1) -> tuple[ErrorCode, list[int]]:
    topics = (OffsetFetchRequestTopics(name="flights", partition_indexes=(0,)),)
    request = OffsetFetchRequestGroup(group_id=GROUP, member_id=member_id, member_epoch=epoch, topics=topics)
    response = table.ask(lambda ticket: table.machine.offsets.fetch(ticket, request, table.now))
    offsets = [item.committed_offset for topic in response.topics for item in topic.partitions]
    return ErrorCode(response.error_code), offsets


def classic_join(table: Table, member_id: str = "") -> Any:
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=protocols("range"),
    )
    caller = Caller(3, "old", "/10.0.0.2")  # from 4 on a first join is only given an id
    return table.ask(lambda ticket: table.machine.membership.join(ticket, request, caller, table.now))


def test_a_member_alone_has_everything_at_once() -> None:
    table = Table(flights=4)
    response = table.join("a", "flights")
    assert (response.error_code, response.member_id, response.member_epoch) == (0, "a", 1)
    assert response.heartbeat_interval_ms == table.config.consumer_heartbeat_interval_ms
    assert given(response) == ALL_FOUR
    assert table.beat("a", 1).assignment is None
    assert table.group.state.value == "Stable"


def test_a_partition_is_revoked_before_another_member_gets_it() -> None:
    table = Table(flights=4)
    first = given(table.join("a", "flights"))
    second = table.join("b", "flights")
    assert (second.member_epoch, given(second)) == (2, frozenset())
    assert table.group.state.value == "Reconciling"
    told = table.beat("a", 1)
    kept = given(told)
    assert told.member_epoch == 1
    assert len(kept) == 2
    assert table.beat("b", 2).assignment is None  # nothing is free yet
    assert table.beat("a", 1).member_epoch == 1  # says nothing of what it has: it has it still
    assert table.beat("a", 1, topic_partitions=named(first)).member_epoch == 1
    assert table.beat("a", 1, topic_partitions=named(kept)).member_epoch == 2
    assert given(table.beat("b", 2)) == first - kept
    assert table.group.state.value == "Stable"


def test_a_member_that_waits_for_partitions_of_others_is_asked_for_its_next_heartbeat_soon() -> None:
    table = Table(flights=4)
    usual_ms = table.config.consumer_heartbeat_interval_ms
    first = given(table.join("a", "flights"))
    assert table.join("b", "flights").heartbeat_interval_ms == WAITING_HEARTBEAT_MS < usual_ms
    kept = given(table.beat("a", 1))
    assert table.beat("b", 2).heartbeat_interval_ms == WAITING_HEARTBEAT_MS
    confirmed = table.beat("a", 1, topic_partitions=named(kept))
    assert confirmed.heartbeat_interval_ms == usual_ms, "it waits for nothing"
    told = table.beat("b", 2)
    assert given(told) == first - kept
    assert told.heartbeat_interval_ms == usual_ms


def test_all_members_that_wait_send_a_thousand_heartbeats_a_second_at_most() -> None:
    members = 2_000
    table = Table(flights=members)
    consumers = [Consumer(table, f"{number:04}", ("flights",)) for number in range(members)]
    for consumer in consumers:
        assert consumer.beat() is ErrorCode.NONE
    late = consumers[-1]
    assert table.group.state.value == "Assigning"
    assert table.beat(late.member_id, late.epoch).heartbeat_interval_ms == 2_000
    table.wait(2_000)
    late.beat()
    assert table.group.upcoming is not None, "in steps"
    table.wait(0)
    assert table.group.state.value == "Reconciling"
    late.beat()
    assert late.owned == frozenset()
    assert table.beat(late.member_id, late.epoch).heartbeat_interval_ms == 2_000


def test_what_a_member_leaves_goes_to_the_others() -> None:
    table = Table(flights=4)
    first, second = two_of(table)
    assert first.leave() is ErrorCode.NONE
    settle(second)
    assert second.owned == ALL_FOUR


def test_the_last_member_leaves_an_empty_group_that_may_be_deleted() -> None:
    table = Table(flights=4)
    consumer = Consumer(table, "a", ("flights",))
    settle(consumer)
    consumer.leave()
    assert table.group.state.value == "Empty"
    (result,) = table.ask(lambda ticket: table.machine.administration.delete_groups(ticket, [GROUP], table.now))
    assert result.error_code == ErrorCode.NONE
    assert GROUP not in table.machine.state.modern
    assert not table.replayed().state.modern


def test_a_group_with_members_is_not_deleted() -> None:
    table = Table(flights=4)
    table.join("a", "flights")
    (result,) = table.ask(lambda ticket: table.machine.administration.delete_groups(ticket, [GROUP], table.now))
    assert result.error_code == ErrorCode.NON_EMPTY_GROUP


def test_a_silent_member_is_gone_after_its_session() -> None:
    table = Table(flights=4)
    first, second = two_of(table)
    for _ in range(10):
        table.wait(5_000)
        assert second.beat() is ErrorCode.NONE
    settle(second)
    assert second.owned == ALL_FOUR
    assert first.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert table.machine.counts.sessions_expired == 1


def test_a_member_that_revokes_nothing_is_gone_after_its_rebalance_timeout() -> None:
    table = Table(flights=4)
    table.join("a", "flights")
    second = Consumer(table, "b", ("flights",))
    second.beat()
    for _ in range(REBALANCE_MS // 5_000 + 1):
        table.wait(5_000)
        table.beat("a", 1)
        second.beat()
    settle(second)
    assert second.owned == ALL_FOUR
    assert table.error(table.beat("a", 1)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_epochs_that_are_not_the_members_are_fenced() -> None:
    table = Table(flights=4)
    first, _ = two_of(table)
    assert first.epoch == 2
    assert table.error(table.beat("a", 3)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert table.error(table.beat("a", 1)) is ErrorCode.FENCED_MEMBER_EPOCH  # does not say what it has
    everything = named(ALL_FOUR)
    assert table.error(table.beat("a", 1, topic_partitions=everything)) is ErrorCode.FENCED_MEMBER_EPOCH
    retried = table.beat("a", 1, topic_partitions=named(first.owned))
    assert (retried.error_code, retried.member_epoch, given(retried)) == (0, 2, first.owned)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": named(ALL_FOUR)}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_names": ("x" * 200,) * 1 + tuple(f"{n}" * 200 for n in range(6000))},
         ErrorCode.INVALID_REQUEST),
    ],
)  # fmt: skip
def test_a_join_that_cannot_be_granted_leaves_nothing(said: dict[str, Any], code: ErrorCode) -> None:
    table = Table(flights=4)
    asked: dict[str, Any] = {
        "member_id": "a",
        "member_epoch": 0,
        "rebalance_timeout_ms": REBALANCE_MS,
        "topic_partitions": (),
        "subscribed_topic_names": ("flights",),
        **said,
    }
    epoch, member_id = asked.pop("member_epoch"), asked.pop("member_id")
    response = table.beat(member_id, epoch, **asked)
    assert table.error(response) in (code, ErrorCode.GROUP_ID_NOT_FOUND if epoch else code)
    assert response.error_message
    assert not table.log
    assert not table.machine.state.modern


def test_a_group_takes_no_more_members_than_it_may_have() -> None:
    table = Table(ConsumerGroupsConfig(group_size_max=1), flights=4)
    table.join("a", "flights")
    assert table.error(table.join("b", "flights")) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert table.error(table.join("a", "flights")) is ErrorCode.NONE


def test_members_hold_a_bounded_memory() -> None:
    table = Table(ConsumerGroupsConfig(members_bytes_max=10_000), flights=4)
    assert table.error(table.join("a", "flights")) is ErrorCode.NONE
    assert table.error(table.join("b", "flights")) is ErrorCode.NONE
    assert table.error(table.join("c", "flights")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    table.beat("a", -1)
    assert table.error(table.join("c", "flights")) is ErrorCode.NONE


def test_a_member_of_version_0_is_given_an_id() -> None:
    table = Table(flights=4)
    response = table.join("", "flights", version=0)
    assert response.member_id == "made-0001"
    assert table.beat("made-0001", 1, version=0).error_code == 0


def test_strangers_are_told_that_nobody_knows_them() -> None:
    table = Table(flights=4)
    assert table.error(table.beat("a", 1)) is ErrorCode.GROUP_ID_NOT_FOUND
    table.join("a", "flights")
    assert table.error(table.beat("b", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert table.error(table.beat("b", -1)) is ErrorCode.UNKNOWN_MEMBER_ID


# --- static members ----------------------------------------------------------------------------------


def test_a_static_member_that_comes_back_finds_its_partitions() -> None:
    table = Table(flights=4)
    first = Consumer(table, "a", ("flights",), instance_id="one")
    second = Consumer(table, "b", ("flights",), instance_id="two")
    settle(first, second)
    had, epoch = first.owned, table.group.epoch
    assert table.error(table.join("c", "flights", instance_id="one")) is ErrorCode.UNRELEASED_INSTANCE_ID
    assert table.beat("a", -2, instance_id="one").member_epoch == -2
    settle(second)
    back = table.join("c", "flights", instance_id="one")
    assert given(back) == had
    assert table.group.epoch == epoch
    assert table.error(table.beat("a", 2, instance_id="one")) is ErrorCode.FENCED_INSTANCE_ID
    assert table.error(table.beat("a", 2)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert table.error(table.beat("x", 2, instance_id="three")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_stays_away_loses_its_partitions() -> None:
    table = Table(flights=4)
    first = Consumer(table, "a", ("flights",), instance_id="one")
    second = Consumer(table, "b", ("flights",))
    settle(first, second)
    table.beat("a", -2, instance_id="one")
    for _ in range(10):
        table.wait(5_000)
        settle(second, rounds=1)
    settle(second)
    assert second.owned == ALL_FOUR


def test_a_static_member_that_left_amid_a_revocation_is_awaited_after_a_restart_as_before() -> None:
    table = Table(flights=4)
    table.join("a", "flights", instance_id="one", rebalance_timeout_ms=5_000)
    table.join("b", "flights", instance_id="two")
    assert given(table.beat("a", table.group.members["a"].current.epoch, instance_id="one")) is not None
    assert table.group.members["a"].current.revoking
    table.beat("a", -2, instance_id="one")
    table.restart()
    table.wait(10_000)
    assert "a" in table.group.members, "nothing is left to be revoked, and its session goes on"
    table.wait(40_000)
    assert "a" not in table.group.members


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    table = Table(flights=4)
    first = Consumer(table, "a", ("flights",), instance_id="one")
    settle(first)
    members = (
        MemberIdentity(member_id="", group_instance_id="one"),
        MemberIdentity(member_id="", group_instance_id="two"),
        MemberIdentity(member_id="a"),
    )
    request = LeaveGroupRequest(group_id=GROUP, members=members)
    response = table.ask(lambda ticket: table.machine.membership.leave(ticket, request, table.now))
    codes = [ErrorCode(member.error_code) for member in response.members]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    assert table.group.empty


# --- subscriptions -----------------------------------------------------------------------------------


def test_a_changed_subscription_moves_partitions() -> None:
    table = Table(flights=2, delays=2)
    first, second = Consumer(table, "a", ("flights", "delays")), Consumer(table, "b", ("delays",))
    settle(first, second)
    assert {topic for topic, _ in second.owned} == {id_of(2)}
    first.resubscribe("flights")
    settle(first, second)
    assert {topic for topic, _ in first.owned} == {FLIGHTS}
    assert len(second.owned) == 2


def test_new_topics_and_partitions_are_noticed() -> None:
    table = Table(flights=1)
    consumer = Consumer(table, "a", ("flights", "delays"))
    settle(consumer)
    table.make_topic("flights", 3)
    table.make_topic("delays", 1)
    table.wait(5_000)
    settle(consumer)
    assert consumer.owned == {(FLIGHTS, 0), (FLIGHTS, 1), (FLIGHTS, 2), (id_of(2), 0)}
    del table.topics["delays"]
    table.wait(5_000)
    settle(consumer)
    assert {topic for topic, _ in consumer.owned} == {FLIGHTS}


def test_expressions_are_matched_as_a_whole_with_what_the_member_may_see() -> None:
    table = Table(flights=1, flights_old=1, delays=1, secret_flights=1)
    said = {"subscribed_topic_regex": ".*flights", "may_describe": lambda name: not name.startswith("secret")}
    assert given(table.join("a", **said)) == {(FLIGHTS, 0)}
    table.make_topic("more_flights", 1)
    table.wait(10_000)
    told = table.beat("a", 1, may_describe=lambda name: not name.startswith("secret"))
    assert given(told) == {(FLIGHTS, 0), (id_of(5), 0)}
    table.restart()
    assert table.group.subscribed_names() == {"flights", "more_flights"}
    table.beat("a", told.member_epoch, subscribed_topic_regex="", subscribed_topic_names=("delays",))
    assert table.group.subscribed_names() == {"delays"}
    assert not table.group.expressions


def test_expressions_match_internal_topics_as_in_kafka() -> None:
    table = Table(flights=1)
    offsets = table.topics["__consumer_offsets"] = replace(table.make_topic("__consumer_offsets", 1), internal=True)
    assert given(table.join("a", subscribed_topic_regex="__consumer_offsets|none")) == {(offsets.topic_id, 0)}


def test_an_expression_cannot_make_the_node_slow() -> None:
    table = Table()
    table.make_topic("a" * 60, 1)
    response = table.join("a", subscribed_topic_regex="(a*)*b")
    assert table.error(response) is ErrorCode.NONE
    assert given(response) == frozenset()
    assert table.error(table.join("b", subscribed_topic_regex="x" * 1001)) is ErrorCode.INVALID_REGULAR_EXPRESSION
    too_large = table.join("b", subscribed_topic_regex="((a{1,100}){1,100}){1,100}")
    assert table.error(too_large) is ErrorCode.INVALID_REGULAR_EXPRESSION


# --- offsets -----------------------------------------------------------------------------------------


def test_commits_and_fetches_carry_the_members_epoch() -> None:
    table = Table(flights=4)
    table.join("a", "flights")
    assert commit(table, "a", 1) is ErrorCode.NONE
    assert commit(table, "a", 0) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(table, "a", 1, version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert commit(table, "b", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(table, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert fetch(table, "a", 1) == (ErrorCode.NONE, [7])
    assert fetch(table, "a", 2)[0] is ErrorCode.STALE_MEMBER_EPOCH
    assert fetch(table, "b", 1)[0] is ErrorCode.UNKNOWN_MEMBER_ID
    assert fetch(table) == (ErrorCode.NONE, [7])
    table.beat("a", -1)
    assert commit(table, "", -1) is ErrorCode.NONE
    table.restart()
    assert fetch(table) == (ErrorCode.NONE, [7])
    assert GROUP not in table.machine.state.classic


def test_a_group_without_members_and_offsets_is_forgotten_in_the_end() -> None:
    table = Table(flights=4)
    table.restart()  # starts the timer of expiry
    table.join("a", "flights")
    commit(table, "a", 1)
    table.beat("a", -1)
    table.wait(table.config.offsets_retention_minutes * 60_000 + 2 * table.config.offsets_retention_check_interval_ms)
    assert not table.machine.state.modern
    assert not table.replayed().state.modern


# --- the other protocol ------------------------------------------------------------------------------


def test_an_empty_group_is_of_the_protocol_that_joins_first() -> None:
    table = Table(ConsumerGroupsConfig(rebalance_delay_ms=0, migration_policy="disabled"), flights=4)
    table.join("a", "flights")
    table.beat("a", -1)
    joined = classic_join(table)
    assert joined.error_code == ErrorCode.NONE
    assert GROUP not in table.machine.state.modern
    assert table.error(table.join("a", "flights")) is ErrorCode.GROUP_ID_NOT_FOUND
    request = LeaveGroupRequest(group_id=GROUP, members=(MemberIdentity(member_id=joined.member_id),))
    table.ask(lambda ticket: table.machine.membership.leave(ticket, request, table.now))
    assert table.error(table.join("a", "flights")) is ErrorCode.NONE
    assert GROUP not in table.machine.state.classic
    table.restart()
    assert (GROUP in table.machine.state.modern, GROUP in table.machine.state.classic) == (True, False)


def test_a_group_keeps_its_offsets_when_it_changes_its_protocol() -> None:
    table = Table(flights=4)
    assert commit(table, "", -1) is ErrorCode.NONE
    table.join("a", "flights")
    assert fetch(table) == (ErrorCode.NONE, [7])
    table.restart()
    assert GROUP not in table.machine.state.classic
    table.beat("a", -1)
    classic_join(table)
    assert fetch(table) == (ErrorCode.NONE, [7])


def test_groups_are_listed_and_described_by_their_type() -> None:
    table = Table(flights=4)
    table.join("a", "flights", rack_id="r", server_assignor="range")
    (listed,) = table.ask(lambda ticket: table.machine.administration.list_groups(ticket, table.now))
    assert (listed.group_type, listed.group_state, listed.protocol_type) == ("consumer", "Stable", "consumer")
    (classic,) = table.ask(lambda ticket: table.machine.administration.describe(ticket, [GROUP], table.now))
    assert classic.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert re.search("not a classic group", classic.error_message)
    found, missing = table.ask(
        lambda ticket: table.machine.administration.describe_modern(ticket, [GROUP, "none"], table.now)
    )
    assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Stable", 1, 1)
    assert found.assignor_name == "range"
    (member,) = found.members
    assert (member.rack_id, member.member_epoch, member.member_type) == ("r", 1, 1)
    (row,) = member.assignment.topic_partitions
    assert (row.topic_name, row.partitions) == ("flights", (0, 1, 2, 3))
    assert member.target_assignment == member.assignment
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND


# --- restarts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compacted", [False, True])
def test_a_restart_in_the_middle_of_a_reconciliation_changes_nothing(compacted: bool) -> None:
    table = Table(flights=4)
    first, second = Consumer(table, "a", ("flights",)), Consumer(table, "b", ("flights",))
    for _ in range(8):
        for consumer in (first, second):
            assert consumer.beat() is ErrorCode.NONE
            assert not first.owned & second.owned
            if compacted:
                table.compact()
            table.restart()
    assert first.owned | second.owned == ALL_FOUR
    table.wait(table.config.consumer_session_timeout_ms)
    assert table.group.empty


def test_after_a_restart_an_unrevoked_partition_still_has_its_deadline() -> None:
    table = Table(flights=4)
    table.join("a", "flights", rebalance_timeout_ms=20_000)
    table.join("b", "flights")
    table.beat("a", 1)
    table.restart()
    table.wait(20_000)
    assert table.error(table.beat("a", 1)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_large_group_is_assigned_anew_once_for_many_who_come_together() -> None:
    members = LARGE_GROUP + 50
    table = Table(flights=members)
    consumers = [Consumer(table, f"{number:03}", ("flights",)) for number in range(members)]
    epochs = set()
    for consumer in consumers:
        assert consumer.beat() is ErrorCode.NONE
        epochs.add(table.group.assignment_epoch)
    assert table.group.epoch == members
    assert len(epochs) == LARGE_GROUP - 1, "until it is large, it is assigned anew with each"
    assert table.group.state.value == "Assigning"
    late = consumers[-1]
    assert late.owned == frozenset()
    interval_ms = table.config.consumer_assignment_interval_ms
    assert table.beat(late.member_id, late.epoch).heartbeat_interval_ms == interval_ms
    table.wait(interval_ms - 1)
    assert late.beat() is ErrorCode.NONE
    assert table.group.epoch > table.group.assignment_epoch
    table.wait(1)
    settle(*consumers, rounds=2)
    assert table.group.state.value == "Stable"
    assert [len(consumer.owned) for consumer in consumers] == [1] * members
    usual_ms = table.config.consumer_heartbeat_interval_ms
    assert table.beat(late.member_id, late.epoch).heartbeat_interval_ms == usual_ms

    consumers.pop().leave()
    table.wait(interval_ms)
    settle(*consumers, rounds=2)
    assert sum(len(consumer.owned) for consumer in consumers) == members


def test_a_large_group_is_assigned_at_once_by_a_coordinator_that_has_just_loaded_it() -> None:
    members = LARGE_GROUP + 1
    table = Table(flights=members)
    consumers = [Consumer(table, f"{number:03}", ("flights",)) for number in range(members)]
    for consumer in consumers:
        consumer.beat()
    table.restart()
    assert consumers[-1].beat() is ErrorCode.NONE
    assert table.group.assignment_epoch == table.group.epoch
