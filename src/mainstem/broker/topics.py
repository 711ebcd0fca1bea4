"""Creating, growing and deleting topics: the changes that touch both metadata and queues.

Both write the metadata first and the queues second. A crash in between leaves a topic without some of its queues,
which `restore_queues` makes at start (creating queues that exist changes nothing), or queues of a number known to
be deleted, which the node deletes at start. The other order of deletion would bring the topic back empty, with its
old batches still lying in the journal under the same queue ids.
"""

from __future__ import annotations

from collections.abc import Mapping

from mainstem.broker.broker import Broker
from mainstem.model import Topic
from mainstem.nameserver.errors import TopicExists


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
    """Create a topic and its queues; both are durable on return. Raises what `MetadataAdmin` raises."""
    async with broker.topic_changes:
        topic = await broker.metadata_admin.create_topic(
            name, partitions, replication_factor, configs, validate_only=validate_only, internal=internal
        )
        if not validate_only:
            await broker.queue_admin.create(topic.number, 0, topic.partitions)
    return topic


async def create_partitions(broker: Broker, name: str, total: int, *, validate_only: bool = False) -> Topic:
    """Grow a topic to `total` partitions. Raises what `MetadataAdmin` raises."""
    async with broker.topic_changes:
        before = broker.metadata.topic(name)
        topic = await broker.metadata_admin.create_partitions(name, total, validate_only=validate_only)
        if not validate_only:
            first = 0 if before is None else before.partitions
            await broker.queue_admin.create(topic.number, first, topic.partitions - first)
    return topic


async def delete_topic(broker: Broker, name: str) -> Topic:
    """Delete a topic and its data. Raises what `MetadataAdmin` raises.

    The metadata goes first: after a crash in between, the queues belong to a number that is known to be
    deleted, and the node's next start deletes them.
    """
    async with broker.topic_changes:
        topic = await broker.metadata_admin.delete_topic(name)
        await broker.queue_admin.delete(topic.number)
        await broker.groups.forget_topic(name)  # before a topic of the same name can be made
        return topic


async def ensure_topic(broker: Broker, name: str) -> Topic:
    """The topic of that name, created with the node's defaults when there is none (auto-creation)."""
    try:
        return await create_topic(
            broker, name, broker.config.num_partitions, broker.config.default_replication_factor, {}
        )
    except TopicExists:
        found = broker.metadata.topic(name)  # somebody else was faster
        if found is None:
            raise
        return found


async def restore_queues(broker: Broker) -> None:
    """Create the queues of every topic that a crash left without them. Called once, before clients come."""
    for topic in list(broker.metadata.topics()):
        await broker.queue_admin.create(topic.number, 0, topic.partitions)
