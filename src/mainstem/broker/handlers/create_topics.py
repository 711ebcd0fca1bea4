"""CreateTopics. A change is never abandoned half way, so `timeout_ms` does not cut it short: the answer tells
what happened.

The topics of a request are created together, with one write to the metadata, so that a tool that creates a hundred
thousand of them waits for hundreds of writes. Work per topic yields to the event loop in between, and the configs in
the answer, mostly the same for all topics, are encoded once per different set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from mainstem.broker.admin.config_entries import topic_entries
from mainstem.broker.admin.topic_admin import assignment_fault, create_topics, internal_message, is_internal
from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.model import NewTopic, Topic
from mainstem.protocol import codec
from mainstem.protocol.encoded_array import EncodedArray
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from mainstem.protocol.schema import ZERO_UUID
from mainstem.security.acls.acl import Operation, ResourceKind
from mainstem.security.acls.authorizer import SessionVerdicts

NODE_DEFAULT = -1
_CONFIGS_FROM_VERSION = 5
_STRICT_FROM_VERSION = 6

TOPICS_PER_TURN = 200
"""Topics checked or described within one turn of the event loop: about a millisecond."""

REFUSAL_CHARACTERS_MAX = 1000
"""Of a message. A value of 32,767 bytes that it quotes takes more, escaped, than a string of an answer may have."""


async def handle(broker: Broker, request: CreateTopicsRequest, call: RequestContext) -> CreateTopicsResponse:
    pace = broker.turns.pace(TOPICS_PER_TURN)
    times_named: Counter[str] = Counter()
    for topic in request.topics:
        times_named[topic.name] += 1
        await pace.step(_weight(topic))
    results = {
        name: _refused(name, ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
        for name, times in times_named.items()
        if times > 1
    }
    wanted: list[NewTopic] = []
    mutations = broker.mutations(call.session, call.client_id, strict=call.version >= _STRICT_FROM_VERSION)
    for topic in request.topics:
        await pace.step(_weight(topic))
        if not _may_create(broker.verdicts(call.session), topic.name):
            refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            results[topic.name] = _refused(topic.name, refusal, refusal.message)
        elif topic.name not in results:
            asked = _asked(broker, topic)
            if isinstance(asked, NewTopic):
                if request.validate_only or mutations.take(asked.partitions):
                    wanted.append(asked)
                else:
                    over = ErrorCode.THROTTLING_QUOTA_EXCEEDED
                    results[topic.name] = _refused(topic.name, over, over.message)
            else:
                results[topic.name] = _refused(topic.name, *asked)
    if wanted:
        results |= await _create(broker, wanted, call, validate_only=request.validate_only)
    topics = await _encoded(broker, results, call.version)
    return CreateTopicsResponse(throttle_time_ms=mutations.throttle_ms(), topics=topics)


async def _create(
    broker: Broker, wanted: list[NewTopic], call: RequestContext, *, validate_only: bool
) -> dict[str, CreatableTopicResult]:
    made: list[Topic | MainstemError]
    try:
        made = await create_topics(broker, wanted, validate_only=validate_only)
    except MainstemError as refusal:
        made = [refusal] * len(wanted)
    descriptions = _ConfigDescriptions(broker, call.version)
    results = {}
    for number, (asked, topic) in enumerate(zip(wanted, made, strict=True), 1):
        if isinstance(topic, Topic) and not _may_see_configs(broker.verdicts(call.session), topic.name):
            results[asked.name] = _created_unseen(topic, validate_only=validate_only)
        elif isinstance(topic, Topic):
            copies = copies_of(broker, topic)
            results[asked.name] = _created(topic, copies, descriptions.of(topic.configs), validate_only=validate_only)
        else:
            results[asked.name] = _refused(asked.name, error_of_refusal(topic), str(topic))
        if number % TOPICS_PER_TURN == 0:
            await broker.turns.take()
    return results


def _may_create(verdicts: SessionVerdicts, name: str) -> bool:
    return verdicts.allows_on_cluster(Operation.CREATE) or verdicts.allows(Operation.CREATE, ResourceKind.TOPIC, name)


def _may_see_configs(verdicts: SessionVerdicts, name: str) -> bool:
    return verdicts.allows(Operation.DESCRIBE_CONFIGS, ResourceKind.TOPIC, name)


def _weight(topic: CreatableTopic) -> int:
    """Its cost to check, as a number of topics without configs and assignments."""
    return 1 + (len(topic.configs) + len(topic.assignments)) // 8


async def _encoded(broker: Broker, results: Mapping[str, CreatableTopicResult], version: int) -> EncodedArray:
    """The answer's topics, encoded between turns of the event loop."""
    topics, buffers = list(results.values()), []
    for first in range(0, len(topics), TOPICS_PER_TURN):
        part = topics[first : first + TOPICS_PER_TURN]
        buffers += codec.encode_elements(CreateTopicsResponse, version, CreatableTopicResult, part)
        await broker.turns.take()
    return EncodedArray(len(topics), buffers)


def _asked(broker: Broker, wanted: CreatableTopic) -> NewTopic | tuple[ErrorCode, str]:
    """The topic with defaults filled in, or its fault; the nameserver checks the bounds."""
    if is_internal(broker, wanted.name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION, internal_message(wanted.name)
    fault = _config_fault(wanted) or _count_fault(broker, wanted)
    if fault is not None:
        return fault
    partitions, replication_factor = _counts(broker, wanted)
    configs = {config.name: config.value for config in wanted.configs if config.value is not None}
    return NewTopic(wanted.name, partitions, replication_factor, configs)


def _config_fault(wanted: CreatableTopic) -> tuple[ErrorCode, str] | None:
    empty = [config.name for config in wanted.configs if config.value is None]
    if empty:
        return ErrorCode.INVALID_CONFIG, f"topic configs without a value: {', '.join(empty)}"
    return None


def _count_fault(broker: Broker, wanted: CreatableTopic) -> tuple[ErrorCode, str] | None:
    """The fault in the numbers or the assignment; None: there is none."""
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
    """(partitions, replication factor), defaults filled in."""
    if wanted.assignments:
        return len(wanted.assignments), len(wanted.assignments[0].broker_ids)
    partitions, replication_factor = wanted.num_partitions, wanted.replication_factor
    if partitions == NODE_DEFAULT:
        partitions = broker.config.num_partitions
    if replication_factor == NODE_DEFAULT:
        replication_factor = broker.config.default_replication_factor
    return partitions, replication_factor


class _ConfigDescriptions:
    """Encodes the configs of topics for the answer, once for each different set of overrides."""

    def __init__(self, broker: Broker, version: int) -> None:
        self._broker = broker
        self._version = version
        self._encoded: dict[tuple[tuple[str, str], ...], EncodedArray] = {}

    def of(self, configs: Mapping[str, str]) -> EncodedArray:
        if self._version < _CONFIGS_FROM_VERSION:
            return EncodedArray(0, ())
        key = tuple(sorted(configs.items()))
        if key not in self._encoded:
            self._encoded[key] = self._encode(configs)
        return self._encoded[key]

    def _encode(self, configs: Mapping[str, str]) -> EncodedArray:
        described = [
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=False,
            )
            for entry in topic_entries(self._broker, configs)
        ]
        buffers = codec.encode_elements(CreateTopicsResponse, self._version, CreatableTopicConfigs, described)
        return EncodedArray(len(described), buffers)


def copies_of(broker: Broker, topic: Topic) -> int:
    """How many nodes keep a topic: as many as its write group has replicas, whatever the client asked for."""
    replicas = broker.leadership.replicas(broker.leadership.group_of(topic.queue_id(0))).replicas
    return len(replicas) or topic.replication_factor


def _created(topic: Topic, copies: int, configs: EncodedArray, *, validate_only: bool) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        topic_id=ZERO_UUID if validate_only else topic.topic_id,
        error_code=ErrorCode.NONE,
        num_partitions=topic.partitions,
        replication_factor=copies,
        configs=configs,
    )


def _created_unseen(topic: Topic, *, validate_only: bool) -> CreatableTopicResult:
    """The answer for a client that may create a topic, but not see its configs."""
    return CreatableTopicResult(
        name=topic.name,
        topic_id=ZERO_UUID if validate_only else topic.topic_id,
        error_code=ErrorCode.NONE,
        topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    )


def _refused(name: str, error: ErrorCode, message: str) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error, error_message=message[:REFUSAL_CHARACTERS_MAX])
