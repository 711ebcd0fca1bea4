"""The topics that the members of a group subscribe to, read from the metadata they join with.

That metadata belongs to the clients' assignors; the coordinator only needs the topics. It reads version 0,
which every version of Kafka's consumer protocol has as its prefix.
"""

from __future__ import annotations

from collections.abc import Iterable

from mainstem.protocol.codec import read_prefix
from mainstem.protocol.errors import ProtocolError
from mainstem.protocol.messages.consumer_protocol import PROTOCOL_TYPE, ConsumerProtocolSubscription

_VERSION_BYTES = 2


def topics_of(protocol_type: str | None, subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics that members subscribe to together; None when that cannot be known."""
    if protocol_type != PROTOCOL_TYPE:
        return None
    topics: set[str] = set()
    for metadata in subscriptions:
        try:
            subscription, _ = read_prefix(ConsumerProtocolSubscription, 0, metadata, _VERSION_BYTES)
        except ProtocolError:
            return None
        topics.update(subscription.topics)
    return frozenset(topics)
