"""A cluster of whole nodes of which some join later, and others leave; an operator may ask any of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import ClassVar

import msgspec
from tests.simulation.cluster.lives import ClusterLoop, Life
from tests.simulation.elastic.copies import Copies
from tests.simulation.oracle import require
from tests.simulation.whole.cluster import WholeCluster, WholeSettings
from tests.simulation.whole.growing import GrowingNode
from tests.simulation.whole.node import WholeNode

from mainstem.model import CLASSED, Topic, topic_number_of
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.commands import Event, PartitionsAdded, TopicCreated, WriteGroupsAdded, WriteGroupsPlaced
from mainstem.node.config import NodeConfig
from mainstem.node.moving_duties import MovingDuties, leader_of, moving_duties
from mainstem.node.node_roles import Roles
from mainstem.node.views.cluster_views import LocalClusterViews
from mainstem.raft import KIND_MEMBERSHIP, Membership
from mainstem.storage.role import Storage

COPIES = 3


class ElasticSettings(WholeSettings):
    """As of whole nodes; there are more write groups than nodes have in common, and the lost are given up soon."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.nodes = COPIES
        self.groups = rng.choice([2, 3, 4])
        self.spares = rng.choice([1, 1, 2])
        """Nodes that join later."""
        self.snapshots = True
        self.begins_old = False
        self.rebuild_after_seconds = rng.choice([1, 2, 4])

    @property
    def copies(self) -> int:
        return COPIES

    def config(self, node_id: int) -> NodeConfig:
        config = super().config(node_id)
        nameserver = msgspec.structs.replace(
            config.nameserver, heartbeat_ms=300, suspect_ms=900, refused_ms=900, dead_ms=2000,
            rebuild_after_seconds=self.rebuild_after_seconds,
        )  # fmt: skip
        nameserver.validate()
        return msgspec.structs.replace(config, nameserver=nameserver, rpc=f"10.0.0.{node_id}:9093")


class ElasticNode(GrowingNode):
    """Has what operators ask, and empties drained and lost nodes when it leads the metadata."""

    cluster: ElasticCluster
    views: LocalClusterViews
    """Of its newest life."""

    def _before_balance(self, roles: Roles) -> None:
        nameserver, setup = roles.nameserver, roles.setup
        assert roles.held is not None
        reports = roles.reports
        duties = moving_duties(nameserver, reports, leader_of(roles))
        setup.background.begin(duties.draining.run, "drains")
        self._begin_balancing(roles, duties)
        self.views = LocalClusterViews(
            config=setup.config,
            nameserver=nameserver,
            storage=roles.storage,
            write_dir=setup.ports.write_dir,
            store_dir=setup.ports.store_dir,
            rpc=(f"10.0.0.{self.node_id}", 9093),
            node=setup.identity,
            reports=reports,
            leader_of=leader_of(roles),
            draining=duties.draining,
            planner=duties.planner,
        )

    def _begin_balancing(self, roles: Roles, duties: MovingDuties) -> None:
        """The duties of this life are there, of which draining has begun."""

    def is_without(self, group: int) -> bool:
        """Whether nothing is here of a write group."""
        storage = self.storage
        replica = storage.groups[group]
        position = storage.stored.manifest.position(group).position
        return replica.consensus.core is None and not replica.last_index and not position

    # --- what is watched ----------------------------------------------------------------------------------

    def watch_metadata(self, nameserver: Nameserver, life: Life) -> None:
        super().watch_metadata(nameserver, life)
        copies = self.cluster.copies

        def heard(event: Event) -> None:
            if isinstance(event, WriteGroupsPlaced | WriteGroupsAdded):
                copies.founded(event.placements)
            if life.alive and isinstance(event, TopicCreated | PartitionsAdded | WriteGroupsAdded):
                self.cluster.guard(lambda: self.cluster.hashed(nameserver))

        copies.founded(nameserver.lookups.placements())
        nameserver.subscribe(heard)

    def watch_storage(self, storage: Storage, life: Life) -> None:
        super().watch_storage(storage, life)
        self._watch_memberships(storage, life)
        for group in storage.groups:
            self._watch_departure(group.group, storage, life)

    def _watch_new(self, group: int, storage: Storage, life: Life) -> None:
        self._watch_departure(group, storage, life)

    def _watch_memberships(self, storage: Storage, life: Life) -> None:
        cluster, apply = self.cluster, storage.state.block_applied

        def applied(header, directory, payload, watched):  # type: ignore[no-untyped-def]
            apply(header, directory, payload, watched)
            if life.alive and header.kind == KIND_MEMBERSHIP:
                membership = storage.groups[header.group].blocks.memberships.get(header.index)
                if membership is not None:
                    cluster.guard(lambda: cluster.copies.committed(header.group, header.index, membership))

        storage.state.block_applied = applied  # type: ignore[method-assign]

    def _watch_departure(self, group: int, storage: Storage, life: Life) -> None:
        cluster, consensus = self.cluster, storage.groups[group].consensus
        leave = consensus.leave

        def left() -> None:
            if life.alive:
                cluster.guard(lambda: cluster.copies.removes(self.node_id, group))
            leave()

        consensus.leave = left  # type: ignore[method-assign]


class ElasticCluster(WholeCluster):
    """`nodes` are those that have started and were not removed."""

    node_kind: ClassVar[type[WholeNode]] = ElasticNode
    spare_kind: ClassVar[type[ElasticNode]] = ElasticNode
    settings: ElasticSettings
    nodes: dict[int, ElasticNode]  # type: ignore[assignment]

    def __init__(self, seed: int, loop: ClusterLoop, directory: Path, settings: ElasticSettings) -> None:
        super().__init__(seed, loop, directory, settings)
        self.copies = Copies(self.history, self._known_members)
        self._group_of: dict[int, int] = {}
        self.removed: dict[int, ElasticNode] = {}
        """Nodes that are not of the cluster any more."""
        rng = random.Random(seed + 2)
        first = settings.nodes + 1
        self.spares = [
            self.spare_kind(self, node_id, directory, rng.randrange(1 << 30))
            for node_id in range(first, first + settings.spares)
        ]
        """Nodes that have not started yet."""

    def clocks_off(self) -> tuple[int, int]:
        """As `WholeCluster.clocks_off`, whichever of all nodes have voted so far: those whose clocks were worst."""
        clocks, voting = [node.clock for node in (*self.nodes.values(), *self.removed.values())], self.settings.nodes
        outvoted = voting - voting // 2 - 1
        behind = sorted(clock.ahead_ms_min for clock in clocks)[:voting]
        ahead = sorted(clock.ahead_ms_max for clock in clocks)[-voting:]
        return behind[-1 - outvoted], ahead[outvoted]

    def copies_of(self, topic: Topic, group: int) -> int:
        return self.copies.wanted(self.group_of(topic.queue_id(0)))

    def newest_metadata(self) -> Nameserver | None:
        """That of the node which has applied most; None: no node has any."""
        known = [node.roles.nameserver for node in self.nodes.values() if node.serving and node.roles]
        return max(known, key=lambda nameserver: nameserver.replica.applied_index, default=None)

    def group_of(self, queue_id: int) -> int:
        """The write group of a queue, which stays the same as long as the queue exists, and for those who remember it.
        Write groups that were added have slots of others since."""
        found = self._group_of.get(queue_id)
        if found is None:
            newest = self.newest_metadata()
            if newest is None:
                return super().group_of(queue_id)
            found = newest.lookups.write_group(queue_id)
            if newest.lookups.topic_by_number(topic_number_of(queue_id)) is not None:
                self._group_of[queue_id] = found
        return found

    def hashed(self, nameserver: Nameserver) -> None:
        """A node knows of these queues, and which write groups they hash to: the same as ever, and with as many copies
        as their topic asked for, where there is a choice (P)."""
        for topic in nameserver.lookups.topics():
            for partition in range(topic.partitions):
                queue_id = topic.queue_id(partition)
                group = nameserver.lookups.write_group(queue_id)
                first = self._group_of.setdefault(queue_id, group)
                require(
                    group == first,
                    f"queue {queue_id:#x} is in write group {first}, and its slot is given to write group {group}",
                    "P",
                )
                copies, asked = self.copies.wanted(group), topic.replication_factor
                where = f"queue {queue_id:#x} is in write group {group}, which keeps {copies} copies"
                require(copies == asked or topic.number < CLASSED, f"{where}, and the topic asks for {asked}", "P")

    def _known_members(self, group: int) -> tuple[int, Membership]:
        """The newest membership that a node which lives knows to be committed, and up to which block it knows that: it
        may not have applied it."""
        known = [
            (core.commit_index, core.membership_at(core.commit_index))
            for node in self.nodes.values()
            if node.serving is not None
            and group < len(node.serving.groups)
            and (core := node.serving.groups[group].consensus.core) is not None
        ]
        return max(known, key=lambda one: one[0], default=(-1, Membership.of(())))
