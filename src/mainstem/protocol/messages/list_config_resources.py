"""ListConfigResources: the names of what has configs. Version 0 asks for client metrics alone."""

from __future__ import annotations

from mainstem.protocol.schema import array, int8, int16, int32, message, nested, string, wire

CLIENT_METRICS = 16


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesRequest:
    resource_types: tuple[int, ...] = wire(array(int8), "1+", default=())


@nested
class ListedConfigResource:
    resource_name: str = wire(string)
    resource_type: int = wire(int8, "1+", default=CLIENT_METRICS, ignorable=True)


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    config_resources: tuple[ListedConfigResource, ...] = wire(array(ListedConfigResource))
