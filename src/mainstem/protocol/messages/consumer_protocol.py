"""The messages of the members of a consumer group to each other through JoinGroup and SyncGroup.

A broker only carries these bytes; the command line and DescribeGroups readers look inside. Versions only
append fields, so a newer one is read as the last known.
"""

from __future__ import annotations

from mainstem.model import Buffer
from mainstem.protocol.messages.versioned import read_versioned, write_versioned
from mainstem.protocol.schema import array, binary, int32, message, nested, string, wire

PROTOCOL_TYPE = "consumer"
"""The `protocol_type` of groups whose metadata and assignments are these messages."""


@nested
class TopicPartition:
    topic: str = wire(string)
    partitions: tuple[int, ...] = wire(array(int32))


@message(versions="0-3")
class ConsumerProtocolSubscription:
    topics: tuple[str, ...] = wire(array(string))
    user_data: bytes | None = wire(binary, nullable="0+", default=None)
    owned_partitions: tuple[TopicPartition, ...] = wire(array(TopicPartition), "1+", default=(), ignorable=True)
    generation_id: int = wire(int32, "2+", default=-1, ignorable=True)
    rack_id: str | None = wire(string, "3+", nullable="3+", default=None, ignorable=True)


@message(versions="0-3")
class ConsumerProtocolAssignment:
    assigned_partitions: tuple[TopicPartition, ...] = wire(array(TopicPartition))
    user_data: bytes | None = wire(binary, nullable="0+", default=None)


def read_subscription(buffer: Buffer) -> ConsumerProtocolSubscription:
    """Decode a member's JoinGroup metadata. Raises `ProtocolError`."""
    return read_versioned(ConsumerProtocolSubscription, buffer, newer_as_last=True)


def read_assignment(buffer: Buffer) -> ConsumerProtocolAssignment:
    """Decode a member's SyncGroup assignment. Raises `ProtocolError`."""
    return read_versioned(ConsumerProtocolAssignment, buffer, newer_as_last=True)


def write_subscription(subscription: ConsumerProtocolSubscription, version: int = 3) -> bytes:
    return write_versioned(subscription, version)


def write_assignment(assignment: ConsumerProtocolAssignment, version: int = 3) -> bytes:
    return write_versioned(assignment, version)
