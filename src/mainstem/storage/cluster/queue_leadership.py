"""`WriteGroupLeadership` answers which node leads a write group and where its replicas are. It asks this node's own
replica; for write groups without a replica here, or whose leader this node does not hear, it uses what other nodes
reported. The leader epoch is the write group's term.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from mainstem.model import WriteGroupNodes
from mainstem.raft import RaftCore, Role
from mainstem.raft.leader.progress import PeerView, SendState
from mainstem.storage.errors import NotTheLeader
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.placement import Placement, WriteGroups
from mainstem.storage.write_groups.write_group import WriteGroup

UNKNOWN = (-1, -1)

CONFIRM_SECONDS_MAX = 5.0
"""The longest wait for a majority to confirm that this node leads. A leader that hears from no majority gives up within
a second, so only a node that stands still, or whose links are jammed, waits for so long. Clients wait several times as
long."""

ELECTED_SECONDS_MAX = 1.0
"""A leader takes batches when a majority has the first block of its term: a matter of milliseconds."""
ELECTED_LOOK_SECONDS = 0.002

IN_SYNC_LAG_BLOCKS = 1_000
"""Blocks that a replica in sync may lack: about those of a second under full load."""

ABREAST_LAG_BLOCKS = 100
"""Blocks that a replica may lack for readers to be sent there: about those of a tenth of a second under full load. A
reader at the end of a queue waits there for what the replica lacks."""


class WriteGroupLeadership:
    """The `ports.Leadership` of a node."""

    def __init__(
        self,
        node_id: int,
        placement: Placement,
        groups: Sequence[WriteGroup],
        heard: Callable[[int], tuple[int, int]] = lambda group: UNKNOWN,
        placements: Callable[[], Mapping[int, Sequence[int]]] = dict,
    ) -> None:
        """`heard` names the leader and its term of write groups that have no replica here, or whose leader this node
        does not hear. `placements` names the nodes of each write group; the first is preferred as leader."""
        self._node_id = node_id
        self._heard = heard
        self._placement = placement
        self._placements = placements
        self._groups = groups

    def group_of(self, queue_id: int) -> int:
        return self._placement.group_of(queue_id)

    def has_moved(self, queue_id: int) -> bool:
        return self._placement.has_moved(queue_id)

    def groups_of(self, queue_ids: QueueIds) -> WriteGroups:
        return self._placement.routes_of(queue_ids)

    def leads(self, group: int) -> bool:
        return self._groups[group].serving

    def serves_here(self, queue_id: int) -> bool:
        """Not while the queue's slot is on its way: from the fence on the next write group's leader may serve it, of
        which this node may not have heard yet."""
        placement = self._placement
        serving = self._groups[placement.group_of(queue_id)].serving
        return serving and not placement.is_shut(queue_id)

    def takes(self, group: int) -> bool:
        """Whether this node leads a write group, and is not about to hand it over."""
        core = self._groups[group].consensus.core
        return self._groups[group].serving and core is not None and not core.transfer_to

    async def elected(self, group: int) -> None:
        """Return at once unless this node was elected to lead a write group just now; then when it takes batches, or
        does not lead after all."""
        served, waited = self._groups[group], 0.0
        while served.consensus.leads and not served.serving and waited < ELECTED_SECONDS_MAX:
            await asyncio.sleep(ELECTED_LOOK_SECONDS)
            waited += ELECTED_LOOK_SECONDS

    async def confirm(self, group: int) -> None:
        try:
            async with asyncio.timeout(CONFIRM_SECONDS_MAX):
                await self._groups[group].consensus.confirm()
        except TimeoutError:
            raise NotTheLeader(
                f"no majority confirmed within {CONFIRM_SECONDS_MAX:g} s that this node leads write group {group}"
            ) from None

    def leader(self, group: int) -> int:
        """The node that leads a write group; -1: none is known."""
        consensus = self._groups[group].consensus
        if consensus.leads:
            return self._node_id
        return consensus.leader_id or self._hearsay(group)[0]

    def _hearsay(self, group: int) -> tuple[int, int]:
        """The leader and its term that other nodes report; used where this node hears no leader itself, since it may be
        the only node cut off from that leader. A leader of an older term than this node knows does not lead any
        more."""
        node_id, term = self._heard(group)
        core = self._groups[group].consensus.core
        if core is not None and (node_id == self._node_id or term < core.term):
            return UNKNOWN
        return node_id, term

    def replicas(self, group: int) -> WriteGroupNodes:
        leader = self.leader(group)
        placed = tuple(self._placements().get(group, ()))
        core = self._groups[group].consensus.core
        if core is None:
            return WriteGroupNodes(leader, self._heard(group)[1], placed, placed)
        term = core.term if core.leader_id else max(core.term, self._hearsay(group)[1])
        own = core.node_id
        voters = {self._node_id if voter == own else voter for voter in core.membership.voters}
        replicas = placed if set(placed) == voters else tuple(sorted(voters))
        in_sync = replicas
        if core.role is Role.LEADER:
            late = {peer.node_id for peer in late_peers(core)}
            in_sync = tuple(node_id for node_id in replicas if node_id not in late)
        return WriteGroupNodes(leader, term, replicas, in_sync)

    @property
    def leaderless(self) -> bool:
        return not any(group.consensus.leader_id for group in self._groups)

    def abreast(self) -> dict[int, list[int]]:
        found = {}
        for number, group in enumerate(self._groups):
            core = group.consensus.core
            if group.serving and core is not None:
                late = {peer.node_id for peer in late_peers(core, ABREAST_LAG_BLOCKS)}
                able = [peer for peer in core.peers() if peer.node_id in core.membership.voters - late]
                found[number] = [peer.node_id for peer in sorted(able, key=lambda peer: -peer.match_index)]
        return found

    def in_sync_fewest(self, classes: Collection[int]) -> int:
        fewest = 0
        for group in self._groups:
            core = group.consensus.core
            has_some = any(it in classes for it in self._placement.classes_in(group.group))
            if group.serving and core is not None and has_some:
                voters = core.membership.voters
                late = sum(peer.node_id in voters for peer in late_peers(core))
                fewest = min(fewest or len(voters), len(voters) - late)
        return fewest


def late_peers(core: RaftCore, lag_blocks: int = IN_SYNC_LAG_BLOCKS) -> list[PeerView]:
    """On the leader, the members that do not receive the log as it grows, or lack more than the newest blocks."""
    near = core.commit_index - lag_blocks
    return [peer for peer in core.peers() if peer.state is not SendState.REPLICATE or peer.match_index < near]
