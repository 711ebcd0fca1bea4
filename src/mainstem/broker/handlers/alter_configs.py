"""AlterConfigs: the older way to change configs. The configs that a request names become all that is set for a topic;
the others go back to their defaults. Newer tools change single configs (`incremental_alter_configs.py`)."""

from __future__ import annotations

from mainstem.broker.admin.config_changes import Answer, alter, answer_each_once
from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.model import Topic
from mainstem.nameserver.state.topic_config import config_named
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    ReplacedConfigsResource,
    ReplacedConfigsResponse,
)


async def handle(broker: Broker, request: AlterConfigsRequest, call: RequestContext) -> AlterConfigsResponse:
    async def replace(resource: ReplacedConfigsResource) -> Answer:
        names = [config.name for config in resource.configs]
        if len(set(names)) < len(names):
            return ErrorCode.INVALID_REQUEST, "a config is named more than once"
        if any(config.value is None for config in resource.configs):
            return (
                ErrorCode.INVALID_REQUEST,
                "a config has no value; one that is left out goes back to its default",
            )
        return await alter(
            broker,
            resource,
            names,
            lambda topic: _changes(topic, resource),
            validate_only=request.validate_only,
        )

    answers = await answer_each_once(request.resources, ReplacedConfigsResponse, replace)
    return AlterConfigsResponse(responses=answers)


def _changes(topic: Topic, resource: ReplacedConfigsResource) -> dict[str, str | None]:
    """Raises `InvalidConfig`."""
    changes: dict[str, str | None] = dict.fromkeys(topic.configs)
    for config in resource.configs:
        changes[config_named(config.name).name] = config.value
    return changes
