"""DescribeGroups: state, protocol and members of classic groups."""

from __future__ import annotations

from mainstem.protocol.messages.metadata import AUTHORIZED_OPERATIONS_UNKNOWN
from mainstem.protocol.schema import array, binary, boolean, int16, int32, message, nested, string, wire


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsRequest:
    groups: tuple[str, ...] = wire(array(string))
    include_authorized_operations: bool = wire(boolean, "3+", default=False)


@nested
class DescribedGroupMember:
    member_id: str = wire(string)
    group_instance_id: str | None = wire(string, "4+", nullable="4+", default=None, ignorable=True)
    client_id: str = wire(string)
    client_host: str = wire(string)
    member_metadata: bytes = wire(binary)
    member_assignment: bytes = wire(binary)


@nested
class DescribedGroup:
    error_code: int = wire(int16)
    error_message: str | None = wire(string, "6+", nullable="6+", default=None, ignorable=True)
    group_id: str = wire(string)
    group_state: str = wire(string)
    protocol_type: str = wire(string)
    protocol_data: str = wire(string)
    members: tuple[DescribedGroupMember, ...] = wire(array(DescribedGroupMember))
    authorized_operations: int = wire(int32, "3+", default=AUTHORIZED_OPERATIONS_UNKNOWN)


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsResponse:
    throttle_time_ms: int = wire(int32, "1+", default=0, ignorable=True)
    groups: tuple[DescribedGroup, ...] = wire(array(DescribedGroup))
