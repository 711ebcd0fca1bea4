"""Telemetry of clients (KIP-714).

GetTelemetrySubscriptions: a client asks which of its metrics it should push, how often, and in which form.
PushTelemetry: it pushes them, as bytes of OpenTelemetry's `MetricsData`.
"""

from __future__ import annotations

from uuid import UUID

from mainstem.protocol.schema import array, binary, boolean, int8, int16, int32, message, string, uuid, wire


@message(api_key=71, versions="0-0", flexible="0+")
class GetTelemetrySubscriptionsRequest:
    client_instance_id: UUID = wire(uuid)


@message(api_key=71, versions="0-0", flexible="0+")
class GetTelemetrySubscriptionsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    client_instance_id: UUID = wire(uuid, default=UUID(int=0))
    subscription_id: int = wire(int32, default=0)
    accepted_compression_types: tuple[int, ...] = wire(array(int8), default=())
    push_interval_ms: int = wire(int32, default=0)
    telemetry_max_bytes: int = wire(int32, default=0)
    delta_temporality: bool = wire(boolean, default=False)
    requested_metrics: tuple[str, ...] = wire(array(string), default=())


@message(api_key=72, versions="0-0", flexible="0+")
class PushTelemetryRequest:
    client_instance_id: UUID = wire(uuid)
    subscription_id: int = wire(int32)
    terminating: bool = wire(boolean)
    compression_type: int = wire(int8)
    metrics: bytes = wire(binary)


@message(api_key=72, versions="0-0", flexible="0+")
class PushTelemetryResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
