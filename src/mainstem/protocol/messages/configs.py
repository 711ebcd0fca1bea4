"""Configs of topics and brokers.

DescribeConfigs: their values, with where each comes from.
AlterConfigs: the configs named become all that are set; what is not named goes back to its default.
IncrementalAlterConfigs: set, delete, append to or subtract from single configs.
"""

from __future__ import annotations

from mainstem.protocol.schema import array, boolean, int8, int16, int32, message, nested, string, wire


@nested
class DescribeConfigsResource:
    resource_type: int = wire(int8)
    resource_name: str = wire(string)
    configuration_keys: tuple[str, ...] | None = wire(array(string), nullable="0+")


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsRequest:
    resources: tuple[DescribeConfigsResource, ...] = wire(array(DescribeConfigsResource))
    include_synonyms: bool = wire(boolean, "1+", default=False)
    include_documentation: bool = wire(boolean, "3+", default=False)


@nested
class DescribeConfigsSynonym:
    name: str = wire(string, "1+")
    value: str | None = wire(string, "1+", nullable="0+")
    source: int = wire(int8, "1+")


@nested
class DescribeConfigsResourceResult:
    name: str = wire(string)
    value: str | None = wire(string, nullable="0+")
    read_only: bool = wire(boolean)
    config_source: int = wire(int8, "1+", default=-1, ignorable=True)
    is_sensitive: bool = wire(boolean)
    synonyms: tuple[DescribeConfigsSynonym, ...] = wire(array(DescribeConfigsSynonym), "1+", default=(), ignorable=True)
    config_type: int = wire(int8, "3+", default=0, ignorable=True)
    documentation: str | None = wire(string, "3+", nullable="0+", default=None, ignorable=True)


@nested
class DescribeConfigsResult:
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+")
    resource_type: int = wire(int8)
    resource_name: str = wire(string)
    configs: tuple[DescribeConfigsResourceResult, ...] = wire(array(DescribeConfigsResourceResult))


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    results: tuple[DescribeConfigsResult, ...] = wire(array(DescribeConfigsResult))


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
