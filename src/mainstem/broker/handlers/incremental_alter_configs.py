"""IncrementalAlterConfigs: change single configs of topics. All changes of one topic are made, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from mainstem.broker.broker import Broker, Call
from mainstem.broker.config_resource import ResourceType, broker_name_fault, unsupported_message
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.reserved_topics import internal_message, is_internal
from mainstem.errors import MainstemError
from mainstem.model import Topic
from mainstem.nameserver.config_value import ConfigType
from mainstem.nameserver.errors import InvalidConfig
from mainstem.nameserver.topic_config import config_named
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.incremental_alter_configs import (
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

Answer = tuple[ErrorCode, str | None]

_DONE: Answer = (ErrorCode.NONE, None)


async def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, call: Call
) -> IncrementalAlterConfigsResponse:
    times_named = Counter((item.resource_type, item.resource_name) for item in request.resources)
    unique = {(item.resource_type, item.resource_name): item for item in request.resources}
    responses = []
    for key, resource in unique.items():
        answer: Answer = (ErrorCode.INVALID_REQUEST, "the request names this resource more than once")
        if times_named[key] == 1:
            answer = await _alter(broker, resource, validate_only=request.validate_only)
        responses.append(
            AlterConfigsResourceResponse(
                error_code=answer[0],
                error_message=answer[1],
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return IncrementalAlterConfigsResponse(responses=tuple(responses))


async def _alter(broker: Broker, resource: AlterConfigsResource, *, validate_only: bool) -> Answer:
    fault = _fault_of_operations(resource)
    if fault is not None:
        return ErrorCode.INVALID_REQUEST, fault
    match resource.resource_type:
        case ResourceType.TOPIC:
            return await alter_topic(
                broker,
                resource.resource_name,
                lambda topic: {config.name: _new_value(broker, topic, config) for config in resource.configs},
                validate_only=validate_only,
            )
        case ResourceType.BROKER:
            return alter_broker(broker, resource.resource_name, [config.name for config in resource.configs])
        case other:
            return ErrorCode.INVALID_REQUEST, unsupported_message(other)


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


async def alter_topic(
    broker: Broker, name: str, changes_of: Callable[[Topic], dict[str, str | None]], *, validate_only: bool
) -> Answer:
    """Make the changes that follow from what a topic is now; None removes what is set."""
    async with broker.topic_changes.of([name]):  # appending to a list reads it first
        topic = broker.metadata.topic(name)
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:260]!r}"
        if is_internal(broker, name):
            return ErrorCode.INVALID_TOPIC_EXCEPTION, internal_message(name)
        try:
            await broker.metadata_admin.alter_configs(name, changes_of(topic), validate_only=validate_only)
        except MainstemError as refusal:
            return error_of_refusal(refusal), str(refusal)
    return _DONE


def _new_value(broker: Broker, topic: Topic, config: AlterableConfig) -> str | None:
    """The value that an operation leads to, None to remove the override. Raises `InvalidConfig`."""
    declared = config_named(config.name)
    if config.config_operation == OPERATION_DELETE:
        return None
    assert config.value is not None, "checked with the operations"
    if config.config_operation == OPERATION_SET:
        return config.value
    if declared.type is not ConfigType.LIST:
        raise InvalidConfig(f"{config.name} is not a list: it can be set, but not appended to or subtracted from")
    default = broker.facts.topic_defaults.get(config.name, declared.default)
    present = _items(topic.configs.get(config.name, default))
    given = _items(config.value)
    if config.config_operation == OPERATION_APPEND:
        return ",".join(dict.fromkeys(present + given))
    return ",".join(item for item in present if item not in given)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def alter_broker(broker: Broker, name: str, configs: Sequence[str]) -> Answer:
    fault = broker_name_fault(broker, name)
    if fault is not None:
        return ErrorCode.INVALID_REQUEST, fault
    if not configs:
        return _DONE
    names = ", ".join(configs)
    return (
        ErrorCode.INVALID_REQUEST,
        f"broker configs cannot be changed while the node runs: {names[:200]}. "
        "Set them in its configuration file and start it anew",
    )
