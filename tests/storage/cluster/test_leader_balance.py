"""The node that is asked to lead: the preferred node when it is well, anybody when this node's disk is full."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.fakes.clock import FakeClock
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.raft import NotReady
from mainstem.raft.leader.progress import PeerView
from mainstem.storage.cluster.leader_balance import (
    LAG_BLOCKS_MAX,
    LOOK_SECONDS,
    PATIENCE_ROUNDS,
    ROUND_SECONDS,
    ROUNDS_MIN,
    LeaderBalance,
    is_close_behind,
)
from mainstem.storage.write_groups.write_group import WriteGroup

ME, PREFERRED, OTHER = 1, 2, 3
LAST_INDEX = 1_000


class Group:
    """Served here until it is given away, if that works."""

    def __init__(self, number: int, match: dict[int, int], *, takes: bool = True) -> None:
        self.group = number
        self.serving = True
        self.reluctant = False
        self.last_index = LAST_INDEX
        self.voters = {ME, *match}
        self.given: list[int] = []
        self.refuses = False
        self._match = match
        self._takes = takes

    @property
    def consensus(self) -> Group:
        return self

    def peers(self) -> list[Any]:
        return [peer(node_id, match) for node_id, match in self._match.items()]

    def transfer_leadership(self, to: int, now_ms: int) -> None:
        if self.refuses:
            raise NotReady("handing over already")
        self.given.append(to)
        self.serving = not self._takes


def peer(node_id: int, match: int) -> PeerView:
    return cast("PeerView", type("Peer", (), {"node_id": node_id, "match_index": match, "active": True})())


class World:
    def __init__(self, *groups: Group) -> None:
        self.full = False
        self.unfit: set[int] = set()
        """Groups of which this node cannot serve what is stored."""
        self.alive = True
        self.groups = groups
        self.balance = LeaderBalance(
            ME,
            cast("list[WriteGroup]", groups),
            lambda group: PREFERRED,
            lambda node_id: self.alive,
            lambda: self.full,
            FakeClock(),
            lambda group: group in self.unfit,
        )

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.balance.round()


def test_a_group_goes_to_whom_it_should_be_led_by_after_a_while() -> None:
    group = Group(0, {PREFERRED: LAST_INDEX - 10, OTHER: LAST_INDEX})
    world = World(group)
    world.rounds(ROUNDS_MIN)
    assert group.given == []
    world.rounds(1)
    assert group.given == [PREFERRED]


def test_what_this_node_cannot_serve_goes_to_anybody_and_does_not_come_back() -> None:
    broken, well = Group(0, {PREFERRED: 10, OTHER: LAST_INDEX}), Group(1, {OTHER: LAST_INDEX})
    world = World(broken, well)
    world.unfit = {0}
    world.rounds(2)
    assert (broken.given, well.given) == ([OTHER], []), "whoever lacks the least, and that group only"
    assert broken.reluctant, "others that would give it back are not obeyed"
    world.unfit = set()
    world.rounds(1)
    assert not broken.reluctant


def test_nobody_is_pestered_with_what_nobody_can_serve() -> None:
    group = Group(0, {OTHER: LAST_INDEX}, takes=False)
    world = World(group)
    world.unfit = {0}
    world.rounds(PATIENCE_ROUNDS)
    assert len(group.given) == 1
    world.rounds(3 * PATIENCE_ROUNDS)
    assert len(group.given) <= 4


def test_one_group_per_round() -> None:
    groups = [Group(number, {PREFERRED: LAST_INDEX}) for number in range(3)]
    world = World(*groups)
    world.rounds(ROUNDS_MIN + 2)
    assert [len(group.given) for group in groups] == [1, 1, 0]


def test_nothing_goes_to_a_node_that_is_dead_or_far_behind() -> None:
    behind, world = Group(0, {PREFERRED: LAST_INDEX // 2}), World(Group(1, {PREFERRED: LAST_INDEX}))
    world.alive = False
    world.rounds(10)
    assert world.groups[0].given == []
    World(behind).rounds(10)
    assert behind.given == []


def test_a_full_node_gives_all_away_at_once_to_who_lacks_least_and_takes_nothing_over() -> None:
    groups = [Group(0, {PREFERRED: 5, OTHER: LAST_INDEX}), Group(1, {PREFERRED: LAST_INDEX, OTHER: 5})]
    world = World(*groups)
    world.full = True
    world.rounds(1)
    assert [group.given for group in groups] == [[OTHER], [PREFERRED]]
    assert all(group.reluctant for group in groups)
    world.full = False
    world.rounds(1)
    assert not any(group.reluctant for group in groups)


@pytest.mark.parametrize(("full", "asked_first"), [(False, ROUNDS_MIN + 1), (True, 1)])
def test_who_does_not_take_over_is_not_asked_again_at_once(full: bool, asked_first: int) -> None:
    group = Group(0, {PREFERRED: LAST_INDEX}, takes=False)
    world = World(group)
    world.full = full
    world.rounds(asked_first)
    assert group.given == [PREFERRED]
    world.rounds(PATIENCE_ROUNDS)
    assert group.given == [PREFERRED]
    world.rounds(asked_first)
    assert group.given == [PREFERRED, PREFERRED]


def test_who_declined_does_not_keep_a_full_node_from_asking_others() -> None:
    """The preferred node is full for a while; then this one is."""
    group = Group(0, {PREFERRED: LAST_INDEX, OTHER: LAST_INDEX - 1}, takes=False)
    world = World(group)
    world.rounds(ROUNDS_MIN + 2)
    assert group.given == [PREFERRED]
    world.full = True
    world.rounds(1)
    assert group.given == [PREFERRED, OTHER]
    world.rounds(2)
    assert group.given == [PREFERRED, OTHER], "both declined"


def test_a_full_node_asks_once_whom_it_had_given_up() -> None:
    group = Group(0, {PREFERRED: LAST_INDEX}, takes=False)
    world = World(group)
    world.rounds(ROUNDS_MIN + 2)
    world.full = True
    world.rounds(3)
    assert group.given == [PREFERRED, PREFERRED]


def test_a_node_that_becomes_full_waits_for_no_round() -> None:
    group = Group(0, {PREFERRED: LAST_INDEX})
    world = World(group)

    async def story() -> None:
        running = asyncio.create_task(world.balance.run())
        await asyncio.sleep(ROUND_SECONDS + LOOK_SECONDS / 2)
        world.full = True
        await asyncio.sleep(LOOK_SECONDS)
        assert group.given == [PREFERRED]
        running.cancel()

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(story())


def test_a_group_that_cannot_be_given_now_is_given_later() -> None:
    group = Group(0, {PREFERRED: LAST_INDEX})
    group.refuses = True
    world = World(group)
    world.rounds(ROUNDS_MIN + 3)
    group.refuses = False
    world.rounds(1)
    assert group.given == [PREFERRED]


def test_a_node_close_behind_was_heard_lately_and_lacks_few_blocks() -> None:
    group = Group(0, {PREFERRED: LAST_INDEX - LAG_BLOCKS_MAX, OTHER: LAST_INDEX - LAG_BLOCKS_MAX - 1})
    close = [is_close_behind(cast(WriteGroup, group), node_id) for node_id in (PREFERRED, OTHER, 4)]
    assert close == [True, False, False]
