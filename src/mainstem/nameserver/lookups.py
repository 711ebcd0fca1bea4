"""What a node knows of the metadata: answered from memory, at once."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

from mainstem.model import FeatureLevel, Node, Topic, partition_of, topic_number_of
from mainstem.nameserver.commands import RegisterNode
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.group_leaders import GroupLeaders, Leading
from mainstem.nameserver.liveness import ALIVE, State, Verdict
from mainstem.nameserver.replica import Replica
from mainstem.nameserver.state import MetadataState


class MetadataLookups:
    """Implements `ports.Metadata`."""

    def __init__(self, replica: Replica, config: NameserverConfig) -> None:
        self._replica = replica
        self._config = config
        self._leaders = GroupLeaders()

    @property
    def _state(self) -> MetadataState:
        return self._replica.state

    @property
    def version(self) -> int:
        """Goes up with every change that this node has applied."""
        return self._replica.applied_index

    # topics

    def topic(self, name: str) -> Topic | None:
        return self._state.topic(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._state.topic_by_id(topic_id)

    def topic_by_number(self, number: int) -> Topic | None:
        return self._state.topic_by_number(number)

    def topics(self) -> Iterable[Topic]:
        return tuple(self._state.topics.values())

    def totals(self) -> tuple[int, int]:
        """How many topics there are, and how many partitions they have."""
        return len(self._state.topics), self._state.partitions_total

    def was_deleted(self, topic_number: int) -> bool:
        """Whether a topic of this number was deleted, so that what is left of its data may go. False for one
        that the metadata has never heard of."""
        return self._state.was_deleted(topic_number)

    def topic_defaults(self) -> Mapping[str, str]:
        """This node's defaults of topic configs, where they differ from Kafka's."""
        return self._config.topic_defaults

    # the cluster

    def cluster_id(self) -> str:
        assert self._state.cluster is not None
        return self._state.cluster.cluster_id

    def slots(self) -> Sequence[int]:
        """The write group of each of the 4,096 slots."""
        assert self._state.cluster is not None
        return self._state.cluster.slots

    def write_groups(self) -> int:
        """How many write groups the cluster has."""
        assert self._state.cluster is not None
        return self._state.cluster.write_groups

    def nodes(self) -> Sequence[Node]:
        """All that are registered."""
        return self._state.nodes

    def registered(self, node_id: int) -> RegisterNode | None:
        """All that a node registered of itself."""
        return self._state.registered(node_id)

    def verdict(self, node_id: int) -> Verdict:
        """Whether a node lives, as far as the metadata leader knows and this node has heard."""
        return self._verdicts().get(node_id, ALIVE)

    def alive_nodes(self) -> Sequence[Node]:
        """Those that are not held for dead."""
        return [node for node in self._state.nodes if self.verdict(node.node_id).state is not State.DEAD]

    @property
    def out_of_touch(self) -> bool:
        """See `ports.Cluster`."""
        return False

    @property
    def feature_level(self) -> FeatureLevel:
        """What the cluster may write, as far as this node knows: it may be higher already, never lower."""
        return self._state.feature_level

    # write groups

    def placements(self) -> Mapping[int, tuple[int, ...]]:
        """Per write group the nodes of its replicas, preferred leader first; empty until groups are placed."""
        return dict(self._state.placements)

    def preferred_leader(self, group: int) -> int:
        """-1: the group is not placed."""
        replicas = self._state.placements.get(group)
        return replicas[0] if replicas else -1

    def group_leaders(self) -> Mapping[int, Leading]:
        """Per write group its leader and term, of the newest term that this node has heard of."""
        return self._leaders.all()

    def leader(self, queue_id: int) -> int:
        topic = self._state.topic_by_number(topic_number_of(queue_id))
        if topic is None or partition_of(queue_id) >= topic.partitions:
            return -1
        return self.group_leader(self._state.write_group(queue_id))

    def group_leader(self, group: int) -> int:
        """The node id of a write group's leader, -1 when none is known to live."""
        known = self._leaders.of(group)
        if known is not None:
            return -1 if self.verdict(known.node).state is State.DEAD else known.node
        alone = self._state.placements.get(group, ()) == (self._config.node_id,)
        return self._config.node_id if alone else -1

    def _verdicts(self) -> Mapping[int, Verdict]:
        return {}
