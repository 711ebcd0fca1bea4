"""Shared by the three handlers of access rules: rules and filters as requests have them, and the codes of outcomes."""

from __future__ import annotations

from typing import Protocol

from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.errors import MainstemError
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.acls import AclCreation
from mainstem.security.acls.acl import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
    fault_of,
    fault_of_filter,
)
from mainstem.security.acls.acl_table import AclTable

COMPARED_PER_TURN = 2_000
"""Rules compared with a filter within one turn of the event loop: about a millisecond."""


class AskedFilter(Protocol):
    """The fields of a filter, as two requests have them."""

    @property
    def resource_type_filter(self) -> int: ...

    @property
    def resource_name_filter(self) -> str | None: ...

    @property
    def pattern_type_filter(self) -> int: ...

    @property
    def principal_filter(self) -> str | None: ...

    @property
    def host_filter(self) -> str | None: ...

    @property
    def operation(self) -> int: ...

    @property
    def permission_type(self) -> int: ...


def security_disabled() -> tuple[ErrorCode, str]:
    """The answer of a node without an authorizer."""
    return ErrorCode.SECURITY_DISABLED, "no authorizer is configured: authorizer.enabled is false"


def acl_of(asked: AclCreation) -> Acl | str:
    """The rule that a request wants, or what is wrong with it."""
    try:
        acl = Acl(
            ResourceKind(asked.resource_type),
            asked.resource_name,
            PatternType(asked.resource_pattern_type),
            asked.principal,
            asked.host,
            Operation(asked.operation),
            Permission(asked.permission_type),
        )
    except ValueError as error:
        return str(error)
    return fault_of(acl) or acl


def filter_of(asked: AskedFilter) -> AclFilter | str:
    """The filter of a request, or what is wrong with it."""
    try:
        wanted = AclFilter(
            ResourceKind(asked.resource_type_filter),
            asked.resource_name_filter,
            PatternType(asked.pattern_type_filter),
            asked.principal_filter,
            asked.host_filter,
            Operation(asked.operation),
            Permission(asked.permission_type),
        )
    except ValueError as error:
        return str(error)
    return fault_of_filter(wanted) or wanted


async def selected(broker: Broker, table: AclTable, wanted: AclFilter) -> list[Acl]:
    """The rules that a filter selects, oldest first."""
    one = wanted.only
    if one is not None:
        return [one] if one in table else []
    found = []
    pace = broker.turns.pace(COMPARED_PER_TURN)
    for acl in tuple(table):
        await pace.step()
        if wanted.matches(acl):
            found.append(acl)
    return found


def outcome_of(refusal: MainstemError | None) -> tuple[ErrorCode, str | None]:
    """Code and message for one rule of a change."""
    return (ErrorCode.NONE, None) if refusal is None else (error_of_refusal(refusal), str(refusal))
