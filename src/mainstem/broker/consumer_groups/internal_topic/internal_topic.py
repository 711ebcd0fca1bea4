"""Makes the internal topic `__consumer_offsets`, and maps a consumer group to one of its partitions."""

from __future__ import annotations

import logging

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.errors import CoordinatorRefusal
from mainstem.errors import MainstemError
from mainstem.model import QueueRange
from mainstem.ports import Metadata, MetadataAdmin, QueueAdmin
from mainstem.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"

OFFSETS_TOPIC_CONFIGS = {"cleanup.policy": "compact", "retention.ms": "-1", "retention.bytes": "-1"}
"""Only the coordinator's own snapshots may drop records."""


def coordinator_partition_of(group_id: str, partitions: int) -> int:
    """Kafka's choice: Java's `String.hashCode`, over UTF-16 units, made positive, modulo partitions."""
    units = group_id.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for index in range(0, len(units), 2):
        hashed = (31 * hashed + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    signed = hashed - (1 << 32) if hashed >> 31 else hashed
    return 0 if signed == -(1 << 31) else abs(signed) % partitions


async def make_topic(
    config: ConsumerGroupsConfig,
    metadata: Metadata,
    metadata_admin: MetadataAdmin,
    queue_admin: QueueAdmin,
) -> None:
    """Create the topic, unless another node was faster. Its queues are made as far as that is possible now; a
    node that serves a partition makes its queue if it is missing. Raises `CoordinatorRefusal`."""
    try:
        topic = await metadata_admin.create_topic(
            OFFSETS_TOPIC,
            config.offsets_topic_partitions,
            config.offsets_topic_replication_factor,
            OFFSETS_TOPIC_CONFIGS,
            internal=True,
        )
    except MainstemError as error:
        if metadata.topic(OFFSETS_TOPIC) is None:
            raise CoordinatorRefusal(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error
        return
    try:
        await queue_admin.create([QueueRange(topic.number, 0, topic.partitions)])
    except (MainstemError, OSError) as error:
        logger.warning("consumer group coordinator: queues of %s: %s", topic.name, error)
