"""Access rules as the commands read and write them."""

from __future__ import annotations

from typing import Any

import click
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from mainstem.cli.clients import kafka_node
from mainstem.cli.parameters.options import OptionType
from mainstem.security.acls.acl import CLUSTER_NAME, WILDCARD, Acl, Operation, PatternType, ResourceKind

KINDS = {
    "topic": ResourceKind.TOPIC,
    "group": ResourceKind.GROUP,
    "cluster": ResourceKind.CLUSTER,
    "transactional-id": ResourceKind.TRANSACTIONAL_ID,
    "delegation-token": ResourceKind.DELEGATION_TOKEN,
    "user": ResourceKind.USER,
}
"""The kinds of resources by their names in commands."""

OPERATIONS = {
    operation.name.lower().replace("_", "-"): operation
    for operation in Operation
    if Operation.ALL <= operation <= Operation.DESCRIBE_TOKENS
}

Resource = tuple[ResourceKind, str]


class ResourceParameter(OptionType[Resource]):
    """KIND:NAME, or `cluster`. The user alice is `user:alice`, and `user:User:alice` as in rules."""

    name = "RESOURCE"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Resource:
        if isinstance(value, tuple):
            return value
        text, _, name = str(value).partition(":")
        kind = KINDS.get(text)
        if kind is None:
            self.fail(f"{value!r} is none of {', '.join(f'{kind}:NAME' for kind in KINDS)}", param, context)
        if kind is ResourceKind.CLUSTER:
            if name not in ("", CLUSTER_NAME):
                self.fail(f"there is one cluster: it is named by {text!r} alone", param, context)
            return kind, CLUSTER_NAME
        if not name:
            self.fail(f"{value!r} has no name; {text}:NAME, or '{text}:*' for all", param, context)
        if kind is ResourceKind.USER and ":" not in name and name != WILDCARD:
            return kind, f"User:{name}"
        return kind, name


class OperationParameter(OptionType[Operation]):
    """One operation, as Kafka calls it, in any case."""

    name = "OPERATION"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Operation:
        if isinstance(value, Operation):
            return value
        found = OPERATIONS.get(str(value).lower().replace("_", "-"))
        if found is None:
            self.fail(f"{value!r} is none of {', '.join(OPERATIONS)}", param, context)
        return found


class PrincipalParameter(OptionType[str]):
    """TYPE:NAME, which is User:NAME."""

    name = "PRINCIPAL"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> str:
        if ":" not in str(value):
            self.fail(f"{value!r} has no type: User:{value}", param, context)
        return str(value)


def node_config(admin: AdminClient, name: str) -> str | None:
    """A config of a node under Kafka's name; None: it is not told."""
    from confluent_kafka.admin import ConfigResource

    try:
        brokers = admin.list_topics(timeout=kafka_node.CONNECT_SECONDS).brokers
        resource = ConfigResource(ConfigResource.Type.BROKER, str(min(brokers)))
        future = admin.describe_configs([resource], request_timeout=kafka_node.REQUEST_SECONDS)[resource]
        entry = future.result(timeout=kafka_node.REQUEST_SECONDS).get(name)
    except (KafkaException, TimeoutError):
        return None
    return None if entry is None else str(entry.value)


def text_of(acl: Acl) -> str:
    """A rule on one line."""
    origin = "" if acl.host == "*" else f" from {acl.host}"
    return f"{acl.permission.name} {acl.principal} {operation_text(acl.operation)} {resource_text(acl)}{origin}"


def resource_text(acl: Acl) -> str:
    if acl.kind is ResourceKind.CLUSTER:
        return "cluster"
    begins = " (prefix)" if acl.pattern is PatternType.PREFIXED else ""
    return f"{acl.kind.name.lower().replace('_', '-')}:{acl.name}{begins}"


def operation_text(operation: Operation) -> str:
    return operation.name.lower().replace("_", "-")


def data_of(acl: Acl) -> dict[str, str]:
    """A rule as JSON output has it."""
    return {
        "principal": acl.principal,
        "permission": acl.permission.name.lower(),
        "operation": operation_text(acl.operation),
        "kind": acl.kind.name.lower().replace("_", "-"),
        "name": acl.name,
        "pattern": acl.pattern.name.lower(),
        "host": acl.host,
    }
