"""The topic that holds a coordinator's records: how it is made, and which of its partitions a key goes to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from mainstem.broker.errors import CoordinatorRefusal
from mainstem.errors import MainstemError
from mainstem.model import QueueRange
from mainstem.ports import Metadata, MetadataAdmin, QueueAdmin
from mainstem.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)

COORDINATOR_TOPIC_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "compact", "retention.ms": "-1", "retention.bytes": "-1",
}  # fmt: skip
"""Only the coordinator's own snapshots may drop records."""


class InternalTopic(NamedTuple):
    """`keeper` is the coordinator that writes it, for messages; the configs see to it that nobody else drops its
    records."""

    name: str
    partitions: int
    replication_factor: int
    keeper: str
    configs: Mapping[str, str] = COORDINATOR_TOPIC_CONFIGS


def coordinator_partition_of(key: str, partitions: int) -> int:
    """Kafka's choice: Java's `String.hashCode`, over UTF-16 units, made positive, modulo partitions."""
    units = key.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for index in range(0, len(units), 2):
        hashed = (31 * hashed + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    signed = hashed - (1 << 32) if hashed >> 31 else hashed
    return 0 if signed == -(1 << 31) else abs(signed) % partitions


async def make_topic(
    wanted: InternalTopic, metadata: Metadata, metadata_admin: MetadataAdmin, queue_admin: QueueAdmin
) -> None:
    """Create the topic, unless another node was faster. Its queues are made as far as that is possible now; a
    node that serves a partition makes its queue if it is missing. Raises `CoordinatorRefusal`."""
    try:
        topic = await metadata_admin.create_topic(
            wanted.name, wanted.partitions, wanted.replication_factor, wanted.configs, internal=True
        )
    except MainstemError as error:
        if metadata.topic(wanted.name) is None:
            raise CoordinatorRefusal(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error
        return
    try:
        await queue_admin.create([QueueRange(topic.number, 0, topic.partitions)])
    except (MainstemError, OSError) as error:
        logger.warning("%s: queues of %s: %s", wanted.keeper, topic.name, error)
