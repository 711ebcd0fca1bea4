"""The internal topic `__consumer_offsets`, as the settings of consumer groups want it."""

from __future__ import annotations

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.machines.coordinator_topic import InternalTopic

OFFSETS_TOPIC = "__consumer_offsets"


def offsets_topic(config: ConsumerGroupsConfig) -> InternalTopic:
    return InternalTopic(
        OFFSETS_TOPIC,
        config.offsets_topic_partitions,
        config.offsets_topic_replication_factor,
        keeper="consumer group coordinator",
    )
