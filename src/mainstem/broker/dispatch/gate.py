"""The gate of listeners with SASL: until a client has shown who it is, nothing of it is dispatched but that.

Sessions of such listeners are `gated` from their first request on: the gate lets ApiVersions, SaslHandshake and
SaslAuthenticate through, and what comes too early ends the connection without an answer, as in Kafka. A client that is
authenticated for good is not looked at any more. One whose session ends has to authenticate again before
(KIP-368); a request that comes later ends the connection.

After a handshake of version 0 (Kafka 0.10) tokens come without a request around them, and are answered likewise.
"""

from __future__ import annotations

from mainstem.broker.authentications import admit
from mainstem.broker.broker import Broker
from mainstem.broker.errors import Unauthenticated
from mainstem.model import Buffer
from mainstem.ports import LastReply, Reply, Scattered, Session
from mainstem.security.audit.audit_log import ALLOWED, REFUSED, of_session
from mainstem.security.audit.config import AUTHENTICATION
from mainstem.security.sasl.conversation import Authentication, Stage
from mainstem.security.sasl.errors import AuthenticationFailed, IllegalState
from mainstem.security.sasl.steps import Accepted

SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
OPEN_TO_ALL = frozenset({SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE})

_LENGTH_BYTES = 4


class Gate:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._monotonic = broker.clock.monotonic

    def passes(self, session: Session) -> bool:
        """Whether any request of a gated session is taken now."""
        authentication = session.authentication
        return (
            isinstance(authentication, Authentication)
            and authentication.authenticated
            and not authentication.expired(self._monotonic())
        )

    def check(self, session: Session, api_key: int) -> None:
        """Raises `Unauthenticated`, which ends the connection, for a request of a gated session that comes too early or
        too late."""
        if api_key in OPEN_TO_ALL or self.passes(session):
            return
        authentication = session.authentication
        if isinstance(authentication, Authentication) and authentication.authenticated:
            raise Unauthenticated(f"{session.principal} sent a request after its session had expired")
        raise Unauthenticated(f"a request of API {api_key} before the client has shown who it is")

    def takes_raw(self, session: Session) -> bool:
        """Whether the next frame is a token, not a request."""
        authentication = session.authentication
        return isinstance(authentication, Authentication) and authentication.stage is Stage.RAW_TOKENS

    async def answer_raw(self, session: Session, token: bytes) -> Reply:
        """The answer to a token without a request around it. A refusal has none: the connection is closed."""
        authentication = session.authentication
        assert isinstance(authentication, Authentication)
        assert self._broker.authenticator is not None
        try:
            answer, _ = await self._broker.authenticator.step(authentication, session.host, token)
        except (AuthenticationFailed, IllegalState) as error:
            self._tell(session, authentication, REFUSED, str(error))
            raise Unauthenticated(f"authentication failed: {error}") from None
        if isinstance(answer, Accepted):
            admit(session, authentication)
            self._tell(session, authentication, ALLOWED)
        return [len(answer.token).to_bytes(_LENGTH_BYTES, "big") + answer.token]

    def _tell(self, session: Session, authentication: Authentication, outcome: str, detail: str = "") -> None:
        if self._broker.audit is not None:
            mechanism = authentication.mechanism_name or ""
            event = of_session(AUTHENTICATION, session, None, mechanism, "", outcome, detail)
            self._broker.audit.add(event)


def last(reply: Reply) -> Reply:
    """The connection ends with this response."""
    parts: list[Buffer | Scattered] = list(reply or ())
    return LastReply(parts)
