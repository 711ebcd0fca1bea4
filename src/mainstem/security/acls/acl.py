"""Kafka's words for access control: resources, patterns of resource names, operations, rules and filters over rules.

The numbers of the enumerations are those of Kafka's protocol. A rule (`Acl`) allows or denies one principal, from one
host, one operation on all resources of a kind whose names fit a pattern.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

WILDCARD = "*"
"""As the name of a literal pattern: every resource of the kind. As a host: every host."""

ANY_PRINCIPAL = "User:*"

CLUSTER_NAME = "kafka-cluster"
"""The name of the one resource of kind CLUSTER."""

TEXT_LENGTH_MAX = 1_024
"""Characters of a name, a principal or a host in a rule. Topic names have 249; X.500 names of certificates some
hundreds."""


class ResourceKind(enum.IntEnum):
    """Kafka's ResourceType."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(enum.IntEnum):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    """In a filter: all patterns that a resource of the filter's name would fit."""
    LITERAL = 3
    PREFIXED = 4


class Operation(enum.IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(enum.IntEnum):
    """Kafka's AclPermissionType."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


OPERATIONS_OF: Mapping[ResourceKind, tuple[Operation, ...]] = {
    ResourceKind.TOPIC: (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceKind.GROUP: (
        Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceKind.CLUSTER: (
        Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
    ),
    ResourceKind.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
    ResourceKind.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceKind.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}  # fmt: skip
"""The operations that make sense on each kind of resource. Kafka's node takes rules of others as well, which mean
nothing."""

GRANTED_BY: Mapping[Operation, tuple[Operation, ...]] = {
    operation: (operation, Operation.ALL)
    for operation in Operation
    if operation not in (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
} | {
    Operation.DESCRIBE: (
        Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALL,
    ),
    Operation.DESCRIBE_CONFIGS: (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL),
}  # fmt: skip
"""The operations of rules that allow an operation. A rule denies its own operation alone, or all."""


class Acl(NamedTuple):
    """One rule. `principal` is "User:name"; `host` an IP address as text, or `WILDCARD`."""

    kind: ResourceKind
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission


def fault_of(acl: Acl) -> str | None:
    """The error in a rule that somebody wants to add; None: it may be added."""
    if acl.kind not in OPERATIONS_OF:
        return f"a rule cannot be about resources of kind {acl.kind.name}"
    if acl.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"a rule's pattern is LITERAL or PREFIXED, not {acl.pattern.name}"
    if acl.operation in (Operation.UNKNOWN, Operation.ANY):
        return f"a rule cannot be about operation {acl.operation.name}"
    if acl.permission not in (Permission.DENY, Permission.ALLOW):
        return f"a rule's permission is ALLOW or DENY, not {acl.permission.name}"
    if not acl.name:
        return "the resource name is empty"
    if acl.kind is ResourceKind.CLUSTER and acl.name != CLUSTER_NAME:
        return f"the only name of a CLUSTER resource is {CLUSTER_NAME}"
    if ":" not in acl.principal:
        return f"the principal {acl.principal[:80]!r} has no colon between its type and its name, as in User:alice"
    if not acl.host:
        return "the host is empty; * stands for every host"
    for what, text in (("resource name", acl.name), ("principal", acl.principal), ("host", acl.host)):
        if len(text) > TEXT_LENGTH_MAX:
            return f"the {what} has {len(text)} characters; at most {TEXT_LENGTH_MAX} are taken"
    return None


class AclFilter(NamedTuple):
    """Selects rules. None, and ANY in an enumeration, leave a field open."""

    kind: ResourceKind = ResourceKind.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        return (
            self.kind in (ResourceKind.ANY, acl.kind)
            and self._fits_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    @property
    def only(self) -> Acl | None:
        """The one rule that it can select; None: there can be several."""
        if self.name is None or self.principal is None or self.host is None:
            return None
        if self.pattern in (PatternType.ANY, PatternType.MATCH) or 1 in (self.kind, self.operation, self.permission):
            return None
        return Acl(self.kind, self.name, self.pattern, self.principal, self.host, self.operation, self.permission)

    def _fits_pattern(self, acl: Acl) -> bool:
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, acl.pattern):
            return False
        if self.name is None:
            return True
        if self.pattern is not PatternType.MATCH:
            return self.name == acl.name
        if acl.pattern is PatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name in (self.name, WILDCARD)


def fault_of_filter(wanted: AclFilter) -> str | None:
    """The error in a filter; None: there is none."""
    for value in (wanted.kind, wanted.pattern, wanted.operation, wanted.permission):
        if value == 0:
            return f"the filter has an unknown {type(value).__name__}"
    return None
