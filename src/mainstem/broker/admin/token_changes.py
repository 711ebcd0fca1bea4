"""Shared by the APIs of delegation tokens: who may ask, whose a secret is, and how a change is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.ports import ANONYMOUS
from mainstem.protocol.error_codes import ErrorCode
from mainstem.security.audit.audit_log import ALLOWED, of_session
from mainstem.security.audit.config import ADMIN
from mainstem.security.sasl.conversation import Authentication
from mainstem.security.tokens.delegation_token import DelegationToken
from mainstem.security.tokens.token_admin import TokenService


def may_ask(call: RequestContext) -> bool:
    """Whether a client may ask about tokens at all: one that has shown who it is, and not by a token itself, so that no
    token makes others or lives longer than its owner wants."""
    session = call.session
    if session.protocol == "PLAINTEXT" or (session.protocol == "SSL" and session.principal == ANONYMOUS):
        return False
    return not (isinstance(session.authentication, Authentication) and session.authentication.by_token)


async def change_token(
    broker: Broker,
    call: RequestContext,
    operation: str,
    secret: bytes,
    change: Callable[[TokenService, DelegationToken], Awaitable[int]],
) -> tuple[ErrorCode, int]:
    """Have `change` made to the token of that secret, if the client may, and tell the audit of it. Returns what came of
    it, and what `change` returned: when the token expires, in milliseconds since 1970; -1: it was not made."""
    code, token_id, expires_ms = await _changed(broker, call, secret, change)
    tell(broker, call, operation, token_id, code)
    return code, expires_ms


async def _changed(
    broker: Broker,
    call: RequestContext,
    secret: bytes,
    change: Callable[[TokenService, DelegationToken], Awaitable[int]],
) -> tuple[ErrorCode, str, int]:
    if not may_ask(call):
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "", -1
    service = broker.tokens
    if service is None:
        return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "", -1
    token = await _token_to_change(broker, service, secret, call)
    if isinstance(token, ErrorCode):
        return token, "", -1
    try:
        return ErrorCode.NONE, token.token_id, await change(service, token)
    except MainstemError as refusal:
        return error_of_refusal(refusal), token.token_id, -1


async def _token_to_change(
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
