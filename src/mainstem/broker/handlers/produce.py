"""Produce: the append happens while the request is dispatched, so batches keep the order they arrived in.

`start` has the kernel scan the body in place and hands what it accepted to the store in one call, which copies it.
What is left to wait for is the store's future; the kernel encodes the response when it is done, without a task. With
acks=0 there is no response, and as in Kafka a failure closes the connection, which is the only way its producer can
learn of it.

Nothing here runs per batch, but for topics that are compacted, whose records are walked to look for keys (beside the
event loop where that takes long: such a request has a task, and its connection waits for it); while fewer replicas
are in sync than the topics demand; and in answers that name other leaders.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from mainstem.broker.broker import Broker, Call
from mainstem.broker.errors import ERROR_NAMES, ERROR_OF_OUTCOME, UnanswerableRequest
from mainstem.broker.redirects import redirected
from mainstem.broker.started import EncodedFrame, Later
from mainstem.kernel import TOPIC_IDS_FROM, ProduceScan, Verdict, scan_produce
from mainstem.model import AppendResult, Buffer, Outcome, Topic
from mainstem.prompt_future import PromptFuture
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.produce import ProduceResponse

ACKS_ALL = -1
REDIRECTED_FROM = 10
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER

_REFUSALS: dict[int, tuple[ErrorCode, str | None]] = {
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
    Verdict.UNKNOWN_TOPIC: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
    Verdict.UNKNOWN_TOPIC_ID: (ErrorCode.UNKNOWN_TOPIC_ID, None),
    Verdict.UNKNOWN_PARTITION: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
    Verdict.INTERNAL_TOPIC: (ErrorCode.INVALID_TOPIC_EXCEPTION, "the topic is internal"),
    Verdict.NOT_ENOUGH_REPLICAS: (ErrorCode.NOT_ENOUGH_REPLICAS, None),
    Verdict.LARGER_THAN_TOPIC_ALLOWS: (ErrorCode.MESSAGE_TOO_LARGE, None),
    Verdict.ZSTD_TOO_OLD: (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce 7 or newer"),
    Verdict.INVALID_TIMESTAMP: (ErrorCode.INVALID_TIMESTAMP, "the topic takes the producer's timestamps"),
    Verdict.TIMESTAMP_OUT_OF_RANGE: (
        ErrorCode.INVALID_TIMESTAMP,
        "a record's timestamp lies further from the broker's clock than message.timestamp.before.max.ms or "
        "message.timestamp.after.max.ms of the topic allow",
    ),
    Verdict.KEYLESS: (ErrorCode.INVALID_RECORD, "a compacted topic takes no record without a key"),
    Verdict.UNREADABLE: (ErrorCode.INVALID_RECORD, "the batch's records cannot be read, and the topic is compacted"),
    Verdict.INVALID_ACKS: (ErrorCode.INVALID_REQUIRED_ACKS, None),
    Verdict.TRANSACTIONAL_ID: (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "transactions are not supported",
    ),
}  # fmt: skip


_MESSAGES = {Outcome.SKIPPED_SEQUENCE: "sequence numbers before this batch's have not arrived; send again"}
"""Of outcomes whose error says something else by itself."""

_OUTCOMES = {
    Verdict[outcome.name]: (error, _MESSAGES.get(outcome)) for outcome, error in ERROR_OF_OUTCOME.items()
}


def _error_of(number: int) -> tuple[int, bytes | None]:
    if number == Verdict.OK:
        return ErrorCode.NONE, None
    error, message = (_REFUSALS | _OUTCOMES).get(number, (ErrorCode.UNKNOWN_SERVER_ERROR, None))
    return error, (message or error.message).encode()


ERRORS = tuple(_error_of(number) for number in range(max(Verdict) + 1))
"""Kafka's error code and message of each verdict, by its number."""


class StartedProduce:
    """`Started`: the batches are appended."""

    __slots__ = ("_broker", "_correlation_id", "_scan", "future", "last")

    def __init__(
        self,
        broker: Broker,
        scan: ProduceScan,
        future: PromptFuture[list[AppendResult]] | None,
        correlation_id: int,
    ) -> None:
        self._broker = broker
        self._scan = scan
        self.future = future
        self._correlation_id = correlation_id
        self.last = ends_pipeline(future, scan)

    def finish(self, results: list[AppendResult] | ProduceScan) -> EncodedFrame | None:
        scan = self._scan
        errors = settled_errors(scan, results)
        if scan.acks == 0:
            return None
        response: list[Buffer] = [scan.response(self._correlation_id, ERRORS)]
        return EncodedFrame(redirected_where_needed(self._broker, scan, response, errors), errors)


def start(
    broker: Broker, frame: memoryview, position: int, call: Call
) -> StartedProduce | Later[EncodedFrame | None]:
    """Begin a Produce request whose body stands at `position`. Raises MalformedProduce."""
    scan = _scan(broker, frame, position, call)
    if not keys_checked(broker, scan, inflate=True):
        scan.release()
        return partial(_start_later, broker, bytes(frame[position:]), call)
    return StartedProduce(broker, scan, append(broker, scan), call.correlation_id)


async def _start_later(broker: Broker, body: bytes, call: Call) -> EncodedFrame | None:
    """A request for a compacted topic whose records take long to look into. What the connection sends meanwhile waits,
    so that batches keep their order."""
    checked: dict[int, Verdict] = {}
    while True:  # once, or again where another topic has come to be compacted meanwhile
        scan = _scan(broker, memoryview(body), 0, call)
        compacted = scan.compacted()
        unchecked = [(number, data) for number, data in compacted if number not in checked]
        if not unchecked:
            break
        scan.release()
        refused = dict(await broker.key_checks.beside_the_loop(unchecked))
        checked |= {number: refused.get(number, Verdict.OK) for number, _ in unchecked}
    for number, _ in compacted:
        if checked[number] != Verdict.OK:
            scan.refuse(number, checked[number])
    future = append(broker, scan)
    started = StartedProduce(broker, scan, future, call.correlation_id)
    if started.last:
        raise UnanswerableRequest("the store has no room; what the producer has sent behind this must not pass it")
    return started.finish([] if future is None else await future)


def _scan(broker: Broker, frame: memoryview, position: int, call: Call) -> ProduceScan:
    topics = broker.produce_topics
    resolve = topics.by_id if call.version >= TOPIC_IDS_FROM else topics.by_name
    return scan_produce(frame, position, call.version, resolve, broker.judged_ms())


def keys_checked(broker: Broker, scan: ProduceScan, *, inflate: bool) -> bool:
    """Refuse the batches of compacted topics that have records without keys: compaction keeps the latest record of
    each. False: that takes too long to be found out at once, or something would have to be inflated for it."""
    compacted = scan.compacted()
    if compacted:
        refused = broker.key_checks.at_once(compacted, inflate=inflate)
        if refused is None:
            return False
        for number, refusal in refused:
            scan.refuse(number, refusal)
    return True


def append(broker: Broker, scan: ProduceScan) -> PromptFuture[list[AppendResult]] | None:
    """Hand what a scan accepted to the store, and let go of the frame; None: nothing was accepted."""
    try:
        copies_min: int | dict[int, int] = 0
        if scan.acks == ACKS_ALL and broker.produce_topics.min_insync_max > 1:
            copies_min = _copies_demanded(broker, scan)
        if scan.accepted_count_max:  # the store looks at the checksums while it copies
            return broker.store.append(scan, scan.acks, copies_min=copies_min)
        return None
    finally:
        scan.release()


def ends_pipeline(future: PromptFuture[list[AppendResult]] | None, scan: ProduceScan) -> bool:
    """Whether the store has refused a scan for want of room on the disk. What the producer has sent behind it must not
    be appended before it: a producer that numbers its batches is refused for the gap, of the others the connection
    ends, and they send all of it again in its order."""
    if future is None or not future.done() or future.cancelled() or future.exception() is not None:
        return False
    results = future.result()
    if not results or not isinstance(results, list) or results[0].outcome is not Outcome.STORAGE_BUSY:
        return False
    return any(batch.producer_id < 0 for batch in scan.scanned())


def settled_errors(scan: ProduceScan, results: list[AppendResult] | ProduceScan) -> Sequence[int]:
    """Take in what the store made of a scan: without a list, it has written that into the scan. Returns the error codes
    to be answered. Raises UnanswerableRequest, which closes the connection."""
    if isinstance(results, list):
        scan.settle(results)
    errors = scan.errors(ERRORS)
    if errors and scan.acks == 0:
        raise UnanswerableRequest(f"a batch sent with acks=0 was refused: {ERROR_NAMES[errors[0]]}")
    return errors


def redirected_where_needed(
    broker: Broker, scan: ProduceScan, response: list[Buffer], errors: Sequence[int]
) -> list[Buffer]:
    """The frame of a response, with other leaders named where it refuses something for them."""
    if errors and NOT_LEADER in errors and scan.version >= REDIRECTED_FROM:
        return redirected(broker, ProduceResponse, scan.version, response, len(errors))
    return response


def _copies_demanded(broker: Broker, scan: ProduceScan) -> int | dict[int, int]:
    """How many copies the topics of a request demand of its batches (min.insync.replicas), those refused for which too
    few replicas are in sync. Topics of different demands share the highest where it can be met everywhere; else the
    highest in each write group: none waits for copies that only another asks for, in vain."""
    topics = [_topic(broker, key, scan.version) for key, _ in scan.topics]
    demanded = {topic.settings.min_insync_replicas for topic in topics if topic is not None}
    most = max(demanded, default=1)
    if most <= 1:
        return 0
    if most <= broker.leadership.in_sync_fewest():
        return most
    by_group = _refuse_where_replicas_lack(broker, scan, topics)
    return most if len(demanded) == 1 else by_group


def _refuse_where_replicas_lack(
    broker: Broker, scan: ProduceScan, topics: Sequence[Topic | None]
) -> dict[int, int]:
    """What other nodes lead is theirs to refuse. Returns what the others demand, per write group."""
    leadership = broker.leadership
    by_group: dict[int, int] = {}
    batches = scan.scanned()
    first = 0
    for topic, (_, count) in zip(topics, scan.topics, strict=True):
        for number in range(first, first + count):
            if topic is None or batches[number].verdict != Verdict.OK:
                continue
            group = leadership.group_of(batches[number].queue_id)
            demanded = topic.settings.min_insync_replicas
            if leadership.serves(group) and demanded > len(leadership.replicas(group).in_sync):
                scan.refuse(number, Verdict.NOT_ENOUGH_REPLICAS)
            else:
                by_group[group] = max(demanded, by_group.get(group, 0))
        first += count
    return by_group


def _topic(broker: Broker, key: bytes, version: int) -> Topic | None:
    if version >= TOPIC_IDS_FROM:
        return broker.metadata.topic_by_id(UUID(bytes=key))
    return broker.metadata.topic(key.decode())
