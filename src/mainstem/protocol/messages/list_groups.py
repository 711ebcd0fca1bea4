"""ListGroups: the groups of one coordinator, filtered by state (version 4) and type (version 5)."""

from __future__ import annotations

from mainstem.protocol.schema import array, int16, int32, message, nested, string, wire


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
