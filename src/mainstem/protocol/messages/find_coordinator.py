"""FindCoordinator: who coordinates a group or transaction; several keys at once from version 4."""

from __future__ import annotations

from mainstem.protocol.schema import array, int8, int16, int32, message, nested, string, wire

KEY_TYPE_GROUP = 0
KEY_TYPE_TRANSACTION = 1


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest:
    key: str = wire(string, "0-3", default="")
    key_type: int = wire(int8, "1+", default=KEY_TYPE_GROUP)
    coordinator_keys: tuple[str, ...] = wire(array(string), "4+", default=())


@nested
class Coordinator:
    key: str = wire(string, "4+")
    node_id: int = wire(int32, "4+")
    host: str = wire(string, "4+")
    port: int = wire(int32, "4+")
    error_code: int = wire(int16, "4+")
    error_message: str | None = wire(string, "4+", nullable="4+", default=None, ignorable=True)


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    throttle_time_ms: int = wire(int32, "1+", default=0, ignorable=True)
    error_code: int = wire(int16, "0-3", default=0)
    error_message: str | None = wire(string, "1-3", nullable="1-3", default=None, ignorable=True)
    node_id: int = wire(int32, "0-3", default=0)
    host: str = wire(string, "0-3", default="")
    port: int = wire(int32, "0-3", default=0)
    coordinators: tuple[Coordinator, ...] = wire(array(Coordinator), "4+", default=())
