"""A member of a consumer group: its subscription, its assignment, and its waiting requests.

The topics that members subscribe to are read from the metadata they join with (`topics_of`). That metadata belongs to
the clients' assignors; the coordinator needs only the topics. They stand at the front of every version of Kafka's
consumer protocol: a version, a count, then names behind their lengths.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from mainstem.broker.machines.result import Ticket
from mainstem.kernel import untrack
from mainstem.protocol.messages.consumer_offsets import MemberMetadata
from mainstem.protocol.messages.consumer_protocol import PROTOCOL_TYPE
from mainstem.protocol.messages.group_administration import DescribedGroupMember
from mainstem.protocol.messages.group_membership import JoinGroupRequestProtocol, JoinGroupResponseMember

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


MEMBER_BYTES = 1024
"""Bytes of a member without its metadata: the object, its ids, its timer."""


def protocols_bytes(protocols: Iterable[JoinGroupRequestProtocol]) -> int:
    """Bytes of the protocols that a member joins with."""
    return sum(len(protocol.name) + len(protocol.metadata) for protocol in protocols)


@dataclass(slots=True, kw_only=True)
class Member:
    """One member. `protocols` are in the member's order of preference."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[JoinGroupRequestProtocol, ...]
    assignment: bytes = b""

    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None
    charged: int = 0
    """Bytes that its consumer group's holdings are charged for it."""
    new: bool = False
    """Has not heard of any generation yet, perhaps not even of its id."""

    def __post_init__(self) -> None:
        untrack(self)  # nothing that a member holds knows the member, and a group may have ten thousand
        untrack(self.protocols)  # of messages

    @property
    def size_bytes(self) -> int:
        """Roughly the memory it takes, in bytes."""
        return MEMBER_BYTES + protocols_bytes(self.protocols) + len(self.assignment)

    @property
    def static(self) -> bool:
        return self.instance_id is not None

    @property
    def excused_from_heartbeats(self) -> bool:
        """Whether its client waits for an answer, so that silence means nothing; a new member's client may
        have gone away."""
        return not self.new and (self.join_ticket is not None or self.sync_ticket is not None)

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata for a protocol; empty when it does not have that protocol."""
        for candidate in self.protocols:
            if candidate.name == protocol:
                return candidate.metadata
        return b""

    def joined_with(self, protocol: str | None) -> JoinGroupResponseMember:
        """The member as the leader sees it in JoinGroup."""
        return JoinGroupResponseMember(
            member_id=self.member_id, group_instance_id=self.instance_id, metadata=self.metadata(protocol)
        )

    def described(self, protocol: str | None, assignment: bytes) -> DescribedGroupMember:
        """The member as DescribeGroups shows it, with the assignment that it had when that was asked; without metadata
        and assignment where there is no `protocol`."""
        return DescribedGroupMember(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            member_metadata=self.metadata(protocol),
            member_assignment=assignment if protocol is not None else b"",
        )

    def persisted(self, protocol: str | None, assignment: bytes) -> MemberMetadata:
        """The member as the log keeps it."""
        return MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )
