"""A node answers questions about the metadata at once: from its replica in memory, and from what it has heard of the
other nodes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from mainstem.model import (
    FeatureLevel,
    Node,
    NodeRole,
    ScramCredential,
    ScramMechanism,
    Topic,
    TopicsAsOf,
    partition_of,
    slots_in_turns,
    topic_number_of,
)
from mainstem.nameserver.cluster.disk_pressures import NO_PRESSURE
from mainstem.nameserver.cluster.heartbeats import Heartbeats
from mainstem.nameserver.cluster.node_liveness import ALIVE, LivenessVerdict, NodeState, Report
from mainstem.nameserver.cluster.write_group_leaders import Leading, WriteGroupLeaders
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.nameserver.state.commands import RegisterNode
from mainstem.nameserver.state.moving_slots import MovingSlots
from mainstem.nameserver.state.replica import MetadataReplica
from mainstem.nameserver.state.resource_configs.config_table import ConfigTable
from mainstem.nameserver.state.state import MetadataState
from mainstem.security.acls.acl_table import AclTable
from mainstem.security.quotas.quota_table import QuotaTable
from mainstem.security.tenants.tenant_table import TenantTable
from mainstem.security.tokens.token_table import TokenTable


class MetadataLookups:
    """Implements `ports.Metadata` and `ports.Cluster`."""

    def __init__(
        self,
        replica: MetadataReplica,
        config: NameserverConfig,
        quorum: MetadataQuorum,
        leaders: WriteGroupLeaders,
        heartbeats: Heartbeats | None,
        cut_off: Callable[[int], bool] = lambda node_id: False,
    ) -> None:
        """`heartbeats` None: there are no other nodes. `cut_off`: whether the connection to a node has just ended."""
        self._replica = replica
        self._config = config
        self._quorum = quorum
        self._leaders = leaders
        self._heartbeats = heartbeats
        self._cut_off = cut_off

    @property
    def _state(self) -> MetadataState:
        return self._replica.state

    @property
    def version(self) -> int:
        """A counter that goes up with every change that this node has applied."""
        return self._replica.applied_index

    # topics

    def topic(self, name: str) -> Topic | None:
        return self._replica.state.topic_table.by_name.get(name)  # each request asks

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._state.topic_by_id(topic_id)

    def topic_by_number(self, number: int) -> Topic | None:
        return self._state.topic_by_number(number)

    def topics(self) -> Iterable[Topic]:
        return tuple(self._state.topics.values())

    async def topics_as_of(self) -> TopicsAsOf:
        """All topics, between two entries of the metadata's log."""
        async with self._replica.still():
            groups, slots = self.write_groups(), self.slots()
            grown = () if slots == slots_in_turns(groups) else tuple(slots)
            return TopicsAsOf(self.version, self._state.next_topic_number, groups, tuple(self.topics()), grown)

    def totals(self) -> tuple[int, int]:
        """How many topics there are, and how many partitions they have."""
        return len(self._state.topics), self._state.partitions_total

    def was_deleted(self, topic_number: int) -> bool:
        """Whether a topic of this number was deleted, so that the rest of its data may be removed. False for
        a number that the metadata has never heard of."""
        return self._state.was_deleted(topic_number)

    def topic_defaults(self) -> Mapping[str, str]:
        """This node's defaults of topic configs, where they differ from Kafka's."""
        return self._config.topic_defaults

    # access rules

    def acls(self) -> AclTable:
        """The access rules; another table after a snapshot."""
        return self._replica.state.acl_table

    # quotas

    def quotas(self) -> QuotaTable:
        """The quotas; another table after a snapshot."""
        return self._replica.state.quota_table

    # configs of what is no topic

    def resource_configs(self) -> ConfigTable:
        """The configs of client metrics, consumer groups and brokers; another table after a snapshot."""
        return self._replica.state.config_table

    # tenants

    def tenants(self) -> TenantTable:
        """The tenants; another table after a snapshot."""
        return self._replica.state.tenant_rules.table

    # delegation tokens

    def tokens(self) -> TokenTable:
        """The delegation tokens; another table after a snapshot."""
        return self._replica.state.token_table

    # users

    def scram_credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self._state.scram_table.credential(user, mechanism)

    def scram_users(self) -> Mapping[str, Sequence[ScramCredential]]:
        """Live: copy it before an await."""
        return self._state.scram_table.users

    def absent_users_secret(self) -> bytes:
        """Empty as long as there has been no user."""
        return self._state.scram_table.absent_users_secret

    # the cluster

    def cluster_id(self) -> str:
        assert self._state.cluster is not None
        return self._state.cluster.cluster_id

    def slots(self) -> Sequence[int]:
        """The write group of each slot, class by class."""
        assert self._state.cluster is not None
        return self._state.cluster.slots

    def write_groups(self) -> int:
        """How many write groups the cluster has."""
        assert self._state.cluster is not None
        return self._state.cluster.write_groups

    def nodes(self) -> Sequence[Node]:
        """All registered nodes."""
        return self._state.nodes

    def registered(self, node_id: int) -> RegisterNode | None:
        """All that a node registered of itself."""
        return self._state.registered(node_id)

    def verdict(self, node_id: int) -> LivenessVerdict:
        """Whether a node lives, as the metadata leader last told this node."""
        return self._verdicts().get(node_id, ALIVE)

    def alive_nodes(self) -> Sequence[Node]:
        """The brokers that are not held for dead. One without storage is missed as soon as its connection to this node
        ends, before the metadata's leader has judged it: its clients ask for another broker at that moment."""
        return [node for node in self.alive(NodeRole.BROKER) if node.stores or not self._cut_off(node.node_id)]

    def alive(self, role: NodeRole) -> list[Node]:
        """The nodes with this role that are not held for dead."""
        nodes = self._state.node_table.with_role(role)
        return [node for node in nodes if self.verdict(node.node_id).state is not NodeState.DEAD]

    def report(self, node_id: int) -> Report | None:
        """The report of a node in its last heartbeat; None: unknown, as on all nodes but the metadata leader."""
        if self._heartbeats is None or not self._quorum.serves:
            return None
        return self._heartbeats.liveness().report(node_id)

    @property
    def out_of_touch(self) -> bool:
        return self._heartbeats is not None and self._heartbeats.out_of_touch

    def unheard_seconds(self) -> float:
        """How long ago this node heard from the metadata's leader last; 0 while it leads, or is alone."""
        return 0.0 if self._heartbeats is None else self._heartbeats.unheard_seconds()

    @property
    def feature_level(self) -> FeatureLevel:
        """The level at which the cluster may write, as far as this node knows: it may be higher already,
        never lower."""
        return self._state.feature_level

    def quorum_times(self) -> list[int | None] | None:
        """The readings of the clocks of the metadata quorum's members now, in ms, None for a clock not heard lately;
        None instead of the list: this node is alone, or a member's version does not report its clock."""
        if self._heartbeats is None or self.feature_level < FeatureLevel.HARDENED:
            return None
        return self._heartbeats.quorum_times()

    def followers_pressure(self) -> tuple[float, frozenset[str]]:
        """The highest pressure on a disk 1 of other nodes that follow a write group which this node leads, as far as
        is known, and the tenants that have filled such disks; minus infinity: they have room."""
        if self._heartbeats is None:
            return NO_PRESSURE, frozenset()
        own = self._config.node_id
        led = (nodes for group, nodes in self.placements().items() if self.write_group_leader(group) == own)
        return self._heartbeats.disk_pressures.of({node for nodes in led for node in nodes} - {own})

    # the metadata quorum

    @property
    def metadata_leader(self) -> int:
        """The node id of the metadata quorum's leader, as far as this node knows; -1: it knows none."""
        if self._quorum.leader_id == self._quorum.node_id:
            return self._config.node_id
        return self._quorum.leader_id or -1

    @property
    def metadata_term(self) -> int:
        """The metadata quorum's term, as far as this node knows."""
        return self._quorum.term

    @property
    def leads_metadata(self) -> bool:
        """Whether this node leads the metadata quorum and has applied all that was committed before it
        did."""
        return self._quorum.serves

    @property
    def is_metadata_member(self) -> bool:
        """Whether this node is a member of the metadata quorum, as far as it knows."""
        return self._quorum.is_member

    @property
    def metadata_voters(self) -> frozenset[int]:
        """The nodes that vote in the metadata quorum, as far as this node knows."""
        return self._quorum.membership.voters

    # write groups

    def placements(self) -> Mapping[int, tuple[int, ...]]:
        """Per write group the nodes of its replicas, preferred leader first; empty until groups are placed."""
        return dict(self._state.placements)

    def founders(self) -> Mapping[int, tuple[int, ...]]:
        """Per write group that was added to those of the beginning, the nodes that began it."""
        return self._state.node_table.founders

    @property
    def moving_slots(self) -> MovingSlots:
        """The slots that move between write groups, and those that have."""
        return self._state.moving_slots

    def staying(self) -> Mapping[int, str]:
        """The write groups whose replicas must stay where they are for the sake of queues that move, and why."""
        return self._state.staying()

    def guests(self) -> Mapping[int, frozenset[int]]:
        """Per write group the nodes that follow it without a replica of their own, for the sake of queues that have
        records in it (`MovingSlots.guests`)."""
        return self._state.moving_slots.guests(self.slots(), self._state.placements)

    def next_node_id(self) -> int:
        """An id that no node has or had, as far as removed nodes are remembered."""
        table = self._state.node_table
        return max([0, *table.nodes, *table.removed]) + 1

    @property
    def draining(self) -> frozenset[int]:
        """The nodes that give away what they hold, and those that have."""
        return frozenset(self._state.node_table.draining)

    def preferred_leader(self, group: int) -> int:
        """The node that should lead the write group; -1: the write group is not placed."""
        replicas = self._state.placements.get(group)
        return replicas[0] if replicas else -1

    def write_group_leaders(self) -> Mapping[int, Leading]:
        """Per write group its leader and term, by the newest term that this node has heard of."""
        return self._leaders.all()

    def write_group(self, queue_id: int) -> int:
        """The write group of a queue, whether or not it exists."""
        return self._state.write_group(queue_id)

    def leader(self, queue_id: int) -> int:
        topic = self._state.topic_by_number(topic_number_of(queue_id))
        if topic is None or partition_of(queue_id) >= topic.partitions:
            return -1
        return self.write_group_leader(self._state.write_group(queue_id))

    def write_group_leader(self, group: int) -> int:
        """The node id of a write group's leader; -1: this node knows no live leader."""
        known = self._leaders.of(group)
        if known is not None:
            return -1 if self.verdict(known.node).state is NodeState.DEAD else known.node
        alone = self._state.placements.get(group, ()) == (self._config.node_id,)
        return self._config.node_id if alone else -1

    def heard(self, group: int) -> tuple[int, int]:
        """A write group's leader and its term, as other nodes have told; -1: none has."""
        known = self._leaders.of(group)
        return self.write_group_leader(group), -1 if known is None else known.term

    def _verdicts(self) -> Mapping[int, LivenessVerdict]:
        return self._heartbeats.verdicts if self._heartbeats is not None else {}
