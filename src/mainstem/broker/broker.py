"""What a handler has at hand: the broker's ports and its few pieces of memory, and who is asking.

All of the memory can be lost: fetch sessions are renegotiated by clients, the group coordinator replays its
log. Changes of one topic, each of which touches metadata and queues, follow each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy

from mainstem.broker.auto_creation import AutoCreation
from mainstem.broker.config import BrokerConfig
from mainstem.broker.fetch_sessions import FetchSessions
from mainstem.broker.fetch_topics import FetchTopics
from mainstem.broker.key_checks import KeyChecks
from mainstem.broker.node_facts import NodeFacts
from mainstem.broker.produce_topics import ProduceTopics
from mainstem.broker.shared_descriptions import SharedDescriptions
from mainstem.broker.topic_changes import TopicChanges
from mainstem.model import Topic
from mainstem.ports import (
    Clock,
    Cluster,
    Leadership,
    MessageStore,
    Metadata,
    MetadataAdmin,
    Peer,
    QueueAdmin,
    ResponseRoom,
)
from mainstem.turns import Turns

if TYPE_CHECKING:
    from mainstem.broker.groups.coordinator import GroupCoordinator


SAMPLED_PARTITIONS = 4096
"""More partitions than this have some in every write group, or nearly."""

NO_LEADER = -1


class UnboundedRoom:
    """`ports.ResponseRoom` of a broker that no server stands before."""

    def bytes_free(self) -> int:
        return 2**31 - 1

    def change(self, more: int) -> None:
        pass


@dataclass(slots=True, kw_only=True)
class Broker:
    """One node's compute role. Made by the node, handed to every handler."""

    node_id: int
    config: BrokerConfig
    metadata: Metadata
    metadata_admin: MetadataAdmin
    cluster: Cluster
    store: MessageStore
    leadership: Leadership
    queue_admin: QueueAdmin
    groups: GroupCoordinator
    clock: Clock
    fetch_sessions: FetchSessions
    timestamps_now_ms: Callable[[], int] | None = None
    """What time it is for judging producers' timestamps; None: what the clock says."""
    turns: Turns = field(default_factory=Turns)
    """Taken between the slices of long requests."""
    key_checks: KeyChecks = field(default_factory=KeyChecks)
    response_room: ResponseRoom = field(default_factory=UnboundedRoom)
    """Asked how large a response may be, and told what it holds while it is being made."""
    all_topics: SharedDescriptions = field(default_factory=SharedDescriptions)
    facts: NodeFacts = field(default_factory=NodeFacts)
    topic_changes: TopicChanges = field(default_factory=TopicChanges)
    """A topic's, while it is created, grown or deleted: metadata and queues change together."""
    judged_ms: Callable[[], int] = field(init=False)
    auto_creation: AutoCreation = field(init=False)
    produce_topics: ProduceTopics = field(init=False)
    fetch_topics: FetchTopics = field(init=False)

    def __post_init__(self) -> None:
        self.judged_ms = self.timestamps_now_ms or self.clock.now_ms
        self.auto_creation = AutoCreation(
            self.metadata_admin,
            self.queue_admin,
            self.has_leaders,
            self.config.num_partitions,
            self.config.default_replication_factor,
        )
        self.produce_topics = ProduceTopics(self.metadata)
        self.fetch_topics = FetchTopics(self.metadata)

    @property
    def cut_off(self) -> bool:
        """Whether this node seems to be separated from the cluster, so that what it says of it helps nobody: neither
        the metadata's leader nor the leader of any write group is heard here."""
        return self.cluster.out_of_touch and self.leadership.leaderless

    def has_leaders(self, topic: Topic) -> bool:
        """Whether every write group that has queues of a topic has a leader now, as far as this node knows."""
        first = topic.queue_id(0)
        queue_ids = numpy.arange(first, first + min(topic.partitions, SAMPLED_PARTITIONS), dtype=numpy.uint64)
        groups = numpy.unique(self.leadership.groups_of(queue_ids))
        return all(self.leadership.replicas(int(group)).leader != NO_LEADER for group in groups)

    def serves(self, topic: Topic, partition: int) -> bool:
        """Whether this node serves an existing partition."""
        if not 0 <= partition < topic.partitions:
            return False
        return self.leadership.serves(self.leadership.group_of(topic.queue_id(partition)))


class Call(NamedTuple):
    """The circumstances of one request."""

    version: int
    client_id: str | None
    peer: Peer
    correlation_id: int = 0
