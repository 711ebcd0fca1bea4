"""A slot is fenced only once the guests that its next write group brings follow the one before by a few blocks."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.fakes.clock import FakeClock
from tests.storage.cluster.test_membership_steps import Group

from mainstem.kernel import QueueTable
from mainstem.model import SLOTS
from mainstem.raft import Membership
from mainstem.storage.cluster.slot_mover import GUEST_LAG_BLOCKS_MAX, NO_METADATA, SlotMover, Wish
from mainstem.storage.errors import StorageError
from mainstem.storage.placement import Placement
from mainstem.storage.state.slot_moves import SlotMoves

GOES_ON = "the fence is logged"
"""A move comes so far where nothing stands in its way."""

SLOT = 7


class Led(Group):
    """A write group that node 1 leads."""

    def __init__(self, *voters: int, guest: int = 0) -> None:
        super().__init__(*voters)
        self.membership = Membership.of(voters, [guest] if guest else [])

    @property
    def committed_membership(self) -> Membership:
        return self.membership

    def fences_changed(self) -> None:
        """No block of it waits for a fence."""

    def propose(self, _commands: object) -> None:
        raise StorageError(GOES_ON)


def standing(before: Led, to: Led, *, refused: str = "", begun: bool = False) -> str:
    """How far a slot is that is to move between these. `refused`: why none is fenced, as the metadata has it; `begun`:
    the metadata has noted that the slot may be."""
    groups: Any = [before, to]
    nothing: Any = None
    mover = SlotMover(
        SlotMoves(QueueTable(), Placement([0] * SLOTS)), groups, QueueTable(), nothing, nothing, list,
        bool, FakeClock(), block_bytes_max=1 << 20,
    )  # fmt: skip
    mover.metadata = NO_METADATA._replace(wishes=lambda: {SLOT: Wish(1, 1, begun)}, refused=lambda: refused)
    asyncio.run(mover.look())
    return mover.standing[SLOT]


def test_a_guest_follows_when_it_has_some_of_the_log_and_lacks_a_few_blocks() -> None:
    for length, lacks, follows in (
        (3, 3, False),  # a short log of which it has nothing: it may start again, and not know that it is a member
        (3, 2, True),
        (1000, GUEST_LAG_BLOCKS_MAX + 1, False),
        (1000, GUEST_LAG_BLOCKS_MAX, True),
    ):
        before, to = Led(1, guest=4), Led(1, 4)
        before.last_index, before.behind = length, {4: lacks}
        assert standing(before, to) == (GOES_ON if follows else "node 4 copies what write group 0 has")
    before.silent.add(4)
    assert standing(before, to) == "node 4 copies what write group 0 has"


def test_a_move_that_has_begun_does_not_wait_for_a_guest_that_is_away_if_the_others_are_a_majority() -> None:
    waits = "node 4 copies what write group 0 has"
    for voters, silent, behind, stands in (
        ((1, 2, 4), {4}, {}, GOES_ON),
        ((1, 2, 4), {4}, {4: 1000}, GOES_ON),  # a leader that has led for a moment only knows nothing of it
        ((1, 2, 4), (), {4: 1000}, waits),  # it is there, and copies
        ((1, 2, 4), {2, 4}, {}, waits),
        ((1, 4), {4}, {}, waits),
        ((4,), {4}, {}, waits),
    ):
        before, to = Led(1, 2, guest=4), Led(*voters)
        before.silent.update(silent)
        before.behind.update(behind)
        assert standing(before, to) == waits
        assert standing(before, to, begun=True) == stands
    before, to = Led(1, 2), Led(1, 2, 4)
    assert standing(before, to, begun=True) == waits, "nobody has added it"


def test_no_slot_is_fenced_while_the_metadata_has_that_refused() -> None:
    before, to = Led(1, 4), Led(1, 4)
    assert standing(before, to, refused="the cluster is at feature level 19") == "the cluster is at feature level 19"
    assert standing(before, to) == GOES_ON
