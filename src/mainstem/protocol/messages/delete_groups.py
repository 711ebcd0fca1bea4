"""DeleteGroups: remove empty groups and their offsets."""

from __future__ import annotations

from mainstem.protocol.schema import array, int16, int32, message, nested, string, wire


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
