"""AlterConfigs: the older way to change configs. The configs that a request names become all that is set for a
resource; the others go back to their defaults. Newer tools change single configs (`incremental_alter_configs.py`)."""

from __future__ import annotations

from mainstem.broker.admin.config_changes import Answer, Overrides, alter, answer_each_once
from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
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
            lambda overrides: _changes(overrides, resource),
            validate_only=request.validate_only,
        )

    answers = await answer_each_once(request.resources, ReplacedConfigsResponse, replace)
    return AlterConfigsResponse(responses=answers)


def _changes(overrides: Overrides, resource: ReplacedConfigsResource) -> dict[str, str | None]:
    """Raises `InvalidConfig`."""
    changes: dict[str, str | None] = dict.fromkeys(overrides.set)
    for config in resource.configs:
        changes[overrides.named(config.name).name] = config.value
    return changes
