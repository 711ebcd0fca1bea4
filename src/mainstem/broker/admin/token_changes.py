"""What the APIs of delegation tokens share: who may ask, whose a secret is, and how a change is told."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.ports import ANONYMOUS
from mainstem.protocol.error_codes import ErrorCode
from mainstem.security.audit.audit_log import ALLOWED, of_session
from mainstem.security.audit.config import ADMIN
from mainstem.security.sasl.conversation import Authentication
from mainstem.security.tokens.delegation_token import DelegationToken
from mainstem.security.tokens.token_service import TokenService


def may_ask(call: RequestContext) -> bool:
    """Whether a client may ask about tokens at all: one that has shown who it is, and not by a token itself, so that no
    token makes others or lives longer than its owner wants."""
    session = call.session
    if session.protocol == "PLAINTEXT" or (session.protocol == "SSL" and session.principal == ANONYMOUS):
        return False
    return not (isinstance(session.authentication, Authentication) and session.authentication.by_token)


async def token_to_change(
    broker: Broker, service: TokenService, secret: bytes, call: RequestContext
) -> DelegationToken | ErrorCode:
    """The token of that secret, if the client may renew it, or why not."""
    token_id = await service.secrets.id_of(secret, service.admin.tokens())
    token = None if token_id is None else service.admin.tokens().get(token_id)
    if token is None:
        return ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    if token.expired(broker.clock.now_ms()):
        return ErrorCode.DELEGATION_TOKEN_EXPIRED
    if not token.renewed_by(call.session.principal):
        return ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    return token


def tell(broker: Broker, call: RequestContext, operation: str, token_id: str, code: ErrorCode) -> None:
    """Tell the audit of a change; requests name tokens by their secrets, which it must not know."""
    if broker.audit is not None:
        outcome = ALLOWED if code is ErrorCode.NONE else code.name
        resource = f"token:{token_id}"
        broker.audit.add(of_session(ADMIN, call.session, call.client_id, operation, resource, outcome))
