"""The kinds of things that have configs, with Kafka's codes."""

from __future__ import annotations

import enum

from mainstem.broker.broker import Broker


class ResourceType(enum.IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


ALL_BROKERS = ""
"""The resource name of the defaults that Kafka lets a client set for all brokers at once; here there are
none."""


def unsupported_message(resource_type: int) -> str:
    names = {kind.value: kind.name for kind in ResourceType}
    named = names.get(resource_type, resource_type)
    return f"resources of type {named} have no configs here; topics and brokers have"


def broker_name_fault(broker: Broker, name: str) -> str | None:
    """The fault in a broker resource's name, in words; None: it is this node's id, or empty for all
    brokers."""
    if name in (ALL_BROKERS, str(broker.node_id)):
        return None
    return f"this is broker {broker.node_id}; ask broker {name[:20]!r} itself"
