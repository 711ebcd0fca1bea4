"""Moves leaderships to where they should be: the node that placement prefers leads a write group, once it is well
again.

A leadership moves only to a node that lives and holds all but the newest blocks, one write group per round, and not
before the write group has been led for a while: a node that comes and goes must not shake the cluster. A node whose
disk is full gives all its leaderships away at once, and does not take over from others. A node that cannot read the
stored data of a write group does the same for that one. A node that did not take a leadership is asked again only after
a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from mainstem.ports import Clock
from mainstem.raft import RaftError
from mainstem.storage.errors import StorageError
from mainstem.storage.write_groups.write_group import WriteGroup

log = logging.getLogger(__name__)

ROUND_SECONDS = 2.0
LOOK_SECONDS = 0.25
"""Seconds between two looks whether this node is full: its write groups take no batches meanwhile."""
ROUNDS_MIN = 3
"""A group is led this many rounds before it moves."""
LAG_BLOCKS_MAX = 64
"""Blocks that the next leader may lack: sent within a moment, while the write group takes no batches."""
HAND_OVER_SECONDS_MAX = 1.0
"""The wait for each node that is asked to lead next: longer than the shortest election timeout, while clients wait."""
STEP_SECONDS = 0.02
PATIENCE_ROUNDS = 15
"""Rounds in which a node that did not take a write group over (its disk may be full) is not asked for it again, since
the write group takes no batches during the attempt. Other nodes are asked meanwhile."""


def is_close_behind(group: WriteGroup, node_id: int) -> bool:
    """Whether a node was heard lately, and would have all blocks of a write group that is led here in a moment."""
    return any(
        peer.node_id == node_id and peer.active and peer.match_index + LAG_BLOCKS_MAX >= group.last_index
        for peer in group.consensus.peers()
    )


class LeaderBalance:
    """Gives away the leaderships of this node that other nodes should have."""

    def __init__(
        self,
        node_id: int,
        groups: Sequence[WriteGroup],
        preferred_leader: Callable[[int], int],
        alive: Callable[[int], bool],
        full: Callable[[], bool],
        clock: Clock,
        unfit: Callable[[int], bool] = lambda group: False,
    ) -> None:
        """`preferred_leader` names the node that should lead a write group, -1: none in particular; `full`: this node
        can take no batches; `unfit`: it cannot serve the stored data of a write group."""
        self._clock = clock
        self._unfit = unfit
        self._node_id = node_id
        self._groups = groups
        self._preferred_leader = preferred_leader
        self._alive = alive
        self._full = full
        self._rounds: dict[int, int] = {}
        """Rounds for which each write group has been served here."""
        self._given: dict[int, int] = {}
        """Group → the node it was given to in the last round."""
        self._in_vain: dict[tuple[int, int], int] = {}
        """(group, node) → rounds in which it is not asked again."""
        self._unable: set[int] = set()
        """Write groups that this node served in the last round and should not serve."""
        self._was_full = False

    async def run(self) -> None:
        """Run rounds until cancelled, and one at once when this node becomes full."""
        while True:
            for _ in range(round(ROUND_SECONDS / LOOK_SECONDS)):
                await asyncio.sleep(LOOK_SECONDS)
                if self._full() and not self._was_full:
                    break
            self.round()

    def round(self) -> None:
        """Give away at most one write group, besides all that this node cannot serve; those that no other node took a
        while ago are kept."""
        full = self._was_full = self._full()
        given, self._given = self._given, {}
        unable_before, self._unable = self._unable, set()
        self._in_vain = {key: rounds - 1 for key, rounds in self._in_vain.items() if rounds > 1}
        for group in self._groups:
            unable = full or self._unfit(group.group)
            group.consensus.reluctant = unable
            if not group.serving:
                self._rounds[group.group] = 0
                continue
            if group.group in given:  # and this node still leads it
                self._in_vain[group.group, given[group.group]] = PATIENCE_ROUNDS
            self._rounds[group.group] = rounds = self._rounds.get(group.group, 0) + 1
            if unable:
                self._unable.add(group.group)
                self._give_to_anybody(group, even_in_vain=group.group not in unable_before)
            elif not self._given and rounds > ROUNDS_MIN:
                preferred = self._preferred_leader(group.group)
                wanted = preferred not in (-1, self._node_id) and (group.group, preferred) not in self._in_vain
                if wanted and self._alive(preferred):
                    self._give_if_close_behind(group, preferred)

    def _give_to_anybody(self, group: WriteGroup, *, even_in_vain: bool) -> None:
        """Hand over to the node that lacks the least, among those that have not declined or, with `even_in_vain`, among
        all."""
        for node_id in self._successors(group):
            declined = (group.group, node_id) in self._in_vain
            if (even_in_vain or not declined) and self._give(group, node_id):
                self._given[group.group] = node_id
                return

    def _give_if_close_behind(self, group: WriteGroup, node_id: int) -> None:
        if is_close_behind(group, node_id) and self._give(group, node_id):
            self._given[group.group] = node_id

    def _successors(self, group: WriteGroup) -> list[int]:
        voters = group.consensus.voters
        peers = [peer for peer in group.consensus.peers() if peer.active and peer.node_id in voters]
        peers.sort(key=lambda peer: ((group.group, peer.node_id) in self._in_vain, -peer.match_index))
        return [peer.node_id for peer in peers]

    def _give(self, group: WriteGroup, node_id: int) -> bool:
        try:
            group.transfer_leadership(node_id, self._clock.now_ms())
        except (RaftError, StorageError) as error:
            log.debug("write group %d is not handed to node %d: %s", group.group, node_id, error)
            return False
        log.info("write group %d is handed to node %d", group.group, node_id)
        return True

    async def hand_over(self) -> None:
        """Hand all leaderships over before the node stops, so that clients need not wait for an election. Write groups
        without an able member are left to an election."""
        await asyncio.gather(*(self._hand_over(group) for group in self._groups if group.serving))

    async def _hand_over(self, group: WriteGroup) -> None:
        for node_id in self._successors(group):
            if not group.serving or not self._give(group, node_id):
                continue
            for _ in range(round(HAND_OVER_SECONDS_MAX / STEP_SECONDS)):
                if not group.serving:
                    return
                await asyncio.sleep(STEP_SECONDS)
