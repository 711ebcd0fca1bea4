"""ExpireDelegationToken: has a token expire sooner or later, or at once. Its owner and its renewers may."""

from __future__ import annotations

from mainstem.broker.admin.token_changes import change_token
from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.messages.delegation_tokens import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from mainstem.security.tokens.delegation_token import DelegationToken
from mainstem.security.tokens.token_admin import TokenService


async def handle(
    broker: Broker, request: ExpireDelegationTokenRequest, call: RequestContext
) -> ExpireDelegationTokenResponse:
    async def expired(service: TokenService, token: DelegationToken) -> int:
        if request.expiry_time_period_ms < 0:
            await service.admin.remove_tokens([token.token_id])
            return request.expiry_time_period_ms
        expires_ms = min(token.ends_ms, broker.clock.now_ms() + request.expiry_time_period_ms)
        await service.admin.move_expiry(token.token_id, expires_ms)
        return expires_ms

    code, expires_ms = await change_token(broker, call, "ExpireDelegationToken", request.hmac, expired)
    return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=expires_ms)
