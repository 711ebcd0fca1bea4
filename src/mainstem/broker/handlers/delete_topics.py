"""DeleteTopics, by name or (version 6 on) by id. The offsets that consumer groups committed for a topic go with it.
The topics of a request are deleted together, with one write to the metadata."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from mainstem.broker.admin.topic_admin import delete_topics, internal_message, is_internal
from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.model import Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from mainstem.protocol.schema import ZERO_UUID
from mainstem.security.acls.acl import Operation, ResourceKind
from mainstem.security.acls.authorizer import SessionVerdicts
from mainstem.turns import Pace

_STATES_FROM_VERSION = 6
_STRICT_FROM_VERSION = 5

TOPICS_PER_TURN = 500
"""Topics checked within one turn of the event loop: about a millisecond."""

_FORBIDDEN = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED.message

_Named = tuple[str | None, UUID]
"""The name or the id by which a request names a topic; the other is empty."""


async def handle(broker: Broker, request: DeleteTopicsRequest, call: RequestContext) -> DeleteTopicsResponse:
    if call.version >= _STATES_FROM_VERSION:
        asked = request.topics
    else:
        asked = tuple(DeleteTopicState(name=name) for name in request.topic_names)
    pace = broker.turns.pace(TOPICS_PER_TURN)
    times_asked: Counter[_Named] = Counter()
    times_found: Counter[int] = Counter()
    found: dict[_Named, Topic | tuple[ErrorCode, str]] = {}
    for state in asked:
        await pace.step()
        named = state.name, state.topic_id
        times_asked[named] += 1
        if named in found:
            continue
        topic = _find(broker, state, broker.verdicts(call.session))
        found[named] = topic
        if isinstance(topic, Topic):
            times_found[topic.number] += 1
    results: dict[_Named, DeletableTopicResult] = {}
    unwanted: dict[_Named, str] = {}
    mutations = broker.mutations(call.session, call.client_id, strict=call.version >= _STRICT_FROM_VERSION)
    for named, topic in found.items():
        await pace.step()
        twice = times_asked[named] > 1
        if isinstance(topic, Topic):
            twice = twice or times_found[topic.number] > 1
        if twice:
            results[named] = _refused(named, ErrorCode.INVALID_REQUEST, "the request names this topic twice")
        elif not isinstance(topic, Topic):
            results[named] = _refused(named, *topic)
        elif is_internal(broker, topic.name):
            results[named] = _refused(named, ErrorCode.INVALID_TOPIC_EXCEPTION, internal_message(topic.name))
        elif not mutations.take(topic.partitions):
            over = ErrorCode.THROTTLING_QUOTA_EXCEEDED
            results[named] = _refused(named, over, over.message)
        else:
            unwanted[named] = topic.name
    if unwanted:
        results |= await _delete(broker, unwanted, pace)
    answers = tuple([results[named] for named in found])
    return DeleteTopicsResponse(throttle_time_ms=mutations.throttle_ms(), responses=answers)


def _find(broker: Broker, state: DeleteTopicState, verdicts: SessionVerdicts) -> Topic | tuple[ErrorCode, str]:
    by_id = state.topic_id != ZERO_UUID
    if by_id and state.name is not None:
        return ErrorCode.INVALID_REQUEST, "a topic is named by its name or by its id, not both"
    if by_id:
        topic = broker.metadata.topic_by_id(state.topic_id)
        if topic is None:
            return _unknown_id(state.topic_id)
        return topic if _may_delete(verdicts, topic.name) else _FORBIDDEN
    if state.name is None:
        return ErrorCode.INVALID_REQUEST, "neither a topic name nor a topic id was given"
    topic = broker.metadata.topic(state.name)
    if topic is None and _may_describe(verdicts, state.name):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {state.name[:260]!r}"
    return topic if topic is not None and _may_delete(verdicts, state.name) else _FORBIDDEN


def _may_delete(verdicts: SessionVerdicts, name: str) -> bool:
    return _may_on_cluster(verdicts) or verdicts.allows(Operation.DELETE, ResourceKind.TOPIC, name)


def _may_describe(verdicts: SessionVerdicts, name: str) -> bool:
    return _may_on_cluster(verdicts) or verdicts.allows(Operation.DESCRIBE, ResourceKind.TOPIC, name)


def _may_on_cluster(verdicts: SessionVerdicts) -> bool:
    """As in Kafka, DELETE on the cluster, which rules for all its operations include, is enough for every topic."""
    return verdicts.allows_on_cluster(Operation.DELETE)


def _unknown_id(topic_id: UUID) -> tuple[ErrorCode, str]:
    return ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}"


async def _delete(broker: Broker, names: Mapping[_Named, str], pace: Pace) -> dict[_Named, DeletableTopicResult]:
    gone: list[Topic | MainstemError]
    try:
        gone = await delete_topics(broker, list(names.values()))
    except MainstemError as refusal:
        gone = [refusal] * len(names)
    results = {}
    for named, topic in zip(names, gone, strict=True):
        await pace.step()
        if isinstance(topic, MainstemError):
            results[named] = _refused(named, error_of_refusal(topic), str(topic))
        else:
            results[named] = DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=ErrorCode.NONE)
    return results


def _refused(named: _Named, error: ErrorCode, message: str) -> DeletableTopicResult:
    return DeletableTopicResult(name=named[0], topic_id=named[1], error_code=error, error_message=message)
