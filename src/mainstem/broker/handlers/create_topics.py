"""CreateTopics. A change is never abandoned half way, so `timeout_ms` does not cut it short: the answer tells
what happened."""

from __future__ import annotations

from collections import Counter

from mainstem.broker.broker import Broker, Call
from mainstem.broker.config_entries import topic_entries
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.replica_assignment import assignment_fault
from mainstem.broker.reserved_topics import internal_message, is_internal
from mainstem.broker.topics import create_topic
from mainstem.errors import MainstemError
from mainstem.model import Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from mainstem.protocol.schema import ZERO_UUID

NODE_DEFAULT = -1


async def handle(broker: Broker, request: CreateTopicsRequest, call: Call) -> CreateTopicsResponse:
    times_named = Counter(topic.name for topic in request.topics)
    results = [
        _refused(name, ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
        for name, times in times_named.items()
        if times > 1
    ]
    for wanted in request.topics:
        if times_named[wanted.name] == 1:
            results.append(await _create(broker, wanted, validate_only=request.validate_only))
    return CreateTopicsResponse(topics=tuple(results))


async def _create(broker: Broker, wanted: CreatableTopic, *, validate_only: bool) -> CreatableTopicResult:
    if is_internal(broker, wanted.name):
        return _refused(wanted.name, ErrorCode.INVALID_TOPIC_EXCEPTION, internal_message(wanted.name))
    fault = _config_fault(wanted) or _count_fault(broker, wanted)
    if fault is not None:
        return _refused(wanted.name, *fault)
    partitions, replication_factor = _counts(broker, wanted)
    configs = {config.name: config.value for config in wanted.configs if config.value is not None}
    try:
        topic = await create_topic(
            broker, wanted.name, partitions, replication_factor, configs, validate_only=validate_only
        )
    except MainstemError as refusal:
        return _refused(wanted.name, error_of_refusal(refusal), str(refusal))
    return _created(broker, topic, validate_only=validate_only)


def _config_fault(wanted: CreatableTopic) -> tuple[ErrorCode, str] | None:
    empty = [config.name for config in wanted.configs if config.value is None]
    if empty:
        return ErrorCode.INVALID_CONFIG, f"topic configs without a value: {', '.join(empty)}"
    return None


def _count_fault(broker: Broker, wanted: CreatableTopic) -> tuple[ErrorCode, str] | None:
    """What is wrong with the numbers or the assignment; bounds are the nameserver's business."""
    if not wanted.assignments:
        return None
    if wanted.num_partitions != NODE_DEFAULT or wanted.replication_factor != NODE_DEFAULT:
        return (
            ErrorCode.INVALID_REQUEST,
            "with a manual assignment, the number of partitions and the replication factor are left at -1",
        )
    replicas = {item.partition_index: item.broker_ids for item in wanted.assignments}
    if sorted(replicas) != list(range(len(wanted.assignments))):
        return (
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"the assigned partitions must be 0 to {len(wanted.assignments) - 1}, each once",
        )
    fault = assignment_fault(broker, list(replicas.values()))
    return None if fault is None else (ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)


def _counts(broker: Broker, wanted: CreatableTopic) -> tuple[int, int]:
    """(partitions, replication factor), defaults put in."""
    if wanted.assignments:
        return len(wanted.assignments), len(wanted.assignments[0].broker_ids)
    partitions, replication_factor = wanted.num_partitions, wanted.replication_factor
    if partitions == NODE_DEFAULT:
        partitions = broker.config.num_partitions
    if replication_factor == NODE_DEFAULT:
        replication_factor = broker.config.default_replication_factor
    return partitions, replication_factor


def _created(broker: Broker, topic: Topic, *, validate_only: bool) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        topic_id=ZERO_UUID if validate_only else topic.topic_id,
        error_code=ErrorCode.NONE,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=tuple(
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=False,
            )
            for entry in topic_entries(topic.configs, broker.facts.topic_defaults)
        ),
    )


def _refused(name: str, error: ErrorCode, message: str) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error, error_message=message)
