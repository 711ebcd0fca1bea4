"""Changes the members of write groups to those that placement wants: a replica moves from one node to another in steps.

    the new node    takes part with an empty log and without a vote
    the leader      adds it as a learner; it gets a snapshot and the log
                    gives it a vote once it lacks no more than the newest blocks
                    removes members that are not wanted any more, once all wanted ones have a vote; itself last, and
                    then it has another member lead first
    the old node    learns that it is no member, and removes what it has (`departures`)

A guest is a learner that stays one, on a node to which queues move that have records in the write group. The leader
adds it once its own log begins behind all batches of queues whose later ones may be on the guest's disks already: a
queue's batches are in order on each disk (`SlotMover.has_later`). A guest leaves as any other member does.

Each round takes at most one step of a write group. The step follows from placement and membership alone, so it does not
matter which node leads, or what was lost in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from mainstem.ports import Clock
from mainstem.raft import ChangeKind, MembershipChange, RaftError
from mainstem.storage.errors import StorageError
from mainstem.storage.write_groups.write_group import WriteGroup

log = logging.getLogger(__name__)

ROUND_SECONDS = 1.0

LAG_BLOCKS_MAX = 64
"""Blocks that a learner may lack when it gets a vote: sent within a moment."""


NOBODY: frozenset[int] = frozenset()

GuestsWanted = Callable[[], Mapping[int, frozenset[int]]]
"""Gives, per write group, the nodes that are to follow it without a vote."""


def _no_guests() -> Mapping[int, frozenset[int]]:
    return {}


class MembershipSteps:
    """Takes the membership steps of the write groups that this node leads, and starts and ends replicas here."""

    def __init__(
        self,
        node_id: int,
        groups: Sequence[WriteGroup],
        placements: Callable[[], Mapping[int, Sequence[int]]],
        alive: Callable[[int], bool],
        take_part: Callable[[int, Collection[int]], Awaitable[None]],
        leave: Callable[[int, Collection[int]], Awaitable[None]],
        clock: Clock,
        founds: Callable[[int], bool] = lambda group: False,
        guests: GuestsWanted = _no_guests,
        has_later: Callable[[int, int], bool] = lambda group, node_id: False,
        is_ahead: Callable[[int], bool] = lambda group: False,
    ) -> None:
        """`take_part` begins a replica of a write group of these nodes here, with an empty log; `leave` checks whether
        this node is still a member. `founds`: a new write group is to begin here, and has not. `has_later`: whether a
        node may have batches of queues that come behind some of the write group's log here. `is_ahead`: whether that
        log tells of moves that `guests` may not know: then no guest is removed."""
        self._founds = founds
        self._guests = guests
        self._has_later = has_later
        self._is_ahead = is_ahead
        self._node_id = node_id
        self._groups = groups
        self._placements = placements
        self._alive = alive
        self._take_part = take_part
        self._leave = leave
        self._clock = clock

    async def run(self) -> None:
        """Run rounds until cancelled."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            await self.round()

    async def round(self) -> None:
        """Take at most one step of each write group."""
        placements, all_guests = self._placements(), self._guests()
        for group in self._groups:
            wanted = frozenset(placements.get(group.group, ()))
            guests = all_guests.get(group.group, NOBODY) - wanted
            try:
                if self._founds(group.group):
                    continue  # it is about to begin here
                belongs = self._node_id in wanted or self._node_id in guests
                if belongs and group.consensus.core is None and group.consensus.failure is None:
                    if group.last_index:  # a replica left here, and its files were being given to another node
                        await self._leave(group.group, wanted)
                    await self._take_part(group.group, wanted)
                elif wanted and group.serving:
                    self._step(group, wanted, guests)
                elif wanted and not belongs:
                    await self._leave(group.group, wanted)
            except (RaftError, StorageError) as error:
                log.debug("write group %d: its members are not changed yet: %s", group.group, error)

    def _step(self, group: WriteGroup, wanted: frozenset[int], guests: frozenset[int]) -> None:
        change = self._next(group, wanted, guests)
        if change is None:
            return
        if change == MembershipChange(ChangeKind.REMOVE, self._node_id):
            self._hand_over(group, wanted)
            return
        group.propose_membership(change, self._clock.now_ms())
        log.info("write group %d: %s node %d", group.group, change.kind.value, change.node_id)

    def _next(
        self, group: WriteGroup, wanted: frozenset[int], guests: frozenset[int] = NOBODY
    ) -> MembershipChange | None:
        voters, learners = group.consensus.voters, group.consensus.learners
        leaving = learners - wanted - guests
        if leaving and not self._is_ahead(group.group):
            return MembershipChange(ChangeKind.REMOVE, min(leaving))
        for node_id in sorted((wanted | guests) - voters - learners):
            if self._alive(node_id) and not self._has_later(group.group, node_id):
                return MembershipChange(ChangeKind.ADD_LEARNER, node_id)
        for peer in group.consensus.peers():
            near = peer.match_index + LAG_BLOCKS_MAX >= group.last_index
            if peer.node_id in learners and peer.node_id in wanted and peer.active and near:
                return MembershipChange(ChangeKind.PROMOTE, peer.node_id)
        if wanted <= voters:
            for node_id in sorted(voters - wanted, key=lambda node_id: (node_id == self._node_id, node_id)):
                return MembershipChange(ChangeKind.REMOVE, node_id)
        return None

    def _hand_over(self, group: WriteGroup, wanted: frozenset[int]) -> None:
        """Hand the leadership over; the next leader removes this node."""
        heirs = [peer for peer in group.consensus.peers() if peer.active and peer.node_id in wanted]
        if heirs:
            heir = max(heirs, key=lambda peer: peer.match_index)
            group.transfer_leadership(heir.node_id, self._clock.now_ms())
