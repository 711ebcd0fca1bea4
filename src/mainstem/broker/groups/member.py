"""A member of a group: what it joined with, what it was assigned, and which of its requests wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mainstem.broker.groups.result import Ticket
from mainstem.protocol.messages.consumer_offsets import MemberMetadata
from mainstem.protocol.messages.describe_groups import DescribedGroupMember
from mainstem.protocol.messages.join_group import JoinGroupRequestProtocol, JoinGroupResponseMember

MEMBER_BYTES = 1024
"""A member without its metadata: the object, its ids, its timer."""


def protocols_bytes(protocols: Iterable[JoinGroupRequestProtocol]) -> int:
    """What a member says when it joins."""
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
    """What its group's holdings are charged for it."""
    new: bool = False
    """Has not heard of any generation yet, perhaps not even of its id."""

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return MEMBER_BYTES + protocols_bytes(self.protocols) + len(self.assignment)

    @property
    def static(self) -> bool:
        return self.instance_id is not None

    @property
    def excused_from_heartbeats(self) -> bool:
        """Its client waits for us, so silence means nothing; a new member's client may have gone away."""
        return not self.new and (self.join_ticket is not None or self.sync_ticket is not None)

    def metadata(self, protocol: str | None) -> bytes:
        """What the member said under a protocol's name; empty when it does not have it."""
        for candidate in self.protocols:
            if candidate.name == protocol:
                return candidate.metadata
        return b""

    def joined_with(self, protocol: str | None) -> JoinGroupResponseMember:
        """As the leader gets to see it."""
        return JoinGroupResponseMember(
            member_id=self.member_id, group_instance_id=self.instance_id, metadata=self.metadata(protocol)
        )

    def described(self, protocol: str | None) -> DescribedGroupMember:
        """As DescribeGroups shows it; without metadata and assignment where there is no `protocol`."""
        return DescribedGroupMember(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            member_metadata=self.metadata(protocol),
            member_assignment=self.assignment if protocol is not None else b"",
        )

    def persisted(self, protocol: str | None, assignment: bytes) -> MemberMetadata:
        """As the log keeps it."""
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
