"""Produce: the append happens while the request is dispatched, so batches keep the order they arrived in.

`start` scans the body in place, decides about every partition, and hands the good batches to the store in one
call, which copies them. What is left to wait for is the store's future; the response is made when it is done,
without a task. With acks=0 there is no response, and as in Kafka a failure closes the connection, which is
the only way its producer can learn of it.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from mainstem.broker.broker import Broker, Call
from mainstem.broker.errors import ERROR_NAMES, ERROR_OF_OUTCOME, UnanswerableRequest
from mainstem.broker.partitions import find_topic
from mainstem.broker.started import Started
from mainstem.kernel import TOPIC_IDS_FROM, ScannedBatch, ScannedTopic, Verdict, scan_produce
from mainstem.kernel.errors import MalformedProduce
from mainstem.model import AppendResult, BatchAppend, TimestampType, Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.errors import ProtocolError
from mainstem.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from mainstem.protocol.records import NewBatch, read_batch_header, read_records

ZSTD = 4
ZSTD_FROM_VERSION = 7

_LOG_APPEND_TIME_BIT = 0x08
_COMPRESSION_MASK = 0x07
_ACKS = (-1, 0, 1)
_ACKS_ALL = -1

_ERROR_OF_VERDICT: dict[int, tuple[ErrorCode, str]] = {
    Verdict.NO_BATCH: (ErrorCode.INVALID_RECORD, "the partition has no record batch"),
    Verdict.OLD_FORMAT: (ErrorCode.INVALID_RECORD, "record formats 0 and 1 are no longer accepted"),
    Verdict.MANY_BATCHES: (ErrorCode.INVALID_RECORD, "the partition has more than one record batch"),
    Verdict.BAD_LENGTH: (ErrorCode.CORRUPT_MESSAGE, "the batch does not have the length it says"),
    Verdict.BAD_CHECKSUM: (ErrorCode.CORRUPT_MESSAGE, "the batch does not match its checksum"),
    Verdict.BAD_COUNT: (ErrorCode.INVALID_RECORD, "the record count does not fit the last offset delta"),
    Verdict.BAD_FIELD: (ErrorCode.INVALID_RECORD, "base offset or producer fields make no sense"),
    Verdict.BAD_COMPRESSION: (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "unknown compression"),
    Verdict.CONTROL: (ErrorCode.INVALID_RECORD, "clients may not write control batches"),
    Verdict.TRANSACTIONAL: (ErrorCode.INVALID_TXN_STATE, "transactions are not supported"),
}

Refusal = tuple[ErrorCode, str | None]


class _Plan(NamedTuple):
    """What is to become of one request's partitions, in their order: a refusal, or None where appended."""

    topics: list[tuple[str | UUID, int]]
    batches: list[ScannedBatch]
    refusals: list[Refusal | None]


def start(broker: Broker, frame: memoryview, position: int, call: Call) -> Started[ProduceResponse]:
    """Begin a Produce request whose body stands at `position`. Raises MalformedProduce."""
    scan = scan_produce(frame, position, call.version)
    by_id = call.version >= TOPIC_IDS_FROM
    refused_all = _refusal_of_request(scan.acks, scan.transactional)
    plan = _Plan([], scan.batches, [])
    appends: list[BatchAppend] = []
    first = 0
    for scanned_topic in scan.topics:
        key = _key(scanned_topic, by_id)
        batches = scan.batches[first : first + scanned_topic.batch_count]
        first += scanned_topic.batch_count
        plan.topics.append((key, len(batches)))
        topic = find_topic(broker, key)
        refused = refused_all or _refusal_of_topic(topic, scan.acks)
        for batch in batches:
            if refused is None:
                assert isinstance(topic, Topic)
                refusal = _append(broker, topic, batch, frame, call.version, appends)
                plan.refusals.append(refusal)
            else:
                plan.refusals.append(refused)
    if not appends:
        return Started(None, lambda _: _finish(plan, [], scan.acks))
    future = broker.store.append(appends, scan.acks)
    return Started(future, lambda results: _finish(plan, results, scan.acks))


def _key(topic: ScannedTopic, by_id: bool) -> str | UUID:
    if by_id:
        return UUID(bytes=topic.key)
    try:
        return topic.key.decode()
    except UnicodeDecodeError:
        raise MalformedProduce("a topic name is not UTF-8") from None


def _refusal_of_request(acks: int, transactional: bool) -> Refusal | None:
    if acks not in _ACKS:
        return ErrorCode.INVALID_REQUIRED_ACKS, None
    if transactional:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported"
    return None


def _refusal_of_topic(topic: Topic | ErrorCode, acks: int) -> Refusal | None:
    if isinstance(topic, ErrorCode):
        return topic, None
    if topic.internal:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, "the topic is internal"
    if acks == _ACKS_ALL and topic.settings.min_insync_replicas > topic.replication_factor:
        return ErrorCode.NOT_ENOUGH_REPLICAS, None
    return None


def _append(
    broker: Broker,
    topic: Topic,
    batch: ScannedBatch,
    frame: memoryview,
    version: int,
    appends: list[BatchAppend],
) -> Refusal | None:
    """Put a batch on the list to append, or say why not."""
    if not 0 <= batch.partition < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
    if not broker.serves(topic, batch.partition):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, None
    settings = topic.settings
    if batch.stop - batch.start > settings.max_message_bytes:
        return ErrorCode.MESSAGE_TOO_LARGE, None
    if batch.verdict != Verdict.OK:
        return _ERROR_OF_VERDICT[batch.verdict]
    if version < ZSTD_FROM_VERSION and batch.attributes & _COMPRESSION_MASK == ZSTD:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce {ZSTD_FROM_VERSION} or newer"
    log_append_time = settings.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    if batch.attributes & _LOG_APPEND_TIME_BIT and not log_append_time:
        return ErrorCode.INVALID_TIMESTAMP, "the topic takes the producer's timestamps"
    data = frame[batch.start : batch.stop]
    if "compact" in settings.cleanup_policy:
        refusal = _refusal_of_keys(data)
        if refusal is not None:
            return refusal
    appends.append(
        BatchAppend(
            topic.queue_id(batch.partition), data, *batch[4:12], log_append_time=log_append_time
        )
    )
    return None


def _refusal_of_keys(data: memoryview) -> Refusal | None:
    """Compaction keeps the latest record of each key, so every record needs one. Decodes the batch."""
    try:
        keyless = any(record.key is None for record in read_records(NewBatch(data, read_batch_header(data))))
    except ProtocolError as error:
        return ErrorCode.INVALID_RECORD, str(error)
    return (ErrorCode.INVALID_RECORD, "a compacted topic takes no record without a key") if keyless else None


def _finish(plan: _Plan, results: list[AppendResult], acks: int) -> ProduceResponse | None:
    appended = iter(results)
    answers = [
        _answer(batch.partition, next(appended)) if refusal is None else _refused(batch.partition, refusal)
        for batch, refusal in zip(plan.batches, plan.refusals, strict=True)
    ]
    if acks == 0:
        failed = next((answer for answer in answers if answer.error_code), None)
        if failed is not None:
            error = ERROR_NAMES[failed.error_code]
            raise UnanswerableRequest(f"a batch sent with acks=0 was refused: {error}")
        return None
    topics = []
    first = 0
    for key, count in plan.topics:
        partition_responses = tuple(answers[first : first + count])
        first += count
        if isinstance(key, UUID):
            topics.append(TopicProduceResponse(topic_id=key, partition_responses=partition_responses))
        else:
            topics.append(TopicProduceResponse(name=key, partition_responses=partition_responses))
    return ProduceResponse(responses=tuple(topics))


def _answer(partition: int, result: AppendResult) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=partition,
        error_code=ERROR_OF_OUTCOME[result.outcome],
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
        error_message=result.message,
    )


def _refused(partition: int, refusal: Refusal) -> PartitionProduceResponse:
    error, message = refusal
    return PartitionProduceResponse(
        index=partition, error_code=error, base_offset=-1, error_message=message or error.message
    )


def errors_in(response: ProduceResponse) -> list[int]:
    """The error codes of its partitions, for statistics."""
    return [
        partition.error_code
        for topic in response.responses
        for partition in topic.partition_responses
        if partition.error_code
    ]
