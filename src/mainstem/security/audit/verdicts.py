"""Verdicts of the authorizer as audit events. It is told of each verdict once per session, when it is found."""

from __future__ import annotations

from mainstem.security.acls.acl import Operation, ResourceKind
from mainstem.security.acls.authorizer import ANY_NAME, Decision
from mainstem.security.audit.audit_log import ALLOWED, REFUSED, AuditEvent, AuditLog
from mainstem.security.audit.config import DATA, DENIED

ASKED_FIRST = frozenset({(Operation.CREATE, ResourceKind.CLUSTER), (Operation.IDEMPOTENT_WRITE, ResourceKind.CLUSTER)})
"""A refusal of these is no verdict yet: the handler asks next whether a rule about a topic allows the same."""

HIDDEN = frozenset({Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS})
"""Lists leave out what a client may not see, and nobody has refused it anything. A handler that refuses a request for
nothing else tells of it itself."""


class VerdictAudit:
    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit

    def __call__(
        self, principal: str, host: str, operation: Operation, kind: ResourceKind, name: str, decision: Decision
    ) -> None:
        resource = f"{kind.name.lower()}:{name}"
        if not decision.allowed:
            if operation not in HIDDEN and (operation, kind) not in ASKED_FIRST and name != ANY_NAME:
                event = AuditEvent(DENIED, principal, host, operation.name, resource, REFUSED, detail=decision.reason)
                self._audit.add(event)
        elif kind is ResourceKind.TOPIC and operation in (Operation.READ, Operation.WRITE):
            self._audit.add(AuditEvent(DATA, principal, host, operation.name, resource, ALLOWED))
