"""The users of the cluster as visitors of its HTTP port: who they are, found out as on listeners with SASL, and
what they may do there.
"""

from __future__ import annotations

import logging

from mainstem.bounded_log import BoundedLog
from mainstem.console.users import HttpChange, Shown
from mainstem.node.access.authentication import authenticator_of
from mainstem.node.broker_role.compute import authorizer_of
from mainstem.node.node_roles import Roles
from mainstem.ports import ANONYMOUS, Clock, Session
from mainstem.security.acls.acl import Operation
from mainstem.security.acls.authorizer import Authorizer
from mainstem.security.audit.audit_log import ALLOWED, REFUSED, AuditLog, of_session
from mainstem.security.audit.config import ADMIN, AUTHENTICATION
from mainstem.security.sasl import bearer, plain
from mainstem.security.sasl.authenticator import Authenticator
from mainstem.security.sasl.errors import AuthenticationFailed, IllegalState
from mainstem.security.sasl.steps import Accepted

LISTENER = "HTTP"
"""Stands for the port in audit records, which name listeners."""

REFUSED_CHANGE = "refused"
"""The outcome of a change that cannot be; the record says why."""

log = logging.getLogger(__name__)


class NodeHttpUsers:
    """Implements `console.users.HttpUsers`. `authorizer`: None where everybody may do everything."""

    def __init__(
        self, authenticator: Authenticator, authorizer: Authorizer | None, audit: AuditLog | None, clock: Clock
    ) -> None:
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._audit = audit
        self._clock = clock
        self._refusals = BoundedLog(log, clock)

    def must_wait(self, host: str) -> bool:
        return self._authenticator.must_wait(host)

    async def wait(self, host: str) -> None:
        await self._authenticator.wait(host)

    async def principal(self, host: str, shown: Shown) -> str | None:
        name, token = _as_sasl(shown)
        authentication = self._authenticator.begin((name,))
        authentication.handshake(name, self._clock.monotonic())
        try:
            answer, _ = await self._authenticator.step(authentication, host, token, waits=False)
            if not isinstance(answer, Accepted):  # the token of an issuer is refused in two steps
                await self._authenticator.step(authentication, host, b"\x01", waits=False)
        except (AuthenticationFailed, IllegalState) as error:
            self._refusals.report(logging.WARNING, f"authentication over HTTP failed ({host}, {name}): {error}")
            self._tell(host, ANONYMOUS, name, REFUSED, str(error))
            return None
        principal = f"User:{authentication.user}"
        self._tell(host, principal, name, ALLOWED)
        return principal

    def may(self, principal: str, host: str, *, change: bool) -> bool:
        if self._authorizer is None:
            return True
        wanted = Operation.ALTER if change else Operation.DESCRIBE
        return self._authorizer.of(_session(host, principal)).allows_on_cluster(wanted)

    def _tell(self, host: str, principal: str, mechanism: str, outcome: str, detail: str = "") -> None:
        if self._audit is not None:
            session = _session(host, principal)
            self._audit.add(of_session(AUTHENTICATION, session, None, mechanism, "", outcome, detail))


def tell_change(audit: AuditLog | None, change: HttpChange) -> None:
    """Have the audit record a change that somebody asked for over HTTP."""
    if audit is None:
        return
    outcome = ALLOWED if change.refusal is None else REFUSED_CHANGE
    session = _session(change.host, change.principal)
    event = of_session(ADMIN, session, None, change.operation, change.resource, outcome, change.refusal or "")
    audit.add(event)


def users_over_http(roles: Roles) -> NodeHttpUsers:
    """On a broker with what its listeners go by: wrong guesses there count here, too. Raises ConfigError."""
    setup, ports = roles.setup, roles.setup.ports
    broker = roles.compute.broker if roles.compute is not None else None
    authenticator = broker.authenticator if broker is not None else None
    if authenticator is None:
        kept = roles.nameserver.credentials(ports.random_bytes)
        authenticator = authenticator_of(setup.config, ports, kept, tokens=None)
    assert authenticator is not None, "console.users is on"
    audit = broker.audit if broker is not None else None
    authorizer = broker.authorizer if broker is not None else authorizer_of(setup, roles.nameserver, None)
    return NodeHttpUsers(authenticator, authorizer, audit, ports.clock)


def _session(host: str, principal: str) -> Session:
    """A request stands alone: no session goes on from one to the next."""
    return Session(host, 0, 0, listener=LISTENER, principal=principal)


def _as_sasl(shown: Shown) -> tuple[str, bytes]:
    """The mechanism, and what a client of a listener would send."""
    if shown.token:
        return bearer.NAME, b"n,,\x01auth=Bearer " + shown.token.encode("utf-8", "replace") + b"\x01\x01"
    return plain.NAME, b"\0" + shown.user + b"\0" + shown.password
