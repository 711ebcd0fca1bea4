"""A session's authentication: begun with its first request, ended with who the client is."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.ports import ANY_BYTES, Session
from mainstem.security.sasl.conversation import Authentication

REFUSED = "authentication failed: the credentials were not accepted"
"""The error of every client that fails, whatever the reason."""


def begun(broker: Broker, session: Session) -> Authentication | None:
    """The authentication of a gated session, from its first request on; None: this listener asks nobody."""
    if not session.gated and session.authentication is None:
        return None
    if session.authentication is None and broker.authenticator is not None:
        session.authentication = broker.authenticator.begin(broker.sasl_mechanisms.get(session.listener, ()))
    authentication = session.authentication
    return authentication if isinstance(authentication, Authentication) else None


def admit(session: Session, authentication: Authentication) -> None:
    """The client has shown who it is."""
    session.principal = f"User:{authentication.user}"
    session.authenticated = True
    session.frame_bytes_max = ANY_BYTES
    session.gated = authentication.expires_at is not None
