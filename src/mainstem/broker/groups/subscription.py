"""Reads the topics that a consumer group's members subscribe to from the metadata they join with.

That metadata belongs to the clients' assignors; the coordinator needs only the topics. They stand at the front of
every version of Kafka's consumer protocol: a version, a count, then names behind their lengths.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from mainstem.protocol.messages.consumer_protocol import PROTOCOL_TYPE

SUBSCRIBED_NAMES_MAX = 50_000
"""Names of all members of a consumer group together, some ten milliseconds of the event loop. The
subscriptions of a group with more names count as unknown, and none of its offsets expire while it has
members."""

_COUNT = struct.Struct(">i")
_COUNT_AT = 2
_LENGTH = struct.Struct(">h")


def topics_of(protocol_type: str | None, subscriptions: Iterable[bytes]) -> frozenset[bytes] | None:
    """The names, in UTF-8, to which the members together subscribe; None when they cannot be read."""
    if protocol_type != PROTOCOL_TYPE:
        return None
    topics: set[bytes] = set()
    names_left = SUBSCRIBED_NAMES_MAX
    for metadata in dict.fromkeys(subscriptions):  # most members subscribe to the same topics
        try:
            (count,) = _COUNT.unpack_from(metadata, _COUNT_AT)
            names_left -= count
            if count < 0 or names_left < 0:
                return None
            _add_names(metadata, count, topics)
        except struct.error:
            return None
    return frozenset(topics)


def _add_names(metadata: bytes, count: int, topics: set[bytes]) -> None:
    """Raises struct.error for metadata that ends early."""
    unpack = _LENGTH.unpack_from
    position = _COUNT_AT + _COUNT.size
    for _ in range(count):
        (length,) = unpack(metadata, position)
        position += _LENGTH.size
        if length < 0 or length > len(metadata) - position:
            raise struct.error("a name ends early")
        topics.add(metadata[position : position + length])
        position += length
