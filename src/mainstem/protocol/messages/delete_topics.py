"""DeleteTopics: by name up to version 5, by name or id from 6."""

from __future__ import annotations

from uuid import UUID

from mainstem.protocol.schema import ZERO_UUID, array, int16, int32, message, nested, string, uuid, wire


@nested
class DeleteTopicState:
    name: str | None = wire(string, "6+", nullable="6+", default=None)
    topic_id: UUID = wire(uuid, "6+", default=ZERO_UUID)


@message(api_key=20, versions="1-6", flexible="4+", elements_max=250_000)
class DeleteTopicsRequest:
    topics: tuple[DeleteTopicState, ...] = wire(array(DeleteTopicState), "6+", default=())
    topic_names: tuple[str, ...] = wire(array(string), "0-5", default=(), ignorable=True)
    timeout_ms: int = wire(int32)


@nested
class DeletableTopicResult:
    name: str | None = wire(string, nullable="6+")
    topic_id: UUID = wire(uuid, "6+", default=ZERO_UUID, ignorable=True)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, "5+", nullable="5+", default=None, ignorable=True)


@message(api_key=20, versions="1-6", flexible="4+")
class DeleteTopicsResponse:
    throttle_time_ms: int = wire(int32, "1+", default=0, ignorable=True)
    responses: tuple[DeletableTopicResult, ...] = wire(array(DeletableTopicResult))
