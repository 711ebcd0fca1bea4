"""The things that have configs and are no topics, as the commands name them and as a node tells of them.

librdkafka does not know all of Kafka's types of resources: the commands speak Kafka's protocol themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import click

from mainstem.address import Address
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
from mainstem.protocol.messages.metadata import MetadataRequest

SOURCES = {1: "topic", 2: "node, live", 3: "all nodes, live", 4: "node's file", 5: "default", 6: "logger", 7: "set",
           8: "set"}  # fmt: skip
"""Kafka's sources of a value, in our words."""


class ConfiguredResource(NamedTuple):
    kind: ResourceType
    name: str

    def __str__(self) -> str:
        return "all nodes" if self == EVERY_NODE else f"{_KINDS[self.kind].words} {self.name}"


class _Kind(NamedTuple):
    option: str
    metavar: str
    words: str
    help: str


_KINDS = {
    ResourceType.BROKER: _Kind("node", "ID", "node", "A node, by its id: settings that change while it runs."),
    ResourceType.BROKER_LOGGER: _Kind(
        "loggers", "ID", "loggers of node", "The loggers of a node, by its id, until it stops."
    ),
    ResourceType.GROUP: _Kind("group", "ID", "group", "A consumer group or a share group."),
    ResourceType.CLIENT_METRICS: _Kind(
        "client-metrics", "NAME", "client metrics", "A subscription to what clients measure."
    ),
}


EVERY_NODE = ConfiguredResource(ResourceType.BROKER, "")
_OF_ONE_NODE = (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
"""Kinds of which a node knows its own alone."""


def resource_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--client-metrics NAME` and so on; `resource_given` makes a resource of them."""
    every = "All nodes: settings that hold where a node has none of its own."
    command = click.option("--every-node", is_flag=True, help=every)(command)
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
    if given["every_node"]:
        found.append(EVERY_NODE)
    if len(found) != 1:
        names = ", ".join(("--every-node", *(f"--{kind.option}" for kind in _KINDS.values())))
        raise click.UsageError(f"say of which one thing the configs are: {names}")
    return found[0]


def kind_named(kind: ResourceType) -> str:
    return _KINDS[kind].words


def listed(bootstrap: str) -> list[ConfiguredResource]:
    """All groups and client metrics that have configs that are set. Raises RequestRefused, NodeUnreachable,
    NotAdmitted."""
    kinds = tuple(int(kind) for kind in _KINDS if kind not in _OF_ONE_NODE)
    answer = _asked(bootstrap, ListConfigResourcesRequest(resource_types=kinds), 1)
    if answer.error_code:
        raise RequestRefused(f"nothing was listed: {ErrorCode(answer.error_code).message}")
    found = [ConfiguredResource(ResourceType(it.resource_type), it.resource_name) for it in answer.config_resources]
    return sorted(found)


def described(bootstrap: str, resource: ConfiguredResource) -> list[DescribeConfigsResourceResult]:
    """The configs of a resource. Raises as `listed`."""
    wanted = DescribeConfigsResource(resource_type=resource.kind, resource_name=resource.name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=(wanted,), include_synonyms=True, include_documentation=True)
    (result,) = _asked(bootstrap, request, 4, _node_of(resource)).results
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
    (answer,) = _asked(bootstrap, request, 1, _node_of(resource)).responses
    if answer.error_code:
        why = answer.error_message or ErrorCode(answer.error_code).message
        raise RequestRefused(f"the configs of {resource} were not changed: {why}")


def _node_of(resource: ConfiguredResource) -> str | None:
    """The id of the node that has to be asked; None: any."""
    return resource.name if resource.kind in _OF_ONE_NODE and resource != EVERY_NODE else None


def _asked(bootstrap: str, request: Any, version: int, node: str | None = None) -> Any:
    connections = KafkaConnections(settings_of(bootstrap))
    try:
        if node is None:
            return connections.call_any(bootstrap, request, version)
        brokers = connections.call_any(bootstrap, MetadataRequest(topics=()), 9).brokers
        address = next((Address(it.host, it.port) for it in brokers if str(it.node_id) == node), None)
        if address is None:
            known = ", ".join(str(it.node_id) for it in brokers)
            raise RequestRefused(f"there is no node {node} that serves clients; there are {known}")
        return connections.call_any(str(address), request, version)
    finally:
        connections.close()
