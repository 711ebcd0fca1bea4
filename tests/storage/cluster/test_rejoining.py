"""A replica that has forgotten something and comes back: what a leader promises it, and with which vote it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.simulated_loop import SimulatedLoop
from tests.harness.handler_of import handler_of

from mainstem.raft import HardState, Membership
from mainstem.rpc.handlers import RpcCall
from mainstem.rpc.messages.starts import (
    MEMBER_FORGOT,
    MEMBER_LOG,
    AskMember,
    CannotTell,
    MemberForgot,
    MemberLog,
    Remembered,
)
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.method import Reply
from mainstem.storage.cluster.rejoining import Rejoining
from mainstem.storage.errors import NotTheLeader

FORGETFUL = Identity("cluster", 3, b"directory of 3.3")
CALL = RpcCall(MemberForgot(0), b"", "node 3", FORGETFUL)


class LeadingGroup:
    """A write group that is led here, in term 5. The news that it is told, in order."""

    def __init__(self) -> None:
        self.group = 0
        self.serving = True
        self.applied_index = 6
        self.told: list[object] = []
        self.committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.core = SimpleNamespace(term=5, member_forgot=lambda node_id: self.told.append(("forgot", node_id)))
        self.consensus = SimpleNamespace(core=self.core, not_the_leader=lambda: NotTheLeader("node 2 leads"))

    def propose(self, tickets: object) -> asyncio.Future[None]:
        self.told.append("propose")
        return self.committed

    def rejoining(self) -> Rejoining:
        nobody: Any = None
        groups: Any = [self]
        return Rejoining(
            1, groups, nobody, nobody, nobody, nobody, dict, lambda group: -1, lambda: self.told.append("wake")
        )


def replicas_of(members: Sequence[int], rejoin: Callable[..., Awaitable[None]]) -> Any:
    return SimpleNamespace(silent={0: Membership.of(members)}, silenced=asyncio.Event(), rejoin=rejoin)


async def until(rejoining: Rejoining, true: Callable[[], bool]) -> None:
    """Have replicas brought back until this is true."""
    running = asyncio.ensure_future(rejoining.run())
    while not true():
        await asyncio.wait([running], timeout=0.01)
        if running.done():
            await running
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def asked(group: LeadingGroup) -> asyncio.Task[Reply[Remembered]]:
    answer: asyncio.Task[Reply[Remembered]] = asyncio.ensure_future(handler_of(group.rejoining(), MEMBER_FORGOT)(CALL))
    for _ in range(5):
        await asyncio.sleep(0)
    return answer


def test_a_leader_answers_when_a_block_is_committed_that_was_logged_without_counting_on_what_is_forgotten() -> None:
    async def story() -> None:
        group = LeadingGroup()
        answer = await asked(group)
        assert group.told == [("forgot", 3), "propose", "wake"]
        assert not answer.done(), "nobody else may have the block yet"
        group.applied_index = 7
        group.committed.set_result(None)
        assert (await answer).message == Remembered(5, 7)

    asyncio.run(story())


@pytest.mark.parametrize("how", ["refused", "deposed", "led anew"])
def test_who_does_not_lead_any_more_when_the_block_is_decided_promises_nothing(how: str) -> None:
    async def story() -> None:
        group = LeadingGroup()
        answer = await asked(group)
        if how == "deposed":
            group.serving = False
        elif how == "led anew":
            group.consensus.core = SimpleNamespace(term=9)
        if how == "refused":
            group.committed.set_exception(NotTheLeader("node 2 leads"))
        else:
            group.committed.set_result(None)
        with pytest.raises(CannotTell, match="node 2 leads"):
            await answer

    asyncio.run(story())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (HardState(), HardState(4, 2)),
        (HardState(3, 1), HardState(4, 2)),
        (HardState(4, 0), HardState(4, 2)),
        (HardState(4, 3), HardState(4, 3)),
        (HardState(6, 0), HardState(6, 0)),
        (HardState(6, 1), HardState(6, 1)),
    ],
)
def test_it_goes_on_with_the_leader_as_its_vote_unless_it_knows_a_later_one_and_abstains_up_to_the_block(
    before: HardState, after: HardState
) -> None:
    """In the leader's term it may have voted, and forgotten it: a vote for the leader changes nothing there."""
    rejoined: list[object] = []

    async def call(node_id: int, method: object, request: object, *, timeout_seconds: float) -> Reply[Remembered]:
        assert (node_id, request) == (2, MemberForgot(0))
        return Reply(Remembered(4, 9))

    async def rejoin(number: int, hard_state: HardState, *, abstains_to: int, waits_for_leader: bool = False) -> None:
        rejoined.append((number, hard_state, abstains_to, waits_for_leader))
        del replication.silent[number]
        forgotten.why = ""

    group: Any = SimpleNamespace(group=0, consensus=SimpleNamespace(core=None))
    forgotten: Any = SimpleNamespace(why="an older copy", lost_power=False, has_lost=lambda number: True)
    replication: Any = replicas_of([1, 2, 3], rejoin)
    hard_states: Any = SimpleNamespace(of=lambda number: before, returned=lambda number: False)
    calls: Any = SimpleNamespace(call=call)
    rejoining = Rejoining(1, [group], replication, hard_states, calls, forgotten, dict, lambda number: -1, lambda: None)
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(until(rejoining, lambda: not replication.silent))
    assert rejoined == [(0, after, 9, False)]


@pytest.mark.parametrize(("heard", "asked"), [(-1, [2, 3, 4, 5]), (5, [5])])
def test_an_older_copy_looks_for_the_leader_among_todays_members_too(heard: int, asked: list[int]) -> None:
    """It remembers members of which none may be left; placement, or what other nodes have told, names the others."""
    asks: list[int] = []

    async def call(node_id: int, method: object, request: object, *, timeout_seconds: float) -> Reply[Remembered]:
        asks.append(node_id)
        if node_id != 5:
            raise CannotTell(f"node {node_id} does not lead")
        return Reply(Remembered(4, 9))

    async def rejoin(number: int, hard_state: HardState, *, abstains_to: int) -> None:
        del replication.silent[number]
        forgotten.why = ""

    group: Any = SimpleNamespace(group=0, consensus=SimpleNamespace(core=None))
    forgotten: Any = SimpleNamespace(why="an older copy", lost_power=False, has_lost=lambda number: True)
    replication: Any = replicas_of([1, 2, 3], rejoin)
    hard_states: Any = SimpleNamespace(of=lambda number: HardState(), returned=lambda number: False)
    calls: Any = SimpleNamespace(call=call)
    rejoining = Rejoining(
        1,
        [group],
        replication,
        hard_states,
        calls,
        forgotten,
        lambda: {0: (4, 1, 5)},
        lambda number: heard,
        lambda: None,
    )
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(until(rejoining, lambda: not replication.silent))
    assert asks == asked


class Member:
    """A node with a replica of write group 0 whose log ends at a block of term 1."""

    def __init__(self, last_index: int, *, abstains: bool = False, leader_id: int = 0) -> None:
        self.core = SimpleNamespace(abstains=abstains, leader_id=leader_id)
        self.group: Any = SimpleNamespace(
            group=0,
            last_index=last_index,
            blocks=SimpleNamespace(term=lambda index: 1),
            consensus=SimpleNamespace(core=self.core),
        )
        nobody: Any = None
        groups: Any = [self.group]
        replication: Any = SimpleNamespace(silent={}, silenced=asyncio.Event())
        hard_states: Any = SimpleNamespace(returned=lambda number: False)
        calls: Any = SimpleNamespace()
        self.rejoining = Rejoining(
            2, groups, replication, hard_states, calls, nobody, dict, lambda group: -1, lambda: None
        )

    async def log(self) -> MemberLog:
        reply = await handler_of(self.rejoining, MEMBER_LOG)(RpcCall(AskMember(0), b"", "node 1", FORGETFUL))
        answer: MemberLog = reply.message
        return answer


@pytest.mark.parametrize(
    ("abstains", "leader_id", "last_of_third", "stands"),
    [
        (True, 0, 9, True),
        (True, 0, 10, False),  # the third one does
        (False, 0, 9, None),  # they need nobody else
        (True, 3, 9, None),  # a leader is there, and does not answer yet
    ],
)
def test_a_member_that_abstains_and_hears_no_leader_is_none_of_the_majority_that_has_lost_nothing(
    abstains: bool, leader_id: int, last_of_third: int, stands: bool | None
) -> None:
    """It lost its power, too, and its leader lost it before the abstaining one had what it lacks: neither votes, and
    the third one alone elects nobody. The leader may come back for ten seconds."""
    second, third = Member(8, abstains=abstains, leader_id=leader_id), Member(last_of_third)
    others = {2: second, 3: third}
    rejoined: list[tuple[int, bool]] = []

    async def call(node_id: int, method: object, request: object, *, timeout_seconds: float) -> Reply[MemberLog]:
        if method is MEMBER_FORGOT:
            raise CannotTell(f"node {node_id} does not lead")
        return Reply(await others[node_id].log())

    async def rejoin(number: int, hard_state: HardState, *, abstains_to: int, waits_for_leader: bool = False) -> None:
        rejoined.append((abstains_to, not waits_for_leader))
        del replication.silent[number]
        forgotten.why = ""

    async def story() -> None:
        running = [asyncio.ensure_future(one.run()) for one in (rejoining, second.rejoining, third.rejoining)]
        await asyncio.sleep(9.0)
        second.core.leader_id = 3
        await asyncio.sleep(1.0)
        second.core.leader_id = leader_id
        await asyncio.sleep(9.0)
        assert not rejoined
        await asyncio.sleep(10.0)
        for task in running:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    group = Member(9).group
    group.consensus.core = None
    forgotten: Any = SimpleNamespace(why="a torn write", lost_power=True, has_lost=lambda number: True)
    replication = replicas_of([1, 2, 3], rejoin)
    hard_states: Any = SimpleNamespace(of=lambda number: HardState(1, 1), returned=lambda number: False)
    calls: Any = SimpleNamespace(call=call)
    rejoining = Rejoining(1, [group], replication, hard_states, calls, forgotten, dict, lambda number: -1, lambda: None)
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(story())
    assert rejoined == ([] if stands is None else [(0, stands)])


ABANDONED: list[tuple[str, dict[str, Any], MemberLog, MemberLog | None, bool | None]] = [
    ("the other one has all", {}, MemberLog(1, 9, False, False), MemberLog(1, 9, True, False, False, True), True),
    ("it has all itself", {}, MemberLog(1, 7, False, False), MemberLog(1, 7, True, False, False, True), False),
    ("the third one has more", {}, MemberLog(1, 9, False, False), MemberLog(1, 10, True, False, False, True), None),
    ("the third one is not there", {}, MemberLog(1, 9, False, False, True), None, True),
    ("the other one is to stand first", {}, MemberLog(1, 9, True, False), None, None),
    ("the others lead, or will", {}, MemberLog(1, 9, False, False), MemberLog(1, 8, False, False), None),
    ("the other one hears a leader", {}, MemberLog(1, 9, False, True), MemberLog(1, 9, True, False), None),
    (
        "it has forgotten votes",
        {"lost_power": False},
        MemberLog(1, 9, False, False),
        MemberLog(1, 9, True, False),
        None,
    ),
    ("it returned", {"returned": True}, MemberLog(1, 9, False, False), MemberLog(1, 9, True, False), None),
    ("it hears a leader", {"leader_id": 2}, MemberLog(1, 9, False, False), MemberLog(1, 9, True, False), None),
]
"""How this node is, which abstains and has blocks up to the eighth; the logs of two others; whether it waits for a
leader in the end, None: it abstains."""


@pytest.mark.parametrize(
    ("like", "second", "third", "waits"), [it[1:] for it in ABANDONED], ids=[it[0] for it in ABANDONED]
)
def test_a_member_that_abstains_and_hears_no_leader_votes_again_if_those_that_lost_nothing_are_too_few(
    like: dict[str, Any], second: MemberLog, third: MemberLog | None, waits: bool | None
) -> None:
    """As it would after a start: it knows its votes."""
    ended: list[bool] = []

    async def call(node_id: int, method: object, request: object, *, timeout_seconds: float) -> Reply[MemberLog]:
        found = {2: second, 3: third}[node_id]
        if found is None:
            raise CannotTell(f"node {node_id} is not there")
        return Reply(found)

    def abstain_no_more(*, waits_for_leader: bool) -> None:
        ended.append(waits_for_leader)
        core.abstains = False

    async def story() -> None:
        running = asyncio.ensure_future(rejoining.run())
        await asyncio.sleep(9.0)
        assert not ended, "the leader may come back"
        await asyncio.sleep(10.0)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    member = Member(8, abstains=True, leader_id=like.get("leader_id", 0))
    core = member.core
    core.membership = Membership.of([1, 2, 3])
    member.group.consensus.abstain_no_more = abstain_no_more
    lost_power = like.get("lost_power", True)
    forgotten: Any = SimpleNamespace(why="a torn write", lost_power=lost_power, has_lost=lambda number: True)
    replication: Any = SimpleNamespace(silent={}, silenced=asyncio.Event())
    hard_states: Any = SimpleNamespace(returned=lambda number: like.get("returned", False))
    calls: Any = SimpleNamespace(call=call)
    rejoining = Rejoining(
        1, [member.group], replication, hard_states, calls, forgotten, dict, lambda number: -1, lambda: None
    )
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(story())
    assert ended == ([] if waits is None else [waits])


def test_a_replica_that_returned_is_brought_back_whenever_it_comes_and_noted_once_it_has_caught_up() -> None:
    """The node has forgotten nothing, and runs for long."""
    core = SimpleNamespace(abstains=True, leader_id=2)
    group: Any = SimpleNamespace(group=0, consensus=SimpleNamespace(core=None))
    returned: set[int] = set()
    noted: list[object] = []

    async def call(node_id: int, method: object, request: object, *, timeout_seconds: float) -> Reply[Remembered]:
        return Reply(Remembered(4, 9))

    async def rejoin(number: int, hard_state: HardState, *, abstains_to: int, waits_for_leader: bool = False) -> None:
        noted.append((number, abstains_to))
        del replication.silent[number]
        group.consensus.core = core

    async def caught_up(number: int) -> None:
        noted.append("caught up")
        returned.clear()

    async def story() -> None:
        running = asyncio.ensure_future(rejoining.run())
        await asyncio.sleep(10.0)
        assert not noted
        returned.add(0)
        replication.silent[0] = Membership.of([1, 2, 3])
        replication.silenced.set()
        await asyncio.sleep(10.0)
        assert noted == [(0, 9)]
        assert not rejoining.not_back(), "it is new here, and the node is ready without it"
        core.abstains = False
        await asyncio.sleep(10.0)
        assert noted == [(0, 9), "caught up"]
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    replication = replicas_of([1, 2, 3], rejoin)
    replication.silent.clear()
    replication.caught_up = caught_up
    hard_states: Any = SimpleNamespace(of=lambda number: HardState(), returned=returned.__contains__)
    calls: Any = SimpleNamespace(call=call)
    rejoining = Rejoining(1, [group], replication, hard_states, calls, None, dict, lambda number: 2, lambda: None)
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(story())
