"""RenewDelegationToken: moves the time at which a token expires, up to its end. Its owner and its renewers may."""

from __future__ import annotations

from mainstem.broker.admin.token_changes import may_ask, tell, token_to_change
from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.delegation_tokens import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)


async def handle(
    broker: Broker, request: RenewDelegationTokenRequest, call: RequestContext
) -> RenewDelegationTokenResponse:
    code, token_id, expires_ms = await _changed(broker, request, call)
    tell(broker, call, "RenewDelegationToken", token_id, code)
    return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=expires_ms)


async def _changed(
    broker: Broker, request: RenewDelegationTokenRequest, call: RequestContext
) -> tuple[ErrorCode, str, int]:
    """What came of it, of which token, and when that expires (-1: unknown)."""
    if not may_ask(call):
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "", -1
    service = broker.tokens
    if service is None:
        return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "", -1
    token = await token_to_change(broker, service, request.hmac, call)
    if isinstance(token, ErrorCode):
        return token, "", -1
    lifetime_ms = service.expiry_time_ms
    if request.renew_period_ms > 0:
        lifetime_ms = min(lifetime_ms, request.renew_period_ms)
    expires_ms = min(token.ends_ms, broker.clock.now_ms() + lifetime_ms)
    try:
        await service.admin.move_expiry(token.token_id, expires_ms)
    except MainstemError as refusal:
        return error_of_refusal(refusal), token.token_id, -1
    return ErrorCode.NONE, token.token_id, expires_ms
