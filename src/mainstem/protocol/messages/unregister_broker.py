"""UnregisterBroker: a node that is gone for good is no part of the cluster any more (KIP-746)."""

from __future__ import annotations

from mainstem.protocol.schema import int16, int32, message, string, wire


@message(api_key=64, versions="0", flexible="0+")
class UnregisterBrokerRequest:
    broker_id: int = wire(int32)


@message(api_key=64, versions="0", flexible="0+")
class UnregisterBrokerResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
