"""Topics that belong to the brokers: clients read them, but cannot create, change or delete them."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.groups.internal_topic import OFFSETS_TOPIC

RESERVED_NAMES = frozenset({OFFSETS_TOPIC, "__transaction_state", "__share_group_state", "__cluster_metadata"})
"""Kafka's own, also those that do not exist yet: one created by a client would later be taken for the
broker's."""


def is_internal(broker: Broker, name: str) -> bool:
    topic = broker.metadata.topic(name)
    return name in RESERVED_NAMES or (topic is not None and topic.internal)


def internal_message(name: str) -> str:
    return f"topic {name!r} is internal: the brokers alone create, change and delete it"
