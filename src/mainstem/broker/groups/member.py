"""A member of a consumer group: its subscription, its assignment, and its waiting requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mainstem.broker.machines.result import Ticket
from mainstem.protocol.messages.consumer_offsets import MemberMetadata
from mainstem.protocol.messages.describe_groups import DescribedGroupMember
from mainstem.protocol.messages.join_group import JoinGroupRequestProtocol, JoinGroupResponseMember

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

    def described(self, protocol: str | None) -> DescribedGroupMember:
        """The member as DescribeGroups shows it; without metadata and assignment where there is no
        `protocol`."""
        return DescribedGroupMember(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            member_metadata=self.metadata(protocol),
            member_assignment=self.assignment if protocol is not None else b"",
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
