"""IncrementalAlterConfigs: changes single configs. All changes of one resource are made, or none."""

from __future__ import annotations

from collections import Counter

from mainstem.broker.admin.config_changes import Answer, Overrides, alter, answer_each_once
from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.model import ResourceType
from mainstem.nameserver.errors import InvalidConfig
from mainstem.nameserver.state.config_value import ConfigType
from mainstem.nameserver.state.resource_configs.broker_configs import BROKER_CONFIGS
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.configs import (
    OPERATION_APPEND,
    OPERATION_DELETE,
    OPERATION_SET,
    OPERATION_SUBTRACT,
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, call: RequestContext
) -> IncrementalAlterConfigsResponse:
    async def change(resource: AlterConfigsResource) -> Answer:
        fault = _fault_of_operations(resource)
        if fault is not None:
            return ErrorCode.INVALID_REQUEST, fault
        configs = [config for config in resource.configs if not _is_removed_anyway(resource, config)]
        return await alter(
            broker,
            resource,
            [config.name for config in configs],
            lambda overrides: {config.name: _new_value(overrides, config) for config in configs},
            validate_only=request.validate_only,
            loggers_too=True,
        )

    answers = await answer_each_once(request.resources, AlterConfigsResourceResponse, change)
    return IncrementalAlterConfigsResponse(responses=answers)


def _fault_of_operations(resource: AlterConfigsResource) -> str | None:
    times_named = Counter(config.name for config in resource.configs)
    for config in resource.configs:
        if times_named[config.name] > 1:
            return f"config {config.name!r} is changed more than once"
        if not OPERATION_SET <= config.config_operation <= OPERATION_SUBTRACT:
            return f"config {config.name!r}: there is no operation {config.config_operation}"
        if config.value is None and config.config_operation != OPERATION_DELETE:
            return f"config {config.name!r} is changed to no value"
    return None


def _is_removed_anyway(resource: AlterConfigsResource, config: AlterableConfig) -> bool:
    """Whether a config of a broker is taken away that nobody can set, as kafka-reassign-partitions does with throttles
    at the end, whether there were any or not."""
    return (
        resource.resource_type == ResourceType.BROKER
        and config.config_operation == OPERATION_DELETE
        and config.name not in BROKER_CONFIGS
    )


def _new_value(overrides: Overrides, config: AlterableConfig) -> str | None:
    """The value that an operation leads to; None removes the override. Raises `InvalidConfig`."""
    declared = overrides.named(config.name)
    if config.config_operation == OPERATION_DELETE:
        return None
    assert config.value is not None, "checked with the operations"
    if config.config_operation == OPERATION_SET:
        return config.value
    if declared.type is not ConfigType.LIST:
        raise InvalidConfig(f"{config.name} is not a list: it can be set, but not appended to or subtracted from")
    present = _items(overrides.present(declared))
    given = _items(config.value)
    if config.config_operation == OPERATION_APPEND:
        return ",".join(dict.fromkeys(present + given))
    return ",".join(item for item in present if item not in given)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
