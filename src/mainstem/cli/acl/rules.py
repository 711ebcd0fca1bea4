"""Access rules as the commands read and write them, and as the Kafka client has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import click
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from mainstem.cli.clients import kafka_node
from mainstem.cli.errors import RequestRefused
from mainstem.cli.parameters.options import OptionType
from mainstem.security.acls.acl import CLUSTER_NAME, Acl, AclFilter, Operation, PatternType, Permission, ResourceKind

KINDS = {
    "topic": ResourceKind.TOPIC,
    "group": ResourceKind.GROUP,
    "cluster": ResourceKind.CLUSTER,
    "transactional-id": ResourceKind.TRANSACTIONAL_ID,
}
"""The kinds of resources that the client knows, by their names in commands."""

OPERATIONS = {
    operation.name.lower().replace("_", "-"): operation
    for operation in Operation
    if Operation.ALL <= operation <= Operation.IDEMPOTENT_WRITE
}

Resource = tuple[ResourceKind, str]


class ResourceParameter(OptionType[Resource]):
    """KIND:NAME, or `cluster`."""

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


def found(admin: AdminClient, wanted: AclFilter) -> list[Acl]:
    """The rules that a filter selects, sorted. Raises RequestRefused."""
    future: Future[Iterable[AclBinding]] = admin.describe_acls(
        _filter(wanted), request_timeout=kafka_node.REQUEST_SECONDS
    )
    return sorted(map(_acl, kafka_node.outcome(future, "the access rules were not listed")))


def add(admin: AdminClient, acls: Sequence[Acl]) -> None:
    """Raises RequestRefused naming each rule that was not added."""
    futures = admin.create_acls([_binding(acl) for acl in acls], request_timeout=kafka_node.REQUEST_SECONDS)
    _settle(futures, "was not added")


def remove(admin: AdminClient, acls: Sequence[Acl]) -> None:
    """Raises RequestRefused naming each rule that was not removed."""
    futures = admin.delete_acls([_filter(AclFilter(*acl)) for acl in acls], request_timeout=kafka_node.REQUEST_SECONDS)
    _settle(futures, "was not removed")


def _settle(futures: dict[Any, Future[Any]], failure: str) -> None:
    failures = []
    for binding, future in futures.items():
        try:
            kafka_node.outcome(future, f"the rule {text_of(_acl(binding))} {failure}")
        except RequestRefused as refused:
            failures.append(str(refused))
    if failures:
        raise RequestRefused("; ".join(failures))


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


def _binding(acl: Acl) -> AclBinding:
    return AclBinding(*_client_fields(acl))


def _filter(wanted: AclFilter) -> AclBindingFilter:
    return AclBindingFilter(*_client_fields(wanted))


def _client_fields(acl: Acl | AclFilter) -> tuple[Any, ...]:
    """The client's enumerations have Kafka's numbers, as ours."""
    return (
        ResourceType(acl.kind.value),
        acl.name,
        ResourcePatternType(acl.pattern.value),
        acl.principal,
        acl.host,
        AclOperation(acl.operation.value),
        AclPermissionType(acl.permission.value),
    )


def _acl(binding: AclBinding | AclBindingFilter) -> Acl:
    return Acl(
        ResourceKind(binding.restype.value),
        binding.name,
        PatternType(binding.resource_pattern_type.value),
        binding.principal,
        binding.host,
        Operation(binding.operation.value),
        Permission(binding.permission_type.value),
    )
