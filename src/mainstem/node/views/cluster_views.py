"""Views of the cluster's nodes and write groups, and the changes of these that operators ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import mainstem
from mainstem.address import Address
from mainstem.console.views.of_cluster import (
    BalanceView,
    ClusterView,
    DrainView,
    LostNodeView,
    MoveView,
    NodeView,
    ReplicaView,
    SlotMoveView,
    WriteGroupView,
)
from mainstem.model import OWN_LEVELS, Node, NodeRole, slot_of
from mainstem.nameserver.cluster.balance_planner import BalancePlanner
from mainstem.nameserver.cluster.begun_moves import begin_moves
from mainstem.nameserver.cluster.draining import Draining
from mainstem.nameserver.errors import MetadataUnavailable, NameserverError
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.plans.balance_plan import beginning, preferring
from mainstem.nameserver.state.plans.drain_plan import PlannedMove, Standings, left_on, moves_under_way
from mainstem.node.broker_role.cluster_admin import NodeClusterAdmin
from mainstem.node.broker_role.queue_moves import NodeQueueMoves
from mainstem.node.config import NodeConfig
from mainstem.node.node_reports import NodeReports, led_groups, loads_among, moves_among, slot_moves_among, standings_of
from mainstem.node.views.disk_view import disk, own_disk
from mainstem.node.views.load_views import (
    balance_move_view,
    balancer_view,
    node_load_view,
    queue_shift_view,
    write_group_load_view,
)
from mainstem.rpc.errors import RpcError
from mainstem.rpc.messages.cluster import LedWriteGroup, NodeReport
from mainstem.rpc.messages.loads import ToldLoads
from mainstem.storage.role import Storage


class LocalClusterViews:
    """The knowledge of this node itself, and the reports of the other nodes when they are asked."""

    def __init__(
        self,
        *,
        config: NodeConfig,
        nameserver: Nameserver,
        storage: Storage | None,
        write_dir: Path,
        store_dir: Path,
        rpc: tuple[str, int],
        node: Node,
        reports: NodeReports,
        leader_of: Callable[[int], int],
        draining: Draining,
        planner: BalancePlanner,
    ) -> None:
        """`storage` None: this node has none, and no `store_dir`."""
        self._config = config
        self._nameserver = nameserver
        self._storage = storage
        self._write_dir = write_dir
        self._own_store_dir = None if config.shares_store or storage is None else store_dir
        self._rpc = rpc
        self._node = node
        self._reports = reports
        self._leader_of = leader_of
        self._draining = draining
        self._planner = planner
        self._admin = NodeClusterAdmin(nameserver, reports)
        self._queue_moves = NodeQueueMoves(nameserver, reports, has_objects=bool(config.objects_url))

    async def cluster(self) -> ClusterView:
        topics, partitions = self._nameserver.lookups.totals()
        nodes = self._nameserver.lookups.nodes()
        reports = await self._reports.of([node.node_id for node in nodes])
        led = led_groups(reports.values())
        standings = standings_of(led, self._nameserver.lookups.guests())
        loads = loads_among(reports.values())
        slots = Counter(self._nameserver.lookups.slots())
        return ClusterView(
            cluster_id=self._nameserver.lookups.cluster_id(),
            nodes=[self._node_view(node, reports.get(node.node_id), loads) for node in nodes],
            write_groups=[
                self._group_view(group, slots[group], led.get(group), loads)
                for group in range(self._nameserver.lookups.write_groups())
            ],
            write_disk=disk(self._write_dir, self._storage.journal.bytes_used() if self._storage is not None else 0),
            store_disk=own_disk(
                self._own_store_dir, self._storage.queue_store.stored.file_bytes() if self._storage is not None else 0
            ),
            drains=self._drains(standings),
            lost_nodes=self._lost_nodes(standings),
            moves=[
                MoveView(group=it.group, old=it.old, new=it.new)
                for it in moves_under_way(self._nameserver.lookups.placements(), standings)
            ],
            slot_moves=self._slot_moves(),
            balancer=balancer_view(
                reports.get(self._nameserver.lookups.metadata_leader),
                moves_among(reports.values()),
                slot_moves_among(reports.values()),
            ),
            topics=topics,
            partitions=partitions,
            next_node_id=self._nameserver.lookups.next_node_id(),
            metadata_leader=self._nameserver.lookups.metadata_leader,
            feature_level=self._nameserver.lookups.feature_level,
            feature_level_newest=OWN_LEVELS.newest,
            shared_store=self._config.shared_store_place if self._storage is not None else None,
        )

    def _slot_moves(self) -> list[SlotMoveView]:
        lookups = self._nameserver.lookups
        slots, standing = lookups.slots(), self._storage.mover.standing if self._storage is not None else {}
        return [
            SlotMoveView(slot=slot, before=slots[slot], to=wish.group, waits_for=standing.get(slot, ""))
            for slot, wish in sorted(lookups.moving_slots.wishes.items())
        ]

    def _node_view(self, node: Node, report: NodeReport | None, loads: ToldLoads) -> NodeView:
        own = node.node_id == self._node.node_id
        registered = self._nameserver.lookups.registered(node.node_id)
        verdict = self._nameserver.lookups.verdict(node.node_id)
        return NodeView(
            node_id=node.node_id,
            host=node.host,
            port=node.port,
            rpc=str(Address(*self._rpc)) if own else registered.rpc if registered is not None else None,
            http=report.http if report is not None else None,
            roles=tuple(role for role in NodeRole if role in node.roles),
            version=mainstem.__version__ if own else registered.version if registered is not None else "",
            uptime_seconds=report.uptime_seconds if report is not None else 0.0,
            rack=node.rack,
            machine=node.machine,
            state=verdict.state.value,
            reason=verdict.reason,
            level_newest=report.level_newest if report is not None else None,
            not_back=tuple(report.not_back) if report is not None else (),
            forgot=report.forgot if report is not None else "",
            waiting=report.waiting if report is not None else {},
            load=next((node_load_view(it) for it in loads.nodes if it.node == node.node_id), None),
        )

    def _group_view(self, number: int, slots: int, led: LedWriteGroup | None, loads: ToldLoads) -> WriteGroupView:
        placed = self._nameserver.lookups.placements().get(number, ())
        own = self._storage.groups[number] if self._storage is not None else None
        replicas = [ReplicaView(node=node, lag_blocks=-1, active=False) for node in sorted(placed)]
        if led is not None:
            replicas = [
                ReplicaView(
                    node=member.node,
                    lag_blocks=max(0, led.last_index - member.match_index),
                    active=member.active,
                    voter=member.voter,
                )
                for member in led.members
            ]
        return WriteGroupView(
            group=number,
            leader=self._leader_of(number),
            term=led.term if led is not None else own.term if own is not None else -1,
            committed=led.committed if led is not None else own.applied_index if own is not None else -1,
            preferred_leader=self._nameserver.lookups.preferred_leader(number),
            slots=slots,
            replication_factor=len(placed),
            replicas=replicas,
            load=next(
                (
                    write_group_load_view(it, self._nameserver.lookups.topic_by_number)
                    for it in loads.write_groups
                    if it.group == number
                ),
                None,
            ),
        )

    def _drains(self, standings: Standings) -> list[DrainView]:
        """How far each drained node is, and what it waits for."""
        lookups = self._nameserver.lookups
        placements, obstacles = lookups.placements(), self._draining.plan(standings).obstacles
        vote = self._draining.vote_to_move()
        views = []
        for node_id in sorted(lookups.draining):
            left = left_on(node_id, placements, standings)
            votes = node_id in lookups.metadata_voters
            waits = [obstacles[group] for group in left if group in obstacles]
            if votes and vote is None:
                waits.append(
                    "it votes on the metadata, and no other node takes its vote: add one that is not drained and has "
                    "the role nameserver"
                )
            views.append(
                DrainView(node=node_id, groups_left=left, votes=votes, empty=not left and not votes, waits_for=waits)
            )
        return views

    def _lost_nodes(self, standings: Standings) -> list[LostNodeView]:
        """The dead nodes that others still wait for, or whose replicas are being rebuilt."""
        lookups = self._nameserver.lookups
        placements, obstacles = lookups.placements(), self._draining.plan(standings).obstacles
        views = []
        for node_id, dead in self._draining.lost_nodes.dead.items():
            left = [] if node_id in lookups.draining else left_on(node_id, placements, standings)
            if not left:
                continue
            waits = [obstacles[group] for group in left if group in obstacles]
            if self._draining.lost_nodes.outage:
                waits = ["half of the nodes that store are dead, or more: see what they have in common"]
            views.append(
                LostNodeView(
                    node=node_id, dead_seconds=dead.dead_seconds, rebuilt_in_seconds=dead.rebuilt_in_seconds,
                    groups_left=left, waits_for=waits,
                )
            )  # fmt: skip
        return views

    async def drain_node(self, node_id: int, *, cancel: bool) -> str | None:
        if self._nameserver.others is None:
            return "this node is a cluster of its own: there is no other node to take what it holds"
        try:
            await self._nameserver.operations.set_draining(node_id, draining=not cancel)
        except NameserverError as error:
            return str(error)
        return None

    async def add_write_groups(self, total: int, replication_factor: int | None) -> str | None:
        try:
            await self._nameserver.operations.add_write_groups(total, replication_factor or 0)
        except NameserverError as error:
            return str(error)
        return None

    async def move_queue(self, topic: str, partition: int, group: int | None) -> str | None:
        if group is not None:
            return await _refusal(self._queue_moves.move(topic, partition, group))
        found = self._nameserver.lookups.topic(topic)
        if found is None or partition >= found.partitions:
            return f"there is no partition {partition} of topic {topic!r}"
        return await _refusal(self._queue_moves.take_back(slot_of(found.queue_id(partition))))

    async def rebalance(self, *, dry_run: bool) -> BalanceView | str:
        if self._nameserver.others is None:
            return "this node is a cluster of its own: there is no other node to take anything"
        plan = await self._planner.plan()
        begin, waiting = beginning(plan.moves, plan.placements, plan.standings)
        replicas = set() if dry_run else set(begin)
        leaders = [] if dry_run else preferring(plan.moves, plan.placements, plan.standings)
        due = [it for it in plan.moves if not it.preferred and PlannedMove(it.group, it.old, it.new) in replicas]
        try:
            begun, refused = await begin_moves([*due, *leaders], self._nameserver.operations)
        except MetadataUnavailable as error:
            return str(error)
        copied = {}
        if dry_run:  # a person looks at it
            copied = await self._reports.bytes_of((it.group, it.old) for it in plan.moves if not it.preferred)
        return BalanceView(
            moves=[balance_move_view(it, copied.get((it.group, it.old))) for it in plan.moves if it not in begun],
            begun=sum(not it.preferred for it in begun),
            leaders_begun=sum(it.preferred for it in begun),
            by_load=plan.by_load,
            under_way=len(moves_under_way(plan.placements, plan.standings)),
            waits_for=[*refused, *waiting.values()],
            without_room=plan.without_room,
            staying=[f"write group {group}: {why}" for group, why in sorted(plan.staying.items())],
            queue=queue_shift_view(plan.queue, self._nameserver.lookups.topic_by_number),
            bytes_per_second=self._config.storage.snapshot_bytes_per_second,
        )

    async def remove_node(self, node_id: int) -> str | None:
        return await _refusal(self._admin.remove_node(node_id))

    async def transfer_leader(self, group: int, to: int) -> str | None:
        try:
            groups = self._nameserver.lookups.write_groups()
            await self._reports.transfer_leader(group, to, self._leader_of, groups)
        except RpcError as error:
            return str(error)
        return None

    async def replace_node(self, old: int, new: int) -> str | None:
        nameserver = self._nameserver
        placements = nameserver.lookups.placements()
        if why := self._unfit(old, new):
            return why
        both = [group for group, replicas in placements.items() if old in replicas and new in replicas]
        if new in nameserver.lookups.draining:
            return f"node {new} is drained, and takes nothing: mainstem cluster drain {new} --cancel"
        if old == new or both:
            why = f"it has replicas of the same write groups ({both[0]}, …)" if both else "it is the same node"
            return f"node {new} cannot take the place of node {old}: {why}"
        try:
            for group, replicas in placements.items():
                if old in replicas:
                    await nameserver.operations.move_replica(group, old, new, why=f"node {new} replaces node {old}")
            voters = nameserver.lookups.metadata_voters
            if old in voters:
                await nameserver.operations.change_member(old, new)
            elif new not in voters and len(voters) < len(self._config.nameserver.peers) and self._may_vote(new):
                await nameserver.operations.change_member(0, new)  # the old node was given up
        except NameserverError as error:
            return str(error)
        return None

    def _may_vote(self, node_id: int) -> bool:
        return any(
            node.node_id == node_id and NodeRole.NAMESERVER in node.roles for node in self._nameserver.lookups.nodes()
        )

    def _unfit(self, old: int, new: int) -> str | None:
        """Why a node cannot take over what another has, as it lacks a role for that; None: it can."""
        lookups = self._nameserver.lookups
        roles = {node.node_id: node.roles for node in lookups.nodes()}
        if new not in roles:
            return None  # as the changes themselves say
        needed = {NodeRole.STORAGE} if any(old in replicas for replicas in lookups.placements().values()) else set()
        needed |= {NodeRole.NAMESERVER} if old in lookups.metadata_voters else set()
        lacking = ", ".join(sorted(needed - roles[new]))
        return (
            f"node {new} cannot take the place of node {old}: it does not have the role {lacking}" if lacking else None
        )

    async def raise_feature_level(self, level: int) -> str | None:
        return await _refusal(self._admin.raise_feature_level(level))


async def _refusal(change: Awaitable[None]) -> str | None:
    """Why a change was refused; None: it was made."""
    try:
        await change
    except NameserverError as error:
        return str(error)
    return None
