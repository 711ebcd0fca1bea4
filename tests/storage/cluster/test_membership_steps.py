"""A replica moves to another node in steps, each of which may be the last that this node makes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from mainstem.raft import ChangeKind, Membership, MembershipChange, NotReady
from mainstem.raft.leader.progress import PeerView, SendState
from mainstem.storage.cluster.membership_steps import LAG_BLOCKS_MAX, MembershipSteps

ADD, PROMOTE, REMOVE = ChangeKind.ADD_LEARNER, ChangeKind.PROMOTE, ChangeKind.REMOVE


class Clock:
    def now_ms(self) -> int:
        return 1

    def monotonic(self) -> float:
        return 0.0


class Group:
    """A write group that takes every change at once; node 1 serves it."""

    group = 0
    failure = None
    last_index = 1000

    def __init__(self, *voters: int) -> None:
        self.membership = Membership.of(voters)
        self.core: object | None = object()
        self.serving = True
        self.behind: dict[int, int] = {}
        self.silent: set[int] = set()
        self.made: list[tuple[ChangeKind, int]] = []
        self.handed_to: list[int] = []
        self.busy = False

    @property
    def consensus(self) -> Group:
        return self

    @property
    def voters(self) -> frozenset[int]:
        return self.membership.voters

    @property
    def learners(self) -> frozenset[int]:
        return self.membership.learners

    def peers(self) -> list[PeerView]:
        return [
            PeerView(
                node_id,
                SendState.REPLICATE,
                self.last_index - self.behind.get(node_id, 0),
                0,
                node_id not in self.silent,
            )
            for node_id in sorted(self.membership.members - {1})
        ]

    def propose_membership(self, change: MembershipChange, now_ms: int) -> int:
        if self.busy:
            raise NotReady("another change is under way")
        self.membership = self.membership.changed(change)
        self.made.append((change.kind, change.node_id))
        return 1

    def transfer_leadership(self, to: int, now_ms: int) -> None:
        self.handed_to.append(to)


class World:
    def __init__(self, group: Group, *wanted: int) -> None:
        self.group = group
        self.dead: set[int] = set()
        self.guests: frozenset[int] = frozenset()
        self.has_later: set[int] = set()
        self.is_ahead = False
        self.taken: list[tuple[int, Collection[int]]] = []
        self.looked: list[tuple[int, Collection[int]]] = []
        groups: Any = [group]
        self.steps = MembershipSteps(
            1,
            groups,
            lambda: {0: wanted},
            lambda node_id: node_id not in self.dead,
            self._take_part,
            self._look,
            Clock(),
            guests=lambda: {0: self.guests},
            has_later=lambda number, node_id: node_id in self.has_later,
            is_ahead=lambda number: self.is_ahead,
        )

    async def _take_part(self, number: int, placed: Collection[int]) -> None:
        self.taken.append((number, placed))

    async def _look(self, number: int, placed: Collection[int]) -> None:
        self.looked.append((number, placed))

    def rounds(self, count: int = 1) -> None:
        for _ in range(count):
            asyncio.run(self.steps.round())


def test_a_dead_node_is_replaced() -> None:
    group = Group(1, 2, 3)
    group.silent.add(3)
    world = World(group, 1, 2, 4)
    world.rounds(6)
    assert group.made == [(ADD, 4), (PROMOTE, 4), (REMOVE, 3)]
    assert group.membership == Membership.of([1, 2, 4])


def test_a_learner_that_is_behind_or_silent_gets_no_vote_and_nobody_goes_before_it_has_one() -> None:
    group = Group(1, 2, 3)
    group.behind[4] = LAG_BLOCKS_MAX + 1
    world = World(group, 1, 2, 4)
    world.rounds(3)
    assert group.made == [(ADD, 4)]
    group.behind.clear()
    group.silent.add(4)
    world.rounds(3)
    assert group.made == [(ADD, 4)]
    group.silent.clear()
    world.rounds(3)
    assert group.made == [(ADD, 4), (PROMOTE, 4), (REMOVE, 3)]


def test_a_node_that_does_not_live_is_not_added() -> None:
    group = Group(1, 2, 3)
    world = World(group, 1, 2, 4)
    world.dead.add(4)
    world.rounds(3)
    assert group.made == []


def test_a_leader_that_is_to_go_has_a_node_that_stays_lead_first() -> None:
    group = Group(1, 2, 3)
    group.behind[3] = 5
    world = World(group, 2, 3, 4)
    world.rounds(3)
    assert group.made == [(ADD, 4), (PROMOTE, 4)]
    assert group.handed_to == [2]


def test_a_move_that_is_taken_back_leaves_no_learner() -> None:
    group = Group(1, 2, 3)
    group.membership = Membership.of([1, 2, 3], [4])
    world = World(group, 1, 2, 3)
    world.rounds(2)
    assert group.made == [(REMOVE, 4)]


def test_a_step_that_is_not_taken_is_tried_again() -> None:
    group = Group(1, 2, 3)
    group.busy = True
    world = World(group, 1, 2, 4)
    world.rounds(2)
    assert group.made == []
    group.busy = False
    world.rounds()
    assert group.made == [(ADD, 4)]


@pytest.mark.parametrize(("wanted", "taken"), [((1, 2), 1), ((2, 3), 0)])
def test_a_node_takes_part_in_what_comes_to_it(wanted: tuple[int, ...], taken: int) -> None:
    group = Group(2, 3)
    group.core, group.serving = None, False
    world = World(group, *wanted)
    world.rounds()
    assert len(world.taken) == taken


def test_a_node_with_later_batches_of_moved_queues_is_added_once_the_log_begins_behind_them() -> None:
    group = Group(1, 2, 3)
    world = World(group, 1, 2, 4)
    world.has_later = {4}
    world.rounds(3)
    assert not group.made
    world.has_later = set()
    world.rounds(6)
    assert group.membership == Membership.of([1, 2, 4])


def test_a_guest_learns_and_gets_no_vote() -> None:
    group = Group(1, 2)
    world = World(group, 1, 2)
    world.guests = frozenset({2, 3})
    world.has_later = {3}
    world.rounds(3)
    assert not group.made, "its disks have what comes behind some of this log"
    world.has_later = set()
    world.rounds(3)
    assert group.membership == Membership.of([1, 2], [3])
    world.guests = frozenset()
    world.is_ahead = True
    world.rounds(2)
    assert group.made == [(ADD, 3)], "the log knows of a move that the metadata here does not"
    world.is_ahead = False
    world.rounds(2)
    assert group.made == [(ADD, 3), (REMOVE, 3)]


def test_a_guest_begins_a_replica_and_removes_it_when_it_is_none_any_more() -> None:
    group = Group(2, 3)
    group.serving, group.core, group.last_index = False, None, 0
    world = World(group, 2, 3)
    world.guests = frozenset({1})
    world.rounds()
    assert world.taken == [(0, {2, 3})]
    group.core = object()
    world.rounds()
    assert not world.looked
    world.guests = frozenset()
    world.rounds()
    assert world.looked == [(0, {2, 3})]


def test_a_replica_comes_back_once_what_the_former_one_left_is_removed() -> None:
    group = Group(2, 3)
    group.serving, group.core = False, None
    world = World(group, 2, 3)
    world.guests = frozenset({1})
    world.rounds()
    assert world.looked == [(0, {2, 3})], "its log is still here: nobody else would remove it before the next start"
    group.last_index = 0
    world.rounds()
    assert len(world.looked) == 1
    assert world.taken
