"""Groups that change their protocol while they work: members of both protocols share partitions, none has two readers,
and offsets stay."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.consumer_groups.classic_consumers import PATIENCE_MS, ClassicConsumer
from tests.broker.consumer_groups.heartbeats import GROUP, Consumer, Table, id_of
from tests.broker.consumer_groups.test_modern_groups import commit

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.epochs.epoch_member import ReconciliationState
from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroupState
from mainstem.broker.consumer_groups.step import Caller
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import MEMBER_TYPE_CLASSIC, MEMBER_TYPE_CONSUMER
from mainstem.protocol.messages.group_membership import HeartbeatRequest, JoinGroupRequest, JoinGroupRequestProtocol

FLIGHTS = id_of(1)
ALL_FOUR = frozenset((FLIGHTS, index) for index in range(4))
Client = Consumer | ClassicConsumer


def settle(*clients: Client, rounds: int = 12) -> None:
    for _ in range(rounds):
        for client in clients:
            client.beat()
            check_readers(*clients)


def check_readers(*clients: Client) -> None:
    held = Counter(partition for client in clients for partition in client.owned)
    assert not [partition for partition, count in held.items() if count > 1]


def two_classic(table: Table, *, cooperative: bool = False) -> tuple[ClassicConsumer, ClassicConsumer]:
    first = ClassicConsumer(table, "one", ("flights",), cooperative=cooperative)
    second = ClassicConsumer(table, "two", ("flights",), cooperative=cooperative)
    settle(first, second)
    assert [len(first.owned), len(second.owned)] == [2, 2]
    assert table.machine.state.classic[GROUP].state is ConsumerGroupState.STABLE
    return first, second


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_group_rolls_from_classic_to_consumer_and_back(cooperative: bool) -> None:
    table = Table(flights=4)
    one, two = two_classic(table, cooperative=cooperative)
    new = Consumer(table, "new", ("flights",))
    assert new.beat() is ErrorCode.NONE
    assert GROUP not in table.machine.state.classic
    settle(one, two, new)
    assert one.owned | two.owned | new.owned == ALL_FOUR
    assert sorted(len(client.owned) for client in (one, two, new)) == [1, 1, 2]
    assert one.leave() is two.leave() is ErrorCode.NONE
    settle(new)
    assert new.owned == ALL_FOUR
    back = ClassicConsumer(table, "back", ("flights",), cooperative=cooperative)
    settle(back, new)
    assert [len(back.owned), len(new.owned)] == [2, 2]
    assert new.leave() is ErrorCode.NONE
    assert table.machine.state.classic[GROUP].state is ConsumerGroupState.PREPARING_REBALANCE
    assert GROUP not in table.machine.state.modern
    settle(back)
    assert back.owned == ALL_FOUR
    assert table.machine.state.classic[GROUP].state is ConsumerGroupState.STABLE
    table.restart()
    settle(back)
    assert back.owned == ALL_FOUR


def test_a_member_that_waits_in_a_join_is_answered_by_the_new_group() -> None:
    table = Table(flights=4)
    one, two = two_classic(table)
    late = ClassicConsumer(table, "late", ("flights",))
    late.beat()
    assert table.machine.state.classic[GROUP].state is ConsumerGroupState.PREPARING_REBALANCE
    assert late.generation is None
    new = Consumer(table, "new", ("flights",))
    assert new.beat() is ErrorCode.NONE
    assert late.beat() is ErrorCode.NONE
    assert late.generation == table.group.epoch
    settle(one, two, late, new)
    assert [len(client.owned) for client in (one, two, late, new)] == [1, 1, 1, 1]


def test_members_are_described_by_their_protocol() -> None:
    table = Table(flights=4)
    one, two = two_classic(table)
    new = Consumer(table, "new", ("flights",))
    settle(one, two, new)
    (group,) = table.ask(lambda ticket: table.machine.administration.describe_modern(ticket, [GROUP], table.now))
    assert {member.member_id: member.member_type for member in group.members} == {
        one.member_id: MEMBER_TYPE_CLASSIC,
        two.member_id: MEMBER_TYPE_CLASSIC,
        "new": MEMBER_TYPE_CONSUMER,
    }


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_a_policy_keeps_a_group_classic(policy: str) -> None:
    table = Table(ConsumerGroupsConfig(rebalance_delay_ms=0, migration_policy=policy), flights=4)
    two_classic(table)
    records = len(table.log)
    assert table.error(table.join("new", "flights")) is ErrorCode.GROUP_ID_NOT_FOUND
    assert len(table.log) == records


def test_a_policy_keeps_a_group_the_coordinators() -> None:
    table = Table(ConsumerGroupsConfig(rebalance_delay_ms=0, migration_policy="upgrade"), flights=4)
    one, two = two_classic(table)
    new = Consumer(table, "new", ("flights",))
    settle(one, two, new)
    new.leave()
    settle(one, two)
    assert table.group.only_classic
    assert one.owned | two.owned == ALL_FOUR


def test_a_join_that_is_refused_converts_nothing() -> None:
    table = Table(flights=4)
    two_classic(table)
    records = len(table.log)
    refusal = table.join("new", "flights", server_assignor="fastest")
    assert table.error(refusal) is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert len(table.log) == records
    assert GROUP in table.machine.state.classic


def test_a_log_that_ends_in_the_middle_of_an_upgrade_has_the_classic_group() -> None:
    table = Table(flights=4)
    two_classic(table)
    classic = table.machine.state.classic[GROUP].persisted
    records = len(table.log)
    table.join("new", "flights")
    upgrade = next(at for at, record in enumerate(table.log) if at >= records and record.value is None)
    del table.log[upgrade:]
    table.restart()
    assert table.machine.state.classic[GROUP].persisted == classic
    assert GROUP not in table.machine.state.modern


@pytest.mark.parametrize("metadata", [b"", b"\x00\x03\x00\x00\x00\xff"])
def test_strangers_of_the_classic_protocol_are_refused(metadata: bytes) -> None:
    table = Table(flights=4)
    settle(Consumer(table, "new", ("flights",)))

    def join(protocol_type: str, name: str, metadata: bytes) -> ErrorCode:
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=10_000,
            member_id="",
            protocol_type=protocol_type,
            protocols=(JoinGroupRequestProtocol(name=name, metadata=metadata),),
        )
        caller = Caller(9, "old", "/10.0.0.2")
        response = table.ask(lambda ticket: table.machine.membership.join(ticket, request, caller, table.now))
        return ErrorCode(response.error_code)

    one = ClassicConsumer(table, "one", ("flights",))
    one.beat()
    assert join("connect", "range", metadata) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert join("consumer", "range", metadata) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert join("consumer", "roundrobin", b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff") is (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    ), "no protocol in common with the classic member that is there"


def test_a_static_member_takes_its_own_place_in_the_other_protocol() -> None:
    table = Table(flights=4)
    old = ClassicConsumer(table, "old", ("flights",), instance_id="desk-1")
    other = ClassicConsumer(table, "other", ("flights",), instance_id="desk-2")
    settle(old, other)
    had = old.owned
    new = Consumer(table, "new", ("flights",), instance_id="desk-1")
    old.owned = frozenset()  # its process has ended
    settle(other, new)
    assert new.owned == had
    table.beat("new", -2, instance_id="desk-1")
    again = ClassicConsumer(table, "again", ("flights",), instance_id="desk-1")
    settle(again, other)
    assert GROUP in table.machine.state.classic
    assert again.owned | other.owned == ALL_FOUR


def test_a_classic_member_that_does_not_join_is_gone_after_its_rebalance_timeout() -> None:
    table = Table(flights=4)
    one, two = two_classic(table)
    new = Consumer(table, "new", ("flights",))
    settle(two, new, rounds=1)
    heard = set()
    for _ in range(PATIENCE_MS // 5_000):  # it says that it lives, and never joins
        heard.add(beat(table, one))
        settle(two, new, rounds=1)
        table.wait(5_000)
    assert heard == {ErrorCode.REBALANCE_IN_PROGRESS}
    assert beat(table, one) is ErrorCode.UNKNOWN_MEMBER_ID
    settle(two, new)
    assert two.owned | new.owned == ALL_FOUR


def test_a_classic_member_that_has_nothing_to_join_for_any_more_stays() -> None:
    """A heartbeat tells it that partitions are free for it, and another member takes its time to hear of them: they are
    its own no more when it asks again."""
    table = Table(flights=4)
    one, two = two_classic(table)
    new = Consumer(table, "new", ("flights",))
    settle(one, two, new)
    assert one.generation is not None
    member = table.machine.state.modern[GROUP].members[one.member_id]
    waiting = replace(member.current, state=ReconciliationState.UNRELEASED_PARTITIONS)
    for current, heard in ((waiting, ErrorCode.REBALANCE_IN_PROGRESS), (member.current, ErrorCode.NONE)):
        member.current = current
        assert beat(table, one) is heard
    for _ in range(2 * PATIENCE_MS // 5_000):
        settle(two, new, rounds=1)
        table.wait(5_000)
        assert beat(table, one) is ErrorCode.NONE


def test_a_classic_member_that_joins_and_never_fetches_its_assignment_is_gone() -> None:
    table = Table(flights=4)
    one, two = two_classic(table)
    new = Consumer(table, "new", ("flights",))
    settle(one, two, new)
    group = table.machine.state.modern[GROUP]
    metadata = group.members[one.member_id].metadata
    assert metadata is not None
    assert metadata.classic_member_metadata is not None
    (protocol,) = metadata.classic_member_metadata.supported_protocols
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=PATIENCE_MS,
        rebalance_timeout_ms=PATIENCE_MS,
        member_id=one.member_id,
        protocol_type="consumer",
        protocols=(JoinGroupRequestProtocol(name=protocol.name, metadata=protocol.metadata),),
    )
    caller = Caller(9, "one", "/10.0.0.2")
    joined = table.ask(lambda ticket: table.machine.membership.join(ticket, request, caller, table.now))
    assert joined.error_code == ErrorCode.NONE
    for _ in range(PATIENCE_MS // 5_000 - 1):
        assert beat(table, one) is ErrorCode.NONE  # it has nothing to join for, which ends no wait for its sync
        settle(two, new, rounds=1)
        table.wait(5_000)
    table.wait(5_000)
    assert beat(table, one) is ErrorCode.UNKNOWN_MEMBER_ID


def beat(table: Table, member: ClassicConsumer) -> ErrorCode:
    """A heartbeat that the member does nothing about."""
    assert member.generation is not None
    request = HeartbeatRequest(group_id=GROUP, generation_id=member.generation, member_id=member.member_id)
    return ErrorCode(
        table.ask(lambda ticket: table.machine.membership.heartbeat(ticket, request, table.now)).error_code
    )


def test_commits_of_classic_members_carry_their_generation() -> None:
    table = Table(flights=4)
    one, two = two_classic(table)
    settle(one, two, Consumer(table, "new", ("flights",)))

    assert one.generation is not None
    for version in (8, 9):
        assert commit(table, one.member_id, one.generation, version=version) is ErrorCode.NONE
        assert commit(table, one.member_id, one.generation - 1, version=version) is ErrorCode.ILLEGAL_GENERATION


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["beat"] * 8 + ["leave", "crash", "restart", "compact", "wait", "grow"]), st.integers(0, 4)
    ),
    max_size=50,
)


@settings(max_examples=120, deadline=None)
@given(actions=ACTIONS, cooperative=st.booleans())
def test_no_partition_has_two_readers_whatever_protocols_come_and_go(
    actions: list[tuple[str, int]], cooperative: bool
) -> None:
    config = ConsumerGroupsConfig(rebalance_delay_ms=0, new_member_join_timeout_ms=PATIENCE_MS)
    table, topics = Table(config, flights=4, delays=3), ("flights", "delays")
    lives = iter(range(1_000))

    def fresh(number: int) -> Client:
        name = f"member-{number}-{next(lives)}"
        if number < 2:
            return Consumer(table, name, topics)
        return ClassicConsumer(table, name, topics, cooperative=cooperative)

    clients: list[Client] = [fresh(number) for number in range(5)]
    alive: set[int] = {4}
    for action, number in actions:
        client = clients[number]
        if action == "beat":
            alive.add(number)
            client.beat()
        elif action == "leave" and number in alive:
            client.leave()
            clients[number] = fresh(number)
            alive.discard(number)
        elif action == "crash":
            clients[number] = fresh(number)
        elif action == "restart":
            table.restart()
        elif action == "compact":
            table.compact()
        elif action == "wait":
            table.wait(1_000)
        elif action == "grow":
            table.make_topic("delays", table.topics["delays"].partitions + 1)
        check_readers(*clients)
    living = [clients[number] for number in sorted(alive)]
    for _ in range(PATIENCE_MS // 5_000 + 20):  # those who crashed are gone after their sessions
        for client in living:
            client.beat()
            check_readers(*living)
        table.wait(5_000)
    if not living:
        return
    assert {at for client in living for at in client.owned} == {
        (table.topics[name].topic_id, index) for name in topics for index in range(table.topics[name].partitions)
    }
    classic = all(number >= 2 for number in alive)
    assert (GROUP in table.machine.state.classic) == classic
    assert (GROUP in table.machine.state.modern) != classic
