"""CreatePartitions: topics grow, never shrink. As in CreateTopics, a change is finished whatever `timeout_ms`."""

from __future__ import annotations

from collections import Counter

from mainstem.broker.admin.topic_admin import assignment_fault, create_partitions, internal_message, is_internal
from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.request_context import RequestContext
from mainstem.broker.throttling import Mutations
from mainstem.errors import MainstemError
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

_STRICT_FROM_VERSION = 3

TOPICS_PER_TURN = 500
"""Topics checked within one turn of the event loop: about a millisecond."""


async def handle(broker: Broker, request: CreatePartitionsRequest, call: RequestContext) -> CreatePartitionsResponse:
    pace = broker.turns.pace(TOPICS_PER_TURN)
    times_named: Counter[str] = Counter()
    for topic in request.topics:
        await pace.step()
        times_named[topic.name] += 1
    results = [
        _result(name, ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
        for name, times in times_named.items()
        if times > 1
    ]
    mutations = broker.mutations(call.session, call.client_id, strict=call.version >= _STRICT_FROM_VERSION)
    for wanted in request.topics:
        await pace.step(1 + len(wanted.assignments or ()))
        if times_named[wanted.name] == 1:
            results.append(await _grow(broker, wanted, mutations, validate_only=request.validate_only))
    return CreatePartitionsResponse(throttle_time_ms=mutations.throttle_ms(), results=tuple(results))


async def _grow(
    broker: Broker, wanted: CreatePartitionsTopic, mutations: Mutations, *, validate_only: bool
) -> CreatePartitionsTopicResult:
    topic = broker.metadata.topic(wanted.name)
    if topic is not None and is_internal(broker, wanted.name):
        return _result(wanted.name, ErrorCode.INVALID_TOPIC_EXCEPTION, internal_message(wanted.name))
    if topic is not None and wanted.assignments is not None and wanted.count > topic.partitions:
        fault = assignment_fault(broker, [item.broker_ids for item in wanted.assignments], topic.replication_factor)
        added = wanted.count - topic.partitions
        if fault is None and len(wanted.assignments) != added:
            fault = f"{added} partitions would be added, but {len(wanted.assignments)} are assigned"
        if fault is not None:
            return _result(wanted.name, ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)
    added = 0 if topic is None or validate_only else wanted.count - topic.partitions
    if added > 0 and not mutations.take(added):
        return _result(wanted.name, ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.THROTTLING_QUOTA_EXCEEDED.message)
    try:
        await create_partitions(broker, wanted.name, wanted.count, validate_only=validate_only)
    except MainstemError as refusal:
        return _result(wanted.name, error_of_refusal(refusal), str(refusal))
    return _result(wanted.name, ErrorCode.NONE, None)


def _result(name: str, error: ErrorCode, message: str | None) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=error, error_message=message)
