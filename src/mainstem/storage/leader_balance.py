"""Leaders where they should be: each write group led by the node that placement prefers, once that node is well again.

A leadership moves only to a node that lives and holds all but the newest blocks, one group per round, and not before
the group has been led for a while: a node that comes and goes must not shake the cluster.
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
ROUNDS_MIN = 3
"""A group is led this many rounds before it moves."""
LAG_BLOCKS_MAX = 64
"""What a node that leads next may lack: sent within a moment, while the group takes nothing."""
HAND_OVER_SECONDS_MAX = 1.0
"""Per node that is asked to lead next: longer than an election timeout at its shortest, while clients wait."""
STEP_SECONDS = 0.02


class LeaderBalance:
    """Of one node: gives away what others should lead."""

    def __init__(
        self,
        node_id: int,
        groups: Sequence[WriteGroup],
        preferred_leader: Callable[[int], int],
        alive: Callable[[int], bool],
    ) -> None:
        """`preferred_leader` names the node that should lead a group, -1: none in particular."""
        self._node_id = node_id
        self._groups = groups
        self._preferred_leader = preferred_leader
        self._alive = alive
        self._rounds: dict[int, int] = {}
        """Rounds for which a group has been served here."""

    async def run(self) -> None:
        """Rounds until cancelled."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            self.round()

    def round(self) -> None:
        """Give away at most one group."""
        given = False
        for group in self._groups:
            self._rounds[group.group] = self._rounds.get(group.group, 0) + 1 if group.serving else 0
            preferred = self._preferred_leader(group.group)
            if (
                not given
                and self._rounds[group.group] > ROUNDS_MIN
                and preferred not in (-1, self._node_id)
                and self._alive(preferred)
                and self._close_behind(group, preferred)
            ):
                given = self._give(group, preferred)

    def _close_behind(self, group: WriteGroup, node_id: int) -> bool:
        return any(
            peer.node_id == node_id and peer.active and peer.match_index + LAG_BLOCKS_MAX >= group.last_index
            for peer in group.peers()
        )

    def _give(self, group: WriteGroup, node_id: int) -> bool:
        try:
            group.transfer_leadership(node_id)
        except (RaftError, StorageError) as error:
            log.debug("write group %d is not handed to node %d: %s", group.group, node_id, error)
            return False
        log.info("write group %d is handed to node %d, which should lead it", group.group, node_id)
        return True

    async def hand_over(self) -> None:
        """The node is about to stop: have others lead what it leads, so that nobody waits for an election. Those who
        cannot are left to one."""
        await asyncio.gather(*(self._hand_over(group) for group in self._groups if group.serving))

    async def _hand_over(self, group: WriteGroup) -> None:
        peers = [peer for peer in group.peers() if peer.active and peer.node_id in group.voters]
        for peer in sorted(peers, key=lambda peer: -peer.match_index):
            if not group.serving or not self._give(group, peer.node_id):
                continue
            for _ in range(round(HAND_OVER_SECONDS_MAX / STEP_SECONDS)):
                if not group.serving:
                    return
                await asyncio.sleep(STEP_SECONDS)
