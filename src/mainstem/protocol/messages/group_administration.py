"""Consumer groups, as those see them who look after them.

DescribeGroups: state, protocol and members of classic groups.
ListGroups: the groups of one coordinator, filtered by state (version 4) and type (version 5).
DeleteGroups: remove empty groups and their offsets.
"""

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


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsRequest:
    states_filter: tuple[str, ...] = wire(array(string), "4+", default=())
    types_filter: tuple[str, ...] = wire(array(string), "5+", default=())


@nested
class ListedGroup:
    group_id: str = wire(string)
    protocol_type: str = wire(string)
    group_state: str = wire(string, "4+", default="", ignorable=True)
    group_type: str = wire(string, "5+", default="", ignorable=True)


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsResponse:
    throttle_time_ms: int = wire(int32, "1+", default=0, ignorable=True)
    error_code: int = wire(int16)
    groups: tuple[ListedGroup, ...] = wire(array(ListedGroup))


@message(api_key=42, versions="0-2", flexible="2+")
class DeleteGroupsRequest:
    groups_names: tuple[str, ...] = wire(array(string))


@nested
class DeletableGroupResult:
    group_id: str = wire(string)
    error_code: int = wire(int16)


@message(api_key=42, versions="0-2", flexible="2+")
class DeleteGroupsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    results: tuple[DeletableGroupResult, ...] = wire(array(DeletableGroupResult))
