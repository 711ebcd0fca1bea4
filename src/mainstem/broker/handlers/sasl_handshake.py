"""SaslHandshake: the client names its mechanism, and hears which ones there are."""

from __future__ import annotations

from mainstem.broker.authentications import begun
from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.sasl import SaslHandshakeRequest, SaslHandshakeResponse
from mainstem.security.sasl.errors import IllegalState, MechanismNotEnabled

RAW_TOKENS_VERSION = 0
"""After a handshake of this version tokens come as they are; later, in SaslAuthenticate requests."""


async def handle(broker: Broker, request: SaslHandshakeRequest, call: RequestContext) -> SaslHandshakeResponse:
    authentication = begun(broker, call.session)
    if authentication is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=())
    error = ErrorCode.NONE
    try:
        raw = call.version == RAW_TOKENS_VERSION
        authentication.handshake(request.mechanism, broker.clock.monotonic(), raw=raw)
    except MechanismNotEnabled:
        error = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    except IllegalState:
        error = ErrorCode.ILLEGAL_SASL_STATE
    return SaslHandshakeResponse(error_code=error, mechanisms=tuple(authentication.offered))
