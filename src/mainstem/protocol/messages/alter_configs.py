"""AlterConfigs: the configs named become all that are set; what is not named goes back to its default."""

from __future__ import annotations

from mainstem.protocol.schema import array, boolean, int8, int16, int32, message, nested, string, wire


@nested
class ReplacedConfig:
    name: str = wire(string)
    value: str | None = wire(string, nullable="0+")


@nested
class ReplacedConfigsResource:
    resource_type: int = wire(int8)
    resource_name: str = wire(string)
    configs: tuple[ReplacedConfig, ...] = wire(array(ReplacedConfig))


@message(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsRequest:
    resources: tuple[ReplacedConfigsResource, ...] = wire(array(ReplacedConfigsResource))
    validate_only: bool = wire(boolean)


@nested
class ReplacedConfigsResponse:
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+")
    resource_type: int = wire(int8)
    resource_name: str = wire(string)


@message(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    responses: tuple[ReplacedConfigsResponse, ...] = wire(array(ReplacedConfigsResponse))
