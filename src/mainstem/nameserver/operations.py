"""The changes that an operator makes to the cluster itself: its feature level, where replicas are, who votes on the
metadata."""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.model import FeatureLevel, NodeRole
from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.nameserver.errors import (
    FeatureLevelTooLow,
    InvalidMembership,
    InvalidPlacement,
    MetadataUnavailable,
    NameserverError,
    refusal_of,
)
from mainstem.nameserver.lookups import MetadataLookups
from mainstem.nameserver.quorum.member_change import CATCH_UP_SECONDS_MAX, change_member
from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.nameserver.quorum.proposer import NotLeading, Unsettled
from mainstem.nameserver.requests import Requests
from mainstem.nameserver.state.node_table import NODES_MAX
from mainstem.nameserver.state.plans.replica_placement import replacement_for
from mainstem.nameserver.state.replica import MetadataReplica
from mainstem.rpc.errors import RpcError
from mainstem.rpc.messages.metadata import (
    BESIDE_MAX,
    CHANGE_MEMBER,
    ChangeMember,
    WantDraining,
    Wanted,
    WantFeatureLevel,
    WantMove,
    WantNodeRemoval,
    WantPreference,
    WantSlotKept,
    WantSlotMove,
    WantSlotMoveBegun,
    WantSlotMoved,
    WantSlotSettled,
    WantTenant,
    WantTenantRemoval,
    WantWriteGroups,
)


class ClusterOperations:
    """Has the metadata leader change the cluster; a call returns once this node has applied the change."""

    def __init__(
        self,
        requests: Requests,
        lookups: MetadataLookups,
        replica: MetadataReplica,
        quorum: MetadataQuorum,
        ports: ClusterPorts | None,
    ) -> None:
        """`ports` None: there are no other nodes."""
        self._requests = requests
        self._lookups = lookups
        self._replica = replica
        self._quorum = quorum
        self._ports = ports

    async def raise_feature_level(self, level: int) -> None:
        """From now on the cluster may write what programs of this level read; there is no way back. Raises
        `FeatureLevelNotReady` naming the nodes that do not read it, `MetadataUnavailable`."""
        (outcome,) = (await self._requests.change(WantFeatureLevel(level))).items
        if isinstance(outcome, NameserverError):
            raise outcome

    async def set_tenant(self, wanted: WantTenant) -> None:
        """Make a tenant, or change what it is, with the access rules of its users and its quotas. Raises
        `InvalidTenant`, `InvalidQuota`, `TooManyAcls`, `TooManyQuotas`, `FeatureLevelTooLow`, `MetadataUnavailable`."""
        if wanted.quotas and self._lookups.feature_level < FeatureLevel.TENANTED:
            raise FeatureLevelTooLow(
                f"the cluster is at feature level {self._lookups.feature_level}, quotas of tenants take level "
                f"{FeatureLevel.TENANTED}: mainstem cluster feature-level --raise, once all nodes run a version that "
                "has it"
            )  # a leader of an older version would make the tenant without them
        await self._change(wanted)

    async def remove_tenant(self, name: str) -> None:
        """Raises `InvalidTenant` when there is none, `MetadataUnavailable`."""
        await self._change(WantTenantRemoval(name))

    async def _change(self, wanted: Wanted) -> None:
        for outcome in (await self._requests.change(wanted)).items:
            if isinstance(outcome, NameserverError):
                raise outcome

    async def move_replica(self, group: int, old: int, new: int | None = None, *, why: str = "") -> int:
        """Move the replica of a write group from node `old` to node `new`; None: the metadata leader picks
        the live node that suits best. The storage roles carry it out later. Returns the new node; raises
        `InvalidPlacement`."""
        if new is None:
            draining = self._lookups.draining
            alive = self._lookups.alive(NodeRole.STORAGE)
            locations = {node.node_id: node.location for node in alive if node.node_id not in draining}
            placements = self._replica.state.placements
            new = replacement_for(old, placements.get(group, ()), locations, placements)
        if new is None:
            raise InvalidPlacement(f"write group {group}: every node that lives and stores has a replica of it already")
        (outcome,) = (await self._requests.change(WantMove(group, old, new, why))).items
        if isinstance(outcome, NameserverError):
            raise outcome
        return new

    async def prefer_leader(self, group: int, node_id: int, *, why: str = "") -> None:
        """Have the replica on this node lead a write group. The leadership follows within seconds. Raises
        `InvalidPlacement`, `FeatureLevelTooLow`, `MetadataUnavailable`."""
        self._check_elastic("another preferred leader")
        await self._change(WantPreference(group, node_id, why))

    async def add_write_groups(self, total: int, replication_factor: int = 0) -> None:
        """Have the cluster come to `total` write groups, which is more than it has, the new ones with so many replicas
        (0: as the first ones); they have leaders within seconds. Raises `InvalidPlacement`, `FeatureLevelTooLow`,
        `MetadataUnavailable`."""
        self._check_level(FeatureLevel.REGROUPED, "more write groups")
        if replication_factor:
            self._check_level(FeatureLevel.CLASSED, "a replication factor of write groups")
            if not 1 <= replication_factor <= NODES_MAX:
                raise InvalidPlacement(
                    f"a write group has 1 to {NODES_MAX} replicas, on as many nodes, not {replication_factor}"
                )
        alive = [node.node_id for node in self._lookups.alive(NodeRole.STORAGE)]
        await self._change(WantWriteGroups(total, alive, replication_factor))

    async def add_write_group_on(self, node_ids: Sequence[int]) -> None:
        """Have one more write group begin on exactly these nodes, of which the first one is to lead it. Raises as
        `add_write_groups`."""
        self._check_level(FeatureLevel.CLASSED, "a write group on nodes of one's choice")
        alive = {node.node_id for node in self._lookups.alive(NodeRole.STORAGE)}
        for node_id in node_ids:
            if node_id not in alive or node_id in self._lookups.draining:
                raise InvalidPlacement(f"node {node_id} is drained, or does not live: no write group begins there now")
        number = self._lookups.write_groups()
        await self._change(WantWriteGroups(number + 1, sorted(node_ids), len(node_ids)))
        if self._lookups.placements().get(number, (0,))[0] != node_ids[0]:
            await self.prefer_leader(number, node_ids[0], why="a client asked for these nodes")

    async def move_slot_of(self, name: str, partition: int, group: int, beside: Sequence[tuple[str, int]] = ()) -> None:
        """Have the slot of a partition move to a write group, with all queues that hash to it. It begins at once; the
        slot is there when `lookups.write_group` says so. `beside`: other partitions that may have as few copies as that
        write group keeps. Raises `InvalidPlacement`, `UnknownTopic`,
        `FeatureLevelTooLow`, `MetadataUnavailable`."""
        self._check_level(FeatureLevel.MOVABLE, "a move between write groups")
        await self._change(WantSlotMove(name, partition, group, list(beside)[:BESIDE_MAX]))

    async def slot_move_begins(self, slot: int, group: int, number: int) -> None:
        """Note that a slot is about to be fenced. Raises `InvalidPlacement` where the move was taken back,
        `MetadataUnavailable`."""
        await self._change(WantSlotMoveBegun(slot, group, number))

    async def keep_slot(self, slot: int) -> None:
        """Take the move of a slot back. Raises `NotMoving`, `MoveBegun` where it is too late, `FeatureLevelTooLow`,
        `MetadataUnavailable`."""
        self._check_level(FeatureLevel.RECALLABLE, "to take back a move between write groups")
        await self._change(WantSlotKept(slot))

    async def slot_moved(self, slot: int, group: int, number: int, others: Sequence[int]) -> None:
        """Note that a slot has moved; the write groups `others` have records of its queues. Raises `InvalidPlacement`,
        `MetadataUnavailable`."""
        await self._change(WantSlotMoved(slot, group, number, list(others)))

    async def slot_settled(self, slot: int, number: int) -> None:
        """Note that only its write group has records of a slot's queues. Raises `MetadataUnavailable`."""
        await self._change(WantSlotSettled(slot, number))

    async def set_draining(self, node_id: int, *, draining: bool) -> None:
        """Have a node give away what it holds, which begins within a second; or stop that, where moves that are under
        way are finished. Raises `InvalidPlacement`, `FeatureLevelTooLow`, `MetadataUnavailable`."""
        self._check_elastic("draining a node")
        await self._change(WantDraining(node_id, draining))

    async def remove_node(self, node_id: int) -> None:
        """Take a node that is drained and dead out of the cluster for good. Raises `InvalidPlacement` saying what it
        still has, `FeatureLevelTooLow`, `MetadataUnavailable`."""
        self._check_elastic("removing a node")
        await self._change(WantNodeRemoval(node_id))

    def _check_elastic(self, what: str) -> None:
        self._check_level(FeatureLevel.ELASTIC, what)

    def _check_level(self, level: FeatureLevel, what: str) -> None:
        if self._lookups.feature_level < level:
            raise FeatureLevelTooLow(
                f"the cluster is at feature level {self._lookups.feature_level}, {what} takes level "
                f"{level}: mainstem cluster feature-level --raise, once all nodes run a version that "
                "has it"
            )  # a leader of an older version would not understand the request

    async def change_member(self, old: int, new: int) -> None:
        """Replace voter `old` of the metadata quorum by node `new`, which is registered and runs; 0 for none.
        Raises `InvalidMembership`, `MetadataUnavailable`."""
        ports = self._ports
        if ports is None:
            raise InvalidMembership("this node is a cluster of its own: it takes nameserver.peers to be more")
        try:
            if self._quorum.serves:
                await change_member(self._quorum, self._replica, ports, old, new)
                return
            reply = await ports.calls.call(
                self._quorum.whom_to_ask(),
                CHANGE_MEMBER,
                ChangeMember(old, new),
                timeout_seconds=CATCH_UP_SECONDS_MAX,
            )
        except (NotLeading, Unsettled, RpcError) as error:
            self._quorum.asked_in_vain()
            raise MetadataUnavailable(f"the change of members may not be done: {error}; begin it again") from error
        for refusal in reply.message.refusals:
            raise refusal_of(refusal.kind, refusal.message)
