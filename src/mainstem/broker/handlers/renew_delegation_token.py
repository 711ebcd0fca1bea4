"""RenewDelegationToken: moves the time at which a token expires, up to its end. Its owner and its renewers may."""

from __future__ import annotations

from mainstem.broker.admin.token_changes import change_token
from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.messages.delegation_tokens import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from mainstem.security.tokens.delegation_token import DelegationToken
from mainstem.security.tokens.token_admin import TokenService


async def handle(
    broker: Broker, request: RenewDelegationTokenRequest, call: RequestContext
) -> RenewDelegationTokenResponse:
    async def renewed(service: TokenService, token: DelegationToken) -> int:
        lifetime_ms = service.expiry_time_ms
        if request.renew_period_ms > 0:
            lifetime_ms = min(lifetime_ms, request.renew_period_ms)
        expires_ms = min(token.ends_ms, broker.clock.now_ms() + lifetime_ms)
        await service.admin.move_expiry(token.token_id, expires_ms)
        return expires_ms

    code, expires_ms = await change_token(broker, call, "RenewDelegationToken", request.hmac, renewed)
    return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=expires_ms)
