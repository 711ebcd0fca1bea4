"""Verdicts of the authorizer as audit events. It is told of each verdict once per session, when it is found."""

from __future__ import annotations

from mainstem.security.acls.acl import Operation, ResourceKind
from mainstem.security.acls.authorizer import ANY_NAME, Decision
from mainstem.security.audit.audit_log import ALLOWED, REFUSED, AuditEvent, AuditLog
from mainstem.security.audit.config import DATA, DENIED

ASKED_FIRST = frozenset({(Operation.CREATE, ResourceKind.CLUSTER), (Operation.IDEMPOTENT_WRITE, ResourceKind.CLUSTER)})
"""Who may not do these may be allowed the same by a rule about a topic, which is asked next."""

HIDDEN = frozenset({Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS})
"""What is not seen by those who may not: lists leave it out, which nobody has refused them. Requests for nothing else
are told of by whoever refuses them."""


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
