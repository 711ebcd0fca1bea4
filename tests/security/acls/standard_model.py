"""Kafka's authorizer as its documentation tells it, rule by rule and without any index: the oracle for ours."""

from __future__ import annotations

from collections.abc import Iterable

from mainstem.security.acls.acl import Acl, Operation, PatternType, Permission, ResourceKind

DESCRIBES = {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
DESCRIBES_CONFIGS = {Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}


def is_about(acl: Acl, kind: ResourceKind, name: str) -> bool:
    if acl.kind != kind:
        return False
    if acl.pattern == PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in ("*", name)


def is_for(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in ("User:*", principal) and acl.host in ("*", host)


def is_on(acl: Acl, operation: Operation) -> bool:
    """Rules that allow reading, writing, deleting or altering allow describing; rules that deny deny what they name."""
    if acl.operation in (Operation.ALL, operation):
        return True
    if acl.permission == Permission.DENY:
        return False
    if operation == Operation.DESCRIBE:
        return acl.operation in DESCRIBES
    return operation == Operation.DESCRIBE_CONFIGS and acl.operation in DESCRIBES_CONFIGS


def allowed(
    acls: Iterable[Acl], principal: str, host: str, operation: Operation, kind: ResourceKind, name: str, everyone: bool
) -> bool:
    about = [acl for acl in acls if is_about(acl, kind, name)]
    applying = {acl.permission for acl in about if is_for(acl, principal, host) and is_on(acl, operation)}
    if Permission.DENY in applying:
        return False
    return Permission.ALLOW in applying or (everyone and not about)


def allowed_some(
    acls: Iterable[Acl], principal: str, host: str, operation: Operation, kind: ResourceKind, everyone: bool
) -> bool:
    """`authorizeByResourceType`, as its default implementation is documented."""
    acls = list(acls)
    if allowed(acls, principal, host, operation, kind, "hardcode", everyone):
        return True
    applying = [
        acl
        for acl in acls
        if acl.kind == kind and is_for(acl, principal, host) and acl.operation in (Operation.ALL, operation)
    ]
    denied = [acl for acl in applying if acl.permission == Permission.DENY]
    if any(acl.pattern == PatternType.LITERAL and acl.name == "*" for acl in denied):
        return False

    def is_covered(acl: Acl) -> bool:
        if acl.pattern == PatternType.LITERAL and acl.name == "*":
            return False
        for other in denied:
            if other.pattern == PatternType.PREFIXED and acl.name.startswith(other.name):
                return True
            if other.pattern == acl.pattern == PatternType.LITERAL and acl.name == other.name:
                return True
        return False

    return any(acl.permission == Permission.ALLOW and not is_covered(acl) for acl in applying)
