"""Creating, growing and deleting topics: the changes that touch both metadata and queues; and which ones clients may
make.

Both write the metadata first and the queues second. A crash in between leaves a topic without some of its queues, or
queues of a number known to be deleted; the next node to serve a write group settles both. The other order of deletion
would bring the topic back empty, with its old batches still lying in the journal under the same queue ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.offsets_topic import OFFSETS_TOPIC
from mainstem.broker.transactions.state_topic import STATE_TOPIC
from mainstem.errors import LeaderMissing, LeaderUntold, MainstemError, StorageUnavailable
from mainstem.model import NewTopic, QueueRange, Topic
from mainstem.security.audit.audit_log import AUDIT_TOPIC

logger = logging.getLogger(__name__)

RESERVED_NAMES = frozenset({OFFSETS_TOPIC, AUDIT_TOPIC, STATE_TOPIC, "__share_group_state", "__cluster_metadata"})
"""Kafka's own and the audit's, also those that do not exist yet: one created by a client would later be taken for the
broker's."""


def is_internal(broker: Broker, name: str) -> bool:
    topic = broker.metadata.topic(name)
    return name in RESERVED_NAMES or (topic is not None and topic.internal)


def internal_message(name: str) -> str:
    return f"topic {name!r} is internal: the brokers alone create, change and delete it"


def assignment_fault(
    broker: Broker, replicas: Sequence[Sequence[int]], replication_factor: int | None = None
) -> str | None:
    """The fault in the replicas (node ids) per partition, in words; None when there is none.

    `replication_factor` is that of the topic's other partitions, None for a new topic."""
    known = {node.node_id for node in broker.metadata.nodes() if node.stores}
    expected = len(replicas[0]) if replication_factor is None and replicas else replication_factor
    for index, node_ids in enumerate(replicas):
        where = f"assignment {index}"
        if not node_ids:
            return f"{where} names no node"
        if len(set(node_ids)) != len(node_ids):
            return f"{where} names a node twice: {list(node_ids)}"
        unknown = sorted(set(node_ids) - known)
        if unknown:
            return f"{where} names nodes that do not exist, or store nothing: {unknown}; there are {sorted(known)}"
        if len(node_ids) != expected:
            return f"{where} has {len(node_ids)} replicas, others have {expected}"
    return None


TOPICS_PER_TURN = 20
"""Topics forgotten by consumer groups, or checked, within one turn of the event loop: about a millisecond."""


async def create_topic(
    broker: Broker,
    name: str,
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str],
    *,
    validate_only: bool = False,
    internal: bool = False,
) -> Topic:
    """Create a topic and its queues; both are durable on return. Raises as `MetadataAdmin` does."""
    async with broker.topic_changes.of([name]):
        topic = await broker.metadata_admin.create_topic(
            name, partitions, replication_factor, configs, validate_only=validate_only, internal=internal
        )
        if not validate_only:
            await broker.queue_admin.create([QueueRange(topic.number, 0, topic.partitions)])
    return topic


async def create_topics(
    broker: Broker, wanted: Sequence[NewTopic], *, validate_only: bool = False
) -> list[Topic | MainstemError]:
    """Create topics and their queues together, with a few writes for any number; durable on return. One entry
    per wanted topic, in their order: the topic, or why it is refused. Raises an error that refuses all of
    them."""
    if validate_only:
        return await broker.metadata_admin.create_topics(wanted, validate_only=True)
    async with broker.topic_changes.of(topic.name for topic in wanted):
        made = await broker.metadata_admin.create_topics(wanted)
        late = await _make_queues(broker, [topic for topic in made if isinstance(topic, Topic)])
    return [late.get(topic.number, topic) if isinstance(topic, Topic) else topic for topic in made]


async def _make_queues(broker: Broker, topics: Sequence[Topic]) -> dict[int, MainstemError]:
    """Make the queues of new topics; returns why those of some topics could not be made, by topic number. Topics in
    write groups without a leader delay the others by no more than one wait for all of them."""
    now: list[Topic] = []
    later: list[Topic] = []
    for looked_at, topic in enumerate(topics, 1):
        (now if broker.has_leaders(topic) else later).append(topic)
        if looked_at % TOPICS_PER_TURN == 0:
            await asyncio.sleep(0)
    late: dict[int, MainstemError] = {}

    async def make(part: Sequence[Topic]) -> None:
        try:
            await broker.queue_admin.create([QueueRange(topic.number, 0, topic.partitions) for topic in part])
        except LeaderMissing as why:
            late.update((topic.number, why) for topic in part)
        except StorageUnavailable as why:
            late.update((topic.number, why) for topic in part if not why.groups or broker.lies_in(topic, why.groups))

    await asyncio.gather(*(make(part) for part in (now, later) if part))
    return late


async def create_partitions(broker: Broker, name: str, total: int, *, validate_only: bool = False) -> Topic:
    """Grow a topic to `total` partitions. Raises as `MetadataAdmin` does."""
    async with broker.topic_changes.of([name]):
        before = broker.metadata.topic(name)
        topic = await broker.metadata_admin.create_partitions(name, total, validate_only=validate_only)
        if not validate_only:
            first = 0 if before is None else before.partitions
            await broker.queue_admin.create([QueueRange(topic.number, first, topic.partitions - first)])
    return topic


async def delete_topics(broker: Broker, names: Sequence[str]) -> list[Topic | MainstemError]:
    """Delete topics and their data together. One entry per name, in their order: the topic as it was, or why it is
    refused. Raises an error that refuses all of them.

    The metadata goes first: after a crash in between, the queues belong to numbers that are known to be deleted, and
    the next leaders of their write groups delete them. If a leader could not be told in time, the topics are deleted
    all the same, and `LeaderUntold` stands for them: that leader may serve what was committed in them for a while. The
    same goes for `StorageUnavailable`, where this node's disk failed under the deletion."""
    async with broker.topic_changes.of(names):
        gone = await broker.metadata_admin.delete_topics(names)
        topics = [topic for topic in gone if isinstance(topic, Topic)]
        untold: LeaderUntold | StorageUnavailable | None = None
        try:
            await broker.queue_admin.delete([topic.number for topic in topics])
        except (LeaderUntold, StorageUnavailable) as error:
            logger.warning("not every leader knows of deleted topics: %s", error)
            untold = error
        except LeaderMissing as missing:
            logger.warning("queues of deleted topics are left to the next leaders: %s", missing)
        for number, topic in enumerate(topics, 1):
            await broker.groups.forget_topic(topic)
            if number % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        return [untold if untold is not None and isinstance(topic, Topic) else topic for topic in gone]
