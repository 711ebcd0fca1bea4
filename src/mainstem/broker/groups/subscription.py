"""The topics that the members of a group subscribe to, read from the metadata they join with.

That metadata belongs to the clients' assignors; the coordinator only needs the topics. They stand at the front of every
version of Kafka's consumer protocol: a version, a count, then names behind their lengths.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from mainstem.protocol.messages.consumer_protocol import PROTOCOL_TYPE

SUBSCRIBED_NAMES_MAX = 50_000
"""Names of all members of a group together, some ten milliseconds of the event loop. Of a group that names more it
is not known which topics it subscribes to, and none of its offsets expire while it has members."""

_COUNT = struct.Struct(">i")
_COUNT_AT = 2
_LENGTH = struct.Struct(">h")


def topics_of(protocol_type: str | None, subscriptions: Iterable[bytes]) -> frozenset[bytes] | None:
    """The names, in UTF-8, that members subscribe to together; None when that cannot be known."""
    if protocol_type != PROTOCOL_TYPE:
        return None
    topics: set[bytes] = set()
    names_left = SUBSCRIBED_NAMES_MAX
    for metadata in dict.fromkeys(subscriptions):  # members mostly subscribe to the same
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
