"""GetTelemetrySubscriptions (KIP-714): which metrics the client is to push, and how often."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.broker.telemetry.telemetry import ACCEPTED, PushRefused, TelemetryClient
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.client_telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)


async def handle(
    broker: Broker, request: GetTelemetrySubscriptionsRequest, call: RequestContext
) -> GetTelemetrySubscriptionsResponse:
    client = TelemetryClient(call.client_id or "", call.session)
    try:
        answer = broker.telemetry.subscription(client, request.client_instance_id)
    except PushRefused as refused:
        return GetTelemetrySubscriptionsResponse(error_code=refused.code)
    return GetTelemetrySubscriptionsResponse(
        error_code=ErrorCode.NONE,
        client_instance_id=answer.instance_id,
        subscription_id=answer.subscription_id,
        accepted_compression_types=tuple(map(int, ACCEPTED)),
        push_interval_ms=answer.asked.interval_ms,
        telemetry_max_bytes=broker.telemetry.bytes_max,
        delta_temporality=False,  # numbers that add up come whole, as they stand in the metrics
        requested_metrics=answer.asked.metrics,
    )
