"""The memory that members may hold: of a group, of an address, of a node."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.machine import ConsumerGroupMachine
from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroup
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.members.member import MEMBER_BYTES
from mainstem.broker.consumer_groups.step import Caller
from mainstem.broker.machines.result import Moment
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

KIB = 1024
CONFIG = ConsumerGroupsConfig(rebalance_delay_ms=0, group_metadata_bytes_max=100 * KIB, members_bytes_max=1024 * KIB)


class Machine:
    def __init__(self, config: ConsumerGroupsConfig = CONFIG, holdings: Holdings | None = None) -> None:
        self.holdings = holdings or Holdings(config.members_bytes_max)
        self._ids = iter(range(10_000))
        self.machine = ConsumerGroupMachine(config, lambda: str(next(self._ids)), holdings=self.holdings)
        self.now = Moment(0, 0)

    def join(
        self, group: str, sizes: Sequence[int], *, host: str = "/a", member_id: str = "", timeout_ms: int = 60_000
    ) -> JoinGroupResponse | None:
        """In version 3, where a member needs no second call."""
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=timeout_ms,
            member_id=member_id,
            protocol_type="consumer",
            protocols=tuple(
                JoinGroupRequestProtocol(name=f"p{number}", metadata=bytes(size)) for number, size in enumerate(sizes)
            ),
        )
        result = self.machine.membership.join(1, request, Caller(3, "c", host), self.now)
        answers = [answer.response for answer in result.answers]
        return answers[-1] if answers else None

    def joined(self, group: str, size: int, **how: str) -> str:
        """The member's id."""
        answer = self.join(group, [size], **how)  # type: ignore[arg-type]
        assert answer is not None
        assert answer.error_code == ErrorCode.NONE, answer
        return answer.member_id

    def sync(self, group: str, member_id: str, size: int) -> int:
        assignments = (SyncGroupRequestAssignment(member_id=member_id, assignment=bytes(size)),)
        request = SyncGroupRequest(
            group_id=group, generation_id=self.machine.state.classic[group].generation, member_id=member_id,
            assignments=assignments,
        )  # fmt: skip
        (answer,) = self.machine.membership.sync(1, request, self.now).answers
        return int(answer.response.error_code)


def test_a_member_that_says_more_than_a_group_may_hold_is_refused_when_it_joins() -> None:
    machine = Machine()
    refused = machine.join("large", [401 * KIB])
    assert refused is not None
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert machine.holdings.bytes_held == 0
    assert "large" not in machine.machine.state.classic
    several = machine.join("several", [90 * KIB] * 4)  # each of them fits the record
    assert several is not None
    assert several.error_code == ErrorCode.NONE


def test_one_address_holds_its_share_and_others_theirs() -> None:
    machine = Machine()
    accepted = [machine.join(f"a{number}", [90 * KIB]) for number in range(20)]
    codes = [answer.error_code for answer in accepted if answer is not None]
    assert codes == [ErrorCode.NONE] * 5 + [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 15
    assert len(machine.machine.state.classic) == 5
    machine.joined("b", 90 * KIB, host="/b")
    assert machine.holdings.bytes_held <= CONFIG.members_bytes_max


def test_a_member_that_says_no_more_than_before_may_always_join_again() -> None:
    machine = Machine()
    member_id = machine.joined("first", 90 * KIB)
    assert machine.sync("first", member_id, 10) == ErrorCode.NONE
    for number in range(20):
        machine.join(f"a{number}", [80 * KIB])
    machine.joined("first", 90 * KIB, member_id=member_id)
    machine.joined("first", 10 * KIB, member_id=member_id)
    grown = machine.join("first", [95 * KIB], member_id=member_id)
    assert grown is None or grown.error_code in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def test_assignments_count() -> None:
    machine = Machine()
    codes = []
    for number in range(20):
        member_id = machine.joined(f"g{number}", 10)
        codes.append(machine.sync(f"g{number}", member_id, 90 * KIB))
    assert codes[:5] == [ErrorCode.NONE] * 5
    assert set(codes[6:]) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert machine.holdings.bytes_held <= CONFIG.members_bytes_max


def test_whatever_happens_to_members_what_is_charged_is_what_they_hold() -> None:
    node = Holdings(CONFIG.members_bytes_max)
    machine = Machine(holdings=Holdings(within=node))

    def held() -> int:
        groups: list[ConsumerGroup] = list(machine.machine.state.classic.values())
        assert all(group.bytes_held == sum(member.size_bytes for member in group.members.values()) for group in groups)
        return sum(group.bytes_held for group in groups)

    member_id = machine.joined("g", 50 * KIB)
    assert node.bytes_held == held() > 50 * KIB
    machine.sync("g", member_id, 7 * KIB)
    assert node.bytes_held == held() > 57 * KIB
    machine.join("g", [20 * KIB], host="/b")
    assert node.bytes_held == held() > 77 * KIB
    machine.machine.advance(Moment(10**9, 10**9))
    machine.machine.advance(Moment(2 * 10**9, 2 * 10**9))
    assert node.bytes_held == held()
    machine.joined("h", 50 * KIB)
    machine.holdings.give_all_back()
    assert node.bytes_held == 0
    assert not node.hosts


@pytest.mark.parametrize("asked_ms", [5_000, 60_000, 2**31 - 1])
def test_a_rebalance_waits_no_longer_than_a_bound(asked_ms: int) -> None:
    machine = Machine()
    machine.join("g", [10], timeout_ms=asked_ms)
    group = machine.machine.state.classic["g"]
    assert group.rebalance_timeout_ms == min(asked_ms, CONFIG.rebalance_timeout_ms_max)


def test_a_member_costs_what_is_reckoned() -> None:
    machine = Machine()
    machine.joined("g", 0)
    assert machine.holdings.bytes_held == MEMBER_BYTES + len("p0")
