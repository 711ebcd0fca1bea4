"""CreateDelegationToken: makes a token for who asks, or for somebody else for whom they may make tokens."""

from __future__ import annotations

import base64
import secrets

from mainstem.broker.admin.token_changes import may_ask, tell
from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from mainstem.security.acls.acl import Operation, ResourceKind
from mainstem.security.tokens.delegation_token import USER_TYPE, DelegationToken
from mainstem.security.tokens.token_admin import TokenService

ID_BYTES = 16


async def handle(
    broker: Broker, request: CreateDelegationTokenRequest, call: RequestContext
) -> CreateDelegationTokenResponse:
    requester = owner = call.session.principal
    if request.owner_principal_name:
        owner = f"{request.owner_principal_type}:{request.owner_principal_name}"
    made = await _made(broker, request, call, owner)
    if isinstance(made, ErrorCode):
        tell(broker, call, "CreateDelegationToken", "", made)
        return _answer(owner, requester, made)
    tell(broker, call, "CreateDelegationToken", made.token_id, ErrorCode.NONE)
    assert broker.tokens is not None
    return _answer(owner, requester, ErrorCode.NONE, made, broker.tokens.secrets.secret_of(made.token_id))


async def _made(
    broker: Broker, request: CreateDelegationTokenRequest, call: RequestContext, owner: str
) -> DelegationToken | ErrorCode:
    requester = call.session.principal
    if not may_ask(call):
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    verdicts = broker.verdicts(call.session)
    if owner != requester and not verdicts.allows(Operation.CREATE_TOKENS, ResourceKind.USER, owner):
        return ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    types = [renewer.principal_type for renewer in request.renewers]
    if any(kind != USER_TYPE for kind in (*types, owner.partition(":")[0])):
        return ErrorCode.INVALID_PRINCIPAL_TYPE
    if broker.tokens is None:
        return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    token = _token(broker, broker.tokens, request, owner, requester)
    try:
        await broker.tokens.admin.add_token(token)
    except MainstemError as refusal:
        return error_of_refusal(refusal)
    return token


def _new_id() -> str:
    """Letters and digits first: commands take what begins with a dash for an option."""
    while (token_id := base64.urlsafe_b64encode(secrets.token_bytes(ID_BYTES)).decode().rstrip("=")).startswith("-"):
        pass
    return token_id


def _token(
    broker: Broker, service: TokenService, request: CreateDelegationTokenRequest, owner: str, requester: str
) -> DelegationToken:
    now_ms = broker.clock.now_ms()
    lifetime_ms = service.max_lifetime_ms
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    renewers = dict.fromkeys(f"{USER_TYPE}:{renewer.principal_name}" for renewer in request.renewers)
    return DelegationToken(
        token_id=_new_id(),
        owner=owner,
        requester=requester,
        renewers=tuple(renewers),
        issued_ms=now_ms,
        expires_ms=now_ms + min(lifetime_ms, service.expiry_time_ms),
        ends_ms=now_ms + lifetime_ms,
    )


def _answer(
    owner: str, requester: str, code: ErrorCode, token: DelegationToken | None = None, secret: bytes = b""
) -> CreateDelegationTokenResponse:
    (owner_type, _, owner_name), (requester_type, _, requester_name) = owner.partition(":"), requester.partition(":")
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner_type,
        principal_name=owner_name,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester_name,
        issue_timestamp_ms=token.issued_ms if token is not None else -1,
        expiry_timestamp_ms=token.expires_ms if token is not None else -1,
        max_timestamp_ms=token.ends_ms if token is not None else -1,
        token_id=token.token_id if token is not None else "",
        hmac=secret,
    )
