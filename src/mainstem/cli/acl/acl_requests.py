"""The requests of the commands about access rules.

librdkafka knows neither delegation tokens nor users as kinds of resources, so these commands speak for themselves. With
settings that only librdkafka has (OAUTHBEARER, for one) they ask through it, and then know its kinds alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Protocol

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from mainstem.cli.acl.rules import text_of
from mainstem.cli.clients import kafka_node
from mainstem.cli.clients.client_settings import settings_of
from mainstem.cli.clients.kafka_connection import KafkaConnections
from mainstem.cli.errors import RequestRefused, SettingsUnusable
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from mainstem.security.acls.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceKind

VERSION = 3
"""Of all three requests: the first that has users as resources, in Kafka since 3.0."""

RULES_PER_REQUEST = 500
"""Nodes read 1,000 filters of one request."""

_SPOKEN_ONLY = frozenset({ResourceKind.DELEGATION_TOKEN, ResourceKind.USER})


class AclRequests(Protocol):
    """The questions of the commands to a node. All raise RequestRefused."""

    def found(self, wanted: AclFilter) -> list[Acl]:
        """The rules that a filter selects, sorted."""

    def add(self, acls: Sequence[Acl]) -> None:
        """The error names each rule that was not added."""

    def remove(self, acls: Sequence[Acl]) -> None:
        """The error names each rule that was not removed."""


@contextmanager
def asked(bootstrap: str, kind: ResourceKind = ResourceKind.ANY) -> Iterator[AclRequests]:
    """`bootstrap` as options have it; `kind` of the resources that this is about. Raises SettingsUnusable."""
    try:
        connections = KafkaConnections(settings_of(bootstrap))
    except SettingsUnusable:
        if kind in _SPOKEN_ONLY:
            raise
        yield LibraryAclRequests(kafka_node.admin(bootstrap))
        return
    try:
        yield SpokenAclRequests(connections, bootstrap)
    finally:
        connections.close()


class SpokenAclRequests:
    """Asks any node of a cluster, in Kafka's protocol."""

    def __init__(self, connections: KafkaConnections, bootstrap: str) -> None:
        self._connections = connections
        self._bootstrap = bootstrap

    def found(self, wanted: AclFilter) -> list[Acl]:
        answer = self._answer(DescribeAclsRequest(**_filter_fields(wanted)))
        if answer.error_code:
            raise RequestRefused(f"the access rules were not listed: {_reason(answer)}")
        return sorted(
            Acl(
                ResourceKind(resource.resource_type), resource.resource_name, PatternType(resource.pattern_type),
                one.principal, one.host, Operation(one.operation), Permission(one.permission_type),
            )
            for resource in answer.resources
            for one in resource.acls
        )  # fmt: skip

    def add(self, acls: Sequence[Acl]) -> None:
        failures = []
        for some in _portions(acls):
            creations = tuple(
                AclCreation(
                    resource_type=acl.kind, resource_name=acl.name, resource_pattern_type=acl.pattern,
                    principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission,
                )
                for acl in some
            )  # fmt: skip
            results = self._answer(CreateAclsRequest(creations=creations)).results
            failures += _failures(some, results, "was not added")
        _settle(failures)

    def remove(self, acls: Sequence[Acl]) -> None:
        failures = []
        for some in _portions(acls):
            filters = tuple(DeleteAclsFilter(**_filter_fields(AclFilter(*acl))) for acl in some)
            results = self._answer(DeleteAclsRequest(filters=filters)).filter_results
            failures += _failures(some, results, "was not removed")
            for acl, result in zip(some, results, strict=False):
                failures += _failures([acl], result.matching_acls, "was not removed")
        _settle(failures)

    def _answer(self, request: Any) -> Any:
        return self._connections.call_any(self._bootstrap, request, VERSION)


class LibraryAclRequests:
    """Asks through librdkafka. Rules of kinds that it does not know have UNKNOWN as theirs."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def found(self, wanted: AclFilter) -> list[Acl]:
        future: Future[Iterable[AclBinding]] = self._admin.describe_acls(
            AclBindingFilter(*_library_fields(wanted)), request_timeout=kafka_node.REQUEST_SECONDS
        )
        return sorted(map(_acl, kafka_node.outcome(future, "the access rules were not listed")))

    def add(self, acls: Sequence[Acl]) -> None:
        bindings = [AclBinding(*_library_fields(acl)) for acl in acls]
        self._settle(self._admin.create_acls(bindings, request_timeout=kafka_node.REQUEST_SECONDS), "was not added")

    def remove(self, acls: Sequence[Acl]) -> None:
        filters = [AclBindingFilter(*_library_fields(acl)) for acl in acls]
        self._settle(self._admin.delete_acls(filters, request_timeout=kafka_node.REQUEST_SECONDS), "was not removed")

    def _settle(self, futures: dict[Any, Future[Any]], failure: str) -> None:
        failures = []
        for binding, future in futures.items():
            try:
                kafka_node.outcome(future, f"the rule {text_of(_acl(binding))} {failure}")
            except RequestRefused as refused:
                failures.append(str(refused))
        _settle(failures)


def _portions(acls: Sequence[Acl]) -> Iterator[Sequence[Acl]]:
    for start in range(0, len(acls), RULES_PER_REQUEST):
        yield acls[start : start + RULES_PER_REQUEST]


def _filter_fields(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.kind,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.pattern,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def _failures(acls: Sequence[Acl], results: Sequence[Any], failure: str) -> list[str]:
    """`results` are in the order of the rules."""
    return [
        f"the rule {text_of(acl)} {failure}: {_reason(result)}"
        for acl, result in zip(acls, results, strict=False)
        if result.error_code
    ]


def _reason(result: Any) -> str:
    code = ErrorCode(result.error_code)
    return f"{result.error_message or code.message} ({code.name})"


def _settle(failures: Sequence[str]) -> None:
    if failures:
        raise RequestRefused("; ".join(failures))


def _library_fields(acl: Acl | AclFilter) -> tuple[Any, ...]:
    """The library's enumerations have Kafka's numbers, as ours."""
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
