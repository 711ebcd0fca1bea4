"""DescribeDelegationToken: the tokens that a client has something to do with, or may see by access rules; with their
secrets, as in Kafka."""

from __future__ import annotations

from mainstem.broker.admin.token_changes import may_ask
from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.delegation_tokens import (
    DescribedDelegationToken,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    TokenPrincipal,
)
from mainstem.security.acls.acl import Operation, ResourceKind
from mainstem.security.tokens.delegation_token import DelegationToken
from mainstem.security.tokens.token_admin import TokenService

TOKENS_PER_TURN = 250
"""Tokens looked at within one turn of the event loop: about a millisecond."""


async def handle(
    broker: Broker, request: DescribeDelegationTokenRequest, call: RequestContext
) -> DescribeDelegationTokenResponse:
    if not may_ask(call):
        return DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, tokens=())
    service = broker.tokens
    if service is None:
        return DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, tokens=())
    owners = None
    if request.owners is not None:
        owners = {f"{owner.principal_type}:{owner.principal_name}" for owner in request.owners}
    try:
        await service.admin.current()
    except MainstemError as refusal:
        return DescribeDelegationTokenResponse(error_code=error_of_refusal(refusal), tokens=())
    pace = broker.turns.pace(TOKENS_PER_TURN)
    found = []
    for token in service.admin.tokens():
        await pace.step()
        if (owners is None or any(token.concerns(owner) for owner in owners)) and _shown(broker, token, call):
            found.append(_described(service, token))
    return DescribeDelegationTokenResponse(error_code=ErrorCode.NONE, tokens=tuple(found))


def _shown(broker: Broker, token: DelegationToken, call: RequestContext) -> bool:
    if token.concerns(call.session.principal):
        return True
    verdicts = broker.verdicts(call.session)
    return verdicts.allows(Operation.DESCRIBE, ResourceKind.DELEGATION_TOKEN, token.token_id) or verdicts.allows(
        Operation.DESCRIBE_TOKENS, ResourceKind.USER, token.owner
    )


def _described(service: TokenService, token: DelegationToken) -> DescribedDelegationToken:
    owner, requester = _principal(token.owner), _principal(token.requester)
    return DescribedDelegationToken(
        principal_type=owner.principal_type,
        principal_name=owner.principal_name,
        token_requester_principal_type=requester.principal_type,
        token_requester_principal_name=requester.principal_name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.ends_ms,
        token_id=token.token_id,
        hmac=service.secrets.secret_of(token.token_id),
        renewers=tuple(map(_principal, token.renewers)),
    )


def _principal(text: str) -> TokenPrincipal:
    kind, _, name = text.partition(":")
    return TokenPrincipal(principal_type=kind, principal_name=name)
