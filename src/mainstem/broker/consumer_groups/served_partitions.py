"""The partitions of `__consumer_offsets` that this node serves."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence

import numpy

from mainstem.bounded_log import BoundedLog
from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.epochs.subscribed_topics import CurrentTopics
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.offset_room import OffsetRoom
from mainstem.broker.consumer_groups.offsets_topic import OffsetsTopicCodec, limits_of, offsets_topic
from mainstem.broker.consumer_groups.partition import CoordinatorPartition, TopicsNow
from mainstem.broker.consumer_groups.recent_generations import RecentGenerations
from mainstem.broker.consumer_groups.statistics import samples_of
from mainstem.broker.consumer_groups.step import Counts
from mainstem.broker.machines.served_topic import ServedTopic
from mainstem.broker.machines.serving_node import ServingNode
from mainstem.model import HistogramSample, Sample, Topic

logger = logging.getLogger(__name__)


async def at_once() -> None:
    """Returns at once: a node that makes every change of the metadata itself knows them all."""


class ServedPartitions(ServedTopic[CoordinatorPartition]):
    """`start` before use, `close` after. Partitions go by their number in the internal topic."""

    def __init__(
        self,
        node: ServingNode,
        config: ConsumerGroupsConfig,
        *,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        metadata_current: Callable[[], Awaitable[None]] = at_once,
        config_of: Callable[[str], ConsumerGroupsConfig] | None = None,
    ) -> None:
        """`metadata_current` returns once this node knows all changes of the metadata made before the call; `config_of`
        gives the settings of a group, where some have their own."""
        super().__init__(node, offsets_topic(config))
        metadata = node.metadata
        self._config = config
        self._new_id = new_id
        self._config_of = config_of
        topics = CurrentTopics(metadata.topic, metadata.topic_by_id, metadata.topics, self._racks_of)
        self._topics_now = TopicsNow(self._topic_id_of, topics, metadata_current)
        generations = RecentGenerations(config.rebalance_loop_generations, config.rebalance_loop_ms)
        self._counts = Counts(generations=generations)
        self._holdings = Holdings(config.members_bytes_max)
        self._offset_room = OffsetRoom(config, self._offsets_held, BoundedLog(logger, node.clock))
        self._first_load = FirstLoad()

    @property
    def topics(self) -> CurrentTopics:
        """The topics there are, as groups see them."""
        return self._topics_now.topics

    def loops(self, group_id: str) -> bool:
        """Whether a group has had many generations of late, and has not grown."""
        generations = self._counts.generations
        return generations is not None and generations.loops(group_id, int(self._clock.monotonic() * 1000))

    def _offsets_held(self) -> int:
        """The committed offsets of all groups here."""
        machines = [partition.machine for partition in self._partitions.values()]
        return sum(machine.state.offsets.count for machine in machines if machine is not None)

    def samples(self) -> Iterable[Sample | HistogramSample]:
        return samples_of(list(self._partitions.values()), self._counts, self._holdings)

    def _topic_id_of(self, name: str) -> uuid.UUID | None:
        topic = self._metadata.topic(name)
        return None if topic is None else topic.topic_id

    def _racks_of(self, topic: Topic) -> Sequence[frozenset[str]]:
        """Of the replicas of a topic's partitions; none where nodes are in one rack, or brokers without storage serve
        all queues."""
        racks = {node.node_id: node.rack for node in self._metadata.nodes() if node.rack is not None}
        if len(set(racks.values())) < 2 or self._node.routing.brokers():
            return ()
        queue_ids = numpy.arange(topic.partitions, dtype=numpy.uint64) | numpy.uint64(topic.queue_id(0))
        groups, places = numpy.unique(self._node.leadership.groups_of(queue_ids), return_inverse=True)
        found = [
            frozenset(racks[node_id] for node_id in self._node.leadership.replicas(group).replicas if node_id in racks)
            for group in groups.tolist()
        ]
        return [found[place] for place in places.tolist()]

    def _first_served(self, partitions: int) -> None:
        self._first_load.expect(partitions)

    def _partition(self, topic: Topic, index: int) -> CoordinatorPartition:
        return CoordinatorPartition(
            self._log(topic, index, OffsetsTopicCodec(), limits_of(self._config)),
            self._config,
            self._clock,
            self._place(topic, index),
            new_id=self._new_id,
            config_of=self._config_of,
            offset_room=self._offset_room,
            counts=self._counts,
            holdings=self._holdings,
            topics=self._topics_now,
            feature_level=self._node.feature_level,
            loaded=self._first_load.add,
        )


class FirstLoad:
    """Writes one log line for all partitions served at first, once every one of them is loaded; later loads
    are logged with their cause."""

    def __init__(self) -> None:
        self._partitions = 0
        self._left = 0
        self._groups = 0
        self._records = 0

    def expect(self, partitions: int) -> None:
        self._partitions = self._left = partitions

    def add(self, groups: int, records: int) -> None:
        if self._left == 0:
            return
        self._left -= 1
        self._groups += groups
        self._records += records
        if self._left == 0:
            logger.info(
                "consumer groups: %d, from %d records in %d partitions",
                self._groups,
                self._records,
                self._partitions,
            )
