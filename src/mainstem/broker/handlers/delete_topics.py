"""DeleteTopics, by name or (version 6 on) by id. Committed offsets of groups in a topic go with it. The topics of
a request are deleted together, with one write to the metadata."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from mainstem.broker.broker import Broker, Call
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.reserved_topics import internal_message, is_internal
from mainstem.broker.topics import delete_topics
from mainstem.errors import MainstemError
from mainstem.model import Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from mainstem.protocol.schema import ZERO_UUID

_STATES_FROM_VERSION = 6


async def handle(broker: Broker, request: DeleteTopicsRequest, call: Call) -> DeleteTopicsResponse:
    if call.version >= _STATES_FROM_VERSION:
        asked = request.topics
    else:
        asked = tuple(DeleteTopicState(name=name) for name in request.topic_names)
    found = [(state, _find(broker, state)) for state in dict.fromkeys(asked)]
    times_asked = Counter(asked)
    times_found = Counter(topic.number for _, topic in found if isinstance(topic, Topic))
    results: dict[DeleteTopicState, DeletableTopicResult] = {}
    unwanted: dict[DeleteTopicState, str] = {}
    for state, topic in found:
        twice = times_asked[state] > 1
        if isinstance(topic, Topic):
            twice = twice or times_found[topic.number] > 1
        if twice:
            results[state] = _refused(state, ErrorCode.INVALID_REQUEST, "the request names this topic twice")
        elif not isinstance(topic, Topic):
            results[state] = _refused(state, *topic)
        elif is_internal(broker, topic.name):
            results[state] = _refused(state, ErrorCode.INVALID_TOPIC_EXCEPTION, internal_message(topic.name))
        else:
            unwanted[state] = topic.name
    if unwanted:
        results |= await _delete(broker, unwanted)
    return DeleteTopicsResponse(responses=tuple(results[state] for state, _ in found))


def _find(broker: Broker, state: DeleteTopicState) -> Topic | tuple[ErrorCode, str]:
    by_id = state.topic_id != ZERO_UUID
    if by_id and state.name is not None:
        return ErrorCode.INVALID_REQUEST, "a topic is named by its name or by its id, not both"
    if by_id:
        return broker.metadata.topic_by_id(state.topic_id) or _unknown_id(state.topic_id)
    if state.name is None:
        return ErrorCode.INVALID_REQUEST, "neither a topic name nor a topic id was given"
    return broker.metadata.topic(state.name) or (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"there is no topic {state.name[:260]!r}",
    )


def _unknown_id(topic_id: UUID) -> tuple[ErrorCode, str]:
    return ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}"


async def _delete(
    broker: Broker, names: Mapping[DeleteTopicState, str]
) -> dict[DeleteTopicState, DeletableTopicResult]:
    gone: list[Topic | MainstemError]
    try:
        gone = await delete_topics(broker, list(names.values()))
    except MainstemError as refusal:
        gone = [refusal] * len(names)
    return {
        state: _refused(state, error_of_refusal(topic), str(topic))
        if isinstance(topic, MainstemError)
        else DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=ErrorCode.NONE)
        for state, topic in zip(names, gone, strict=True)
    }


def _refused(state: DeleteTopicState, error: ErrorCode, message: str) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=state.name, topic_id=state.topic_id, error_code=error, error_message=message
    )
