"""IncrementalAlterConfigs: set, delete, append to or subtract from single configs."""

from __future__ import annotations

from mainstem.protocol.schema import array, boolean, int8, int16, int32, message, nested, string, wire

OPERATION_SET = 0
OPERATION_DELETE = 1
OPERATION_APPEND = 2
OPERATION_SUBTRACT = 3


@nested
class AlterableConfig:
    name: str = wire(string)
    config_operation: int = wire(int8)
    value: str | None = wire(string, nullable="0+")


@nested
class AlterConfigsResource:
    resource_type: int = wire(int8)
    resource_name: str = wire(string)
    configs: tuple[AlterableConfig, ...] = wire(array(AlterableConfig))


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest:
    resources: tuple[AlterConfigsResource, ...] = wire(array(AlterConfigsResource))
    validate_only: bool = wire(boolean)


@nested
class AlterConfigsResourceResponse:
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+")
    resource_type: int = wire(int8)
    resource_name: str = wire(string)


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    responses: tuple[AlterConfigsResourceResponse, ...] = wire(array(AlterConfigsResourceResponse))
