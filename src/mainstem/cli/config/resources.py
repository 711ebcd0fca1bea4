"""The things that have configs and are no topics, as the commands name them and as a node tells of them.

librdkafka does not know all of Kafka's types of resources: the commands speak Kafka's protocol themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import click

from mainstem.cli.clients.client_settings import settings_of
from mainstem.cli.clients.kafka_connection import KafkaConnections
from mainstem.cli.errors import RequestRefused
from mainstem.model import ResourceType
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.configs import (
    OPERATION_DELETE,
    OPERATION_SET,
    AlterableConfig,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    IncrementalAlterConfigsRequest,
)
from mainstem.protocol.messages.list_config_resources import ListConfigResourcesRequest

SOURCES = {1: "topic", 2: "node, live", 3: "all nodes, live", 4: "node's file", 5: "default", 6: "logger", 7: "set",
           8: "set"}  # fmt: skip
"""Kafka's sources of a value, in our words."""


class ConfiguredResource(NamedTuple):
    kind: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{_KINDS[self.kind].words} {self.name}"


class _Kind(NamedTuple):
    option: str
    metavar: str
    words: str
    help: str


_KINDS = {
    ResourceType.GROUP: _Kind("group", "ID", "group", "A consumer group or a share group."),
    ResourceType.CLIENT_METRICS: _Kind(
        "client-metrics", "NAME", "client metrics", "A subscription to what clients measure."
    ),
}


def resource_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--client-metrics NAME` and so on; `resource_given` makes a resource of them."""
    for kind in reversed(_KINDS.values()):
        command = click.option(f"--{kind.option}", metavar=kind.metavar, help=kind.help)(command)
    return command


def resource_given(given: Mapping[str, Any]) -> ConfiguredResource:
    """Raises click.UsageError."""
    found = [
        ConfiguredResource(kind, name)
        for kind, told in _KINDS.items()
        if (name := given[told.option.replace("-", "_")]) is not None
    ]
    if len(found) != 1:
        names = ", ".join(f"--{kind.option}" for kind in _KINDS.values())
        raise click.UsageError(f"say of which one thing the configs are: {names}")
    return found[0]


def kind_named(kind: ResourceType) -> str:
    return _KINDS[kind].words


def listed(bootstrap: str) -> list[ConfiguredResource]:
    """All that has configs that are set. Raises RequestRefused, NodeUnreachable, NotAdmitted."""
    answer = _asked(bootstrap, ListConfigResourcesRequest(resource_types=tuple(map(int, _KINDS))), 1)
    if answer.error_code:
        raise RequestRefused(f"nothing was listed: {ErrorCode(answer.error_code).message}")
    found = [ConfiguredResource(ResourceType(it.resource_type), it.resource_name) for it in answer.config_resources]
    return sorted(found)


def described(bootstrap: str, resource: ConfiguredResource) -> list[DescribeConfigsResourceResult]:
    """The configs of a resource. Raises as `listed`."""
    wanted = DescribeConfigsResource(resource_type=resource.kind, resource_name=resource.name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=(wanted,), include_synonyms=True, include_documentation=True)
    (result,) = _asked(bootstrap, request, 4).results
    if result.error_code:
        raise RequestRefused(f"{resource} was not described: {result.error_message or result.error_code}")
    return sorted(result.configs, key=lambda config: config.name)


def alter(bootstrap: str, resource: ConfiguredResource, changes: Mapping[str, str | None]) -> None:
    """Set configs (value) and remove them (None). Raises as `listed`."""
    configs = tuple(
        AlterableConfig(name=key, config_operation=OPERATION_DELETE if value is None else OPERATION_SET, value=value)
        for key, value in changes.items()
    )
    altered = AlterConfigsResource(resource_type=resource.kind, resource_name=resource.name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=(altered,), validate_only=False)
    (answer,) = _asked(bootstrap, request, 1).responses
    if answer.error_code:
        why = answer.error_message or ErrorCode(answer.error_code).message
        raise RequestRefused(f"the configs of {resource} were not changed: {why}")


def _asked(bootstrap: str, request: Any, version: int) -> Any:
    connections = KafkaConnections(settings_of(bootstrap))
    try:
        return connections.call_any(bootstrap, request, version)
    finally:
        connections.close()
