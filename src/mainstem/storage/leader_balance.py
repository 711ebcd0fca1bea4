"""Leaders where they should be: each write group led by the node that placement prefers, once that node is well again.

A leadership moves only to a node that lives and holds all but the newest blocks, one group per round, and not before
the group has been led for a while: a node that comes and goes must not shake the cluster. A node that can take no more
batches, its disk being full, gives away what it leads at once, and does not take over from others. So does one that
cannot read what is stored of a group, for that group; who does not take it is asked again after a while only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from mainstem.raft import RaftError
from mainstem.storage.errors import StorageError
from mainstem.storage.write_group import WriteGroup

log = logging.getLogger(__name__)

ROUND_SECONDS = 2.0
LOOK_SECONDS = 0.25
"""Between two looks whether this node is full: its groups take nothing meanwhile."""
ROUNDS_MIN = 3
"""A group is led this many rounds before it moves."""
LAG_BLOCKS_MAX = 64
"""What a node that leads next may lack: sent within a moment, while the group takes nothing."""
HAND_OVER_SECONDS_MAX = 1.0
"""Per node that is asked to lead next: longer than an election timeout at its shortest, while clients wait."""
STEP_SECONDS = 0.02
PATIENCE_ROUNDS = 15
"""In which a node that did not take a group over, as one with a full disk does not, is not asked for that again: the
group takes nothing while it is. Other nodes are asked meanwhile."""


class LeaderBalance:
    """Of one node: gives away what others should lead."""

    def __init__(
        self,
        node_id: int,
        groups: Sequence[WriteGroup],
        preferred_leader: Callable[[int], int],
        alive: Callable[[int], bool],
        full: Callable[[], bool],
        unfit: Callable[[int], bool] = lambda group: False,
    ) -> None:
        """`preferred_leader` names the node that should lead a group, -1: none in particular; `full`: this node can
        take no batches; `unfit`: it cannot serve what is stored of a group."""
        self._unfit = unfit
        self._node_id = node_id
        self._groups = groups
        self._preferred_leader = preferred_leader
        self._alive = alive
        self._full = full
        self._rounds: dict[int, int] = {}
        """Rounds for which a group has been served here."""
        self._given: dict[int, int] = {}
        """Group → the node it was given to in the last round."""
        self._in_vain: dict[tuple[int, int], int] = {}
        """(group, node) → rounds in which it is not asked again."""
        self._unable: set[int] = set()
        """Groups that this node served in the last round and should not."""
        self._was_full = False

    async def run(self) -> None:
        """Rounds until cancelled; one at once when this node becomes full."""
        while True:
            for _ in range(round(ROUND_SECONDS / LOOK_SECONDS)):
                await asyncio.sleep(LOOK_SECONDS)
                if self._full() and not self._was_full:
                    break
            self.round()

    def round(self) -> None:
        """Give away at most one group; besides all that this node cannot serve, but for those that nobody else took a
        while ago."""
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
            if group.group in given:  # and still here
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
        """Have the node lead that lacks the least, of those that have not declined, or `even_in_vain` of the others."""
        for node_id in self._successors(group):
            declined = (group.group, node_id) in self._in_vain
            if (even_in_vain or not declined) and self._give(group, node_id):
                self._given[group.group] = node_id
                return

    def _give_if_close_behind(self, group: WriteGroup, node_id: int) -> None:
        if self._close_behind(group, node_id) and self._give(group, node_id):
            self._given[group.group] = node_id

    def _successors(self, group: WriteGroup) -> list[int]:
        voters = group.consensus.voters
        peers = [peer for peer in group.consensus.peers() if peer.active and peer.node_id in voters]
        peers.sort(key=lambda peer: ((group.group, peer.node_id) in self._in_vain, -peer.match_index))
        return [peer.node_id for peer in peers]

    def _close_behind(self, group: WriteGroup, node_id: int) -> bool:
        return any(
            peer.node_id == node_id and peer.active and peer.match_index + LAG_BLOCKS_MAX >= group.last_index
            for peer in group.consensus.peers()
        )

    def _give(self, group: WriteGroup, node_id: int) -> bool:
        try:
            group.consensus.transfer_leadership(node_id)
        except (RaftError, StorageError) as error:
            log.debug("write group %d is not handed to node %d: %s", group.group, node_id, error)
            return False
        log.info("write group %d is handed to node %d", group.group, node_id)
        return True

    async def hand_over(self) -> None:
        """The node is about to stop: have others lead what it leads, so that nobody waits for an election. Those who
        cannot are left to one."""
        await asyncio.gather(*(self._hand_over(group) for group in self._groups if group.serving))

    async def _hand_over(self, group: WriteGroup) -> None:
        for node_id in self._successors(group):
            if not group.serving or not self._give(group, node_id):
                continue
            for _ in range(round(HAND_OVER_SECONDS_MAX / STEP_SECONDS)):
                if not group.serving:
                    return
                await asyncio.sleep(STEP_SECONDS)
