"""DescribeConfigs: configs of topics and brokers, with where each value comes from."""

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
