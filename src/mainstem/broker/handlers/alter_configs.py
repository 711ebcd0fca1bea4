"""AlterConfigs: the older way to change configs. What a request names of a topic becomes all that is set for it; the
rest goes back to the defaults. Newer tools change single configs (`incremental_alter_configs.py`)."""

from __future__ import annotations

from collections import Counter

from mainstem.broker.broker import Broker, Call
from mainstem.broker.config_resource import ResourceType, unsupported_message
from mainstem.broker.handlers.incremental_alter_configs import Answer, alter_broker, alter_topic
from mainstem.model import Topic
from mainstem.nameserver.topic_config import config_named
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    ReplacedConfigsResource,
    ReplacedConfigsResponse,
)


async def handle(broker: Broker, request: AlterConfigsRequest, call: Call) -> AlterConfigsResponse:
    times_named = Counter((item.resource_type, item.resource_name) for item in request.resources)
    unique = {(item.resource_type, item.resource_name): item for item in request.resources}
    responses = []
    for key, resource in unique.items():
        answer: Answer = (ErrorCode.INVALID_REQUEST, "the request names this resource more than once")
        if times_named[key] == 1:
            answer = await _replace(broker, resource, validate_only=request.validate_only)
        responses.append(
            ReplacedConfigsResponse(
                error_code=answer[0],
                error_message=answer[1],
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return AlterConfigsResponse(responses=tuple(responses))


async def _replace(broker: Broker, resource: ReplacedConfigsResource, *, validate_only: bool) -> Answer:
    names = [config.name for config in resource.configs]
    if len(set(names)) < len(names):
        return ErrorCode.INVALID_REQUEST, "a config is named more than once"
    if any(config.value is None for config in resource.configs):
        return ErrorCode.INVALID_REQUEST, "a config has no value; one that is left out goes back to its default"
    match resource.resource_type:
        case ResourceType.TOPIC:
            return await alter_topic(
                broker,
                resource.resource_name,
                lambda topic: _changes(topic, resource),
                validate_only=validate_only,
            )
        case ResourceType.BROKER:
            return alter_broker(broker, resource.resource_name, names)
        case other:
            return ErrorCode.INVALID_REQUEST, unsupported_message(other)


def _changes(topic: Topic, resource: ReplacedConfigsResource) -> dict[str, str | None]:
    """Raises `InvalidConfig`."""
    changes: dict[str, str | None] = dict.fromkeys(topic.configs)
    for config in resource.configs:
        changes[config_named(config.name).name] = config.value
    return changes
