"""PushTelemetry (KIP-714): what a client has measured of itself goes into this node's metrics."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.broker.telemetry.telemetry import PushRefused, TelemetryClient
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.client_telemetry import PushTelemetryRequest, PushTelemetryResponse


async def handle(broker: Broker, request: PushTelemetryRequest, call: RequestContext) -> PushTelemetryResponse:
    try:
        await broker.telemetry.push(
            TelemetryClient(call.client_id or "", call.session),
            request.client_instance_id,
            request.subscription_id,
            request.compression_type,
            request.metrics,
            last=request.terminating,
        )
    except PushRefused as refused:
        return PushTelemetryResponse(error_code=refused.code)
    return PushTelemetryResponse(error_code=ErrorCode.NONE)
