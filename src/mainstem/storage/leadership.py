"""Who leads the write groups, and where their replicas are: as this node's part in each tells, and as it has heard from
others of those it has no part in, or whose leader it does not hear. An epoch is the group's term.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from mainstem.model import GroupReplicas
from mainstem.raft import RaftCore, Role
from mainstem.raft.progress import PeerView, SendState
from mainstem.storage.errors import NotTheLeader
from mainstem.storage.placement import Groups, Placement
from mainstem.storage.queue_store.extent_index import QueueIds
from mainstem.storage.write_group import WriteGroup

UNKNOWN = (-1, -1)

CONFIRM_SECONDS_MAX = 5.0
"""For a majority to confirm that this node leads: a leader that hears of none gives up within a second, so that only a
node whose time stands still, or whose links are jammed, waits for so long. Clients wait for several times that."""

IN_SYNC_LAG_BLOCKS = 1_000
"""What a replica that is in sync may lack: about the blocks of a second under full load."""


class GroupLeadership:
    """`ports.Leadership` of a node."""

    def __init__(
        self,
        node_id: int,
        placement: Placement,
        groups: Sequence[WriteGroup],
        heard: Callable[[int], tuple[int, int]] = lambda group: UNKNOWN,
        placements: Callable[[], Mapping[int, Sequence[int]]] = dict,
    ) -> None:
        """Of groups this node has no part in, or hears no leader of, `heard` names the leader and its term.
        `placements` names the nodes of each group, that first which is to lead."""
        self._node_id = node_id
        self._heard = heard
        self._placement = placement
        self._placements = placements
        self._groups = groups

    def group_of(self, queue_id: int) -> int:
        return self._placement.group_of(queue_id)

    def groups_of(self, queue_ids: QueueIds) -> Groups:
        return self._placement.groups_of(queue_ids)

    def serves(self, group: int) -> bool:
        return self._groups[group].serving

    async def confirm(self, group: int) -> None:
        try:
            async with asyncio.timeout(CONFIRM_SECONDS_MAX):
                await self._groups[group].consensus.confirm()
        except TimeoutError:
            raise NotTheLeader(
                f"nobody confirmed within {CONFIRM_SECONDS_MAX:g} s that this node leads write group {group}"
            ) from None

    def leader(self, group: int) -> int:
        """The node that leads a group, -1: none is known."""
        consensus = self._groups[group].consensus
        if consensus.leads:
            return self._node_id
        return consensus.leader_id or self._hearsay(group)[0]

    def _hearsay(self, group: int) -> tuple[int, int]:
        """Who others say leads, and in which term, where this node hears of no leader itself: it may be only this one
        that is cut off from it. That of an older term than this node knows does not lead any more."""
        node_id, term = self._heard(group)
        core = self._groups[group].consensus.core
        if core is not None and (node_id == self._node_id or term < core.term):
            return UNKNOWN
        return node_id, term

    def replicas(self, group: int) -> GroupReplicas:
        leader = self.leader(group)
        placed = tuple(self._placements().get(group, ()))
        core = self._groups[group].consensus.core
        if core is None:
            return GroupReplicas(leader, self._heard(group)[1], placed, placed)
        term = core.term if core.leader_id else max(core.term, self._hearsay(group)[1])
        own = core.node_id
        voters = {self._node_id if voter == own else voter for voter in core.membership.voters}
        replicas = placed if set(placed) == voters else tuple(sorted(voters))
        in_sync = replicas
        if core.role is Role.LEADER:
            late = {peer.node_id for peer in late_peers(core)}
            in_sync = tuple(node_id for node_id in replicas if node_id not in late)
        return GroupReplicas(leader, term, replicas, in_sync)

    @property
    def leaderless(self) -> bool:
        return not any(group.consensus.leader_id for group in self._groups)

    def in_sync_fewest(self) -> int:
        fewest = 0
        for group in self._groups:
            core = group.consensus.core
            if group.serving and core is not None:
                voters = core.membership.voters
                late = sum(peer.node_id in voters for peer in late_peers(core))
                fewest = min(fewest or len(voters), len(voters) - late)
        return fewest


def late_peers(core: RaftCore) -> list[PeerView]:
    """On the leader, the members that are not being sent its log as it grows, or lack more than the newest blocks."""
    near = core.commit_index - IN_SYNC_LAG_BLOCKS
    return [
        peer for peer in core.peers() if peer.state is not SendState.REPLICATE or peer.match_index < near
    ]
