"""Produce: appends while the request is dispatched, so that batches keep the order they arrived in.

`start` has the kernel scan the body in place and hands the accepted batches to the store in one call, which copies
them. After that the request waits for the store's future alone; the kernel encodes the response when it is done,
without a task. With acks=0 there is no response, and as in Kafka a failure closes the connection, which is the only
way its producer can learn of it.

No code here runs per batch, with three exceptions: topics that are compacted, whose records are walked to look for
keys (beside the event loop where that takes long: such a request has a task, and its connection waits for it); topics
that demand more replicas in sync than there are; and answers that name other leaders.
"""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from mainstem.broker.broker import Broker
from mainstem.broker.errors import (
    ERROR_NAMES,
    ERROR_OF_OUTCOME,
    BrokerError,
    UnanswerableRequest,
    UnreadableRequest,
)
from mainstem.broker.record_errors import with_record_errors
from mainstem.broker.redirects import redirected
from mainstem.broker.request_context import RequestContext
from mainstem.broker.started import EncodedFrame, Later
from mainstem.broker.topics.key_checks import KeyRefusal
from mainstem.broker.topics.known_topics import ProduceTopics, ProduceTopicsOf
from mainstem.kernel import (
    TOPIC_IDS_FROM,
    TOPICS_AT_ONCE_MAX,
    ManyTopics,
    ProduceScan,
    Verdict,
    scan_produce,
)
from mainstem.kernel.batch_header import TRANSACTIONAL_BIT
from mainstem.model import AppendResult, AppendTransaction, Buffer, Outcome, Topic, class_of
from mainstem.ports import Session, joined
from mainstem.prompt_future import PromptFuture
from mainstem.protocol import codec
from mainstem.protocol.decoded_memory import let_go_in_slices
from mainstem.protocol.encoded_array import EncodedArray
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.errors import ProtocolError
from mainstem.protocol.headers import parse_response_header, response_frame
from mainstem.protocol.messages.produce import ProduceRequest, ProduceResponse
from mainstem.protocol.varint import read_unsigned_varint
from mainstem.security.acls.acl import Operation, ResourceKind

HELD_PER_BATCH = 128
HELD_PER_TOPIC = 200
"""Bytes that the scan of a request holds until it is answered."""

TOPICS_PER_PART = 1_000
"""Topics taken at a time from a request with very many: some milliseconds, most of them for writing the part
anew."""

API_KEY = 0
ACKS_ALL = -1
FLEXIBLE_FROM = 9
REDIRECTED_FROM = 10
ADDS_QUEUES_FROM = 12
"""From this version on a request takes the partitions that it brings batches for into its transaction (KIP-890)."""
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER

_LENGTH_BYTES = 4
_THROTTLE_MS_BYTES = 4
_COUNT = struct.Struct(">i")

KEYLESS_MESSAGE = "a compacted topic takes no record without a key"

Keyless = Mapping[int, Sequence[int]]
"""By the number of a batch in its request, the numbers of its records for which it is refused."""
NOTHING_KEYLESS: Keyless = {}

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
    Verdict.TRANSACTIONAL: (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "a batch of a transaction in a request without a transactional id",
    ),
    Verdict.UNKNOWN_TOPIC: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
    Verdict.UNKNOWN_TOPIC_ID: (ErrorCode.UNKNOWN_TOPIC_ID, None),
    Verdict.UNKNOWN_PARTITION: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
    Verdict.NOT_AUTHORIZED: (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None),
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
    Verdict.KEYLESS: (ErrorCode.INVALID_RECORD, KEYLESS_MESSAGE),
    Verdict.UNREADABLE: (ErrorCode.INVALID_RECORD, "the batch's records cannot be read, and the topic is compacted"),
    Verdict.INVALID_ACKS: (ErrorCode.INVALID_REQUIRED_ACKS, None),
    Verdict.TRANSACTIONAL_ID: (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "the client may not write with this transactional id",
    ),
}  # fmt: skip


_MESSAGES = {Outcome.SKIPPED_SEQUENCE: "sequence numbers before this batch's have not arrived; send again"}
"""Messages for outcomes whose error alone would mislead."""

_OUTCOMES = {Verdict[outcome.name]: (error, _MESSAGES.get(outcome)) for outcome, error in ERROR_OF_OUTCOME.items()}


def _error_of(number: int) -> tuple[int, bytes | None]:
    if number == Verdict.OK:
        return ErrorCode.NONE, None
    error, message = (_REFUSALS | _OUTCOMES).get(number, (ErrorCode.UNKNOWN_SERVER_ERROR, None))
    return error, (message or error.message).encode()


ERRORS = tuple(_error_of(number) for number in range(max(Verdict) + 1))
"""Kafka's error code and message of each verdict, indexed by its number."""


class StartedProduce:
    """Implements `Started`: the batches are appended."""

    __slots__ = ("_broker", "_call", "_keyless", "_redirects", "_scan", "_throttle_ms", "future", "holds", "last")

    def __init__(
        self,
        broker: Broker,
        scan: ProduceScan,
        future: PromptFuture[list[AppendResult]] | None,
        call: RequestContext,
        *,
        keyless: Keyless,
        redirects: bool = True,
        throttle_ms: int = 0,
    ) -> None:
        self._broker = broker
        self._keyless = keyless
        self._throttle_ms = throttle_ms
        self._redirects = redirects
        self._scan = scan
        self.future = future
        self._call = call
        self.last = ends_pipeline(future, scan)
        self.holds = held_bytes(scan)

    def finish(self) -> EncodedFrame | None:
        return self._answered(settled_errors(self._scan, self.future))

    def fail(self) -> EncodedFrame | None:
        self._scan.fail(Verdict.FAILED)
        return self._answered(errors_of(self._scan))

    def _answered(self, errors: Mapping[int, int]) -> EncodedFrame | None:
        scan = self._scan
        if scan.acks == 0:
            return None
        response: list[Buffer] = [scan.response(self._call.correlation_id, ERRORS, self._throttle_ms)]
        if self._redirects:
            listener = self._call.session.listener
            response = redirected_where_needed(self._broker, scan, response, errors, listener)
        if self._keyless:
            response = (
                with_record_errors(response, scan.version, scan.batch_count, self._keyless, KEYLESS_MESSAGE) or response
            )
        return EncodedFrame(response, errors)


def start(
    broker: Broker, frame: memoryview, position: int, call: RequestContext
) -> StartedProduce | Later[EncodedFrame | None]:
    """Begin a Produce request whose body stands at `position`. Raises MalformedProduce."""
    try:
        scan = _scan(broker, frame, position, call)
    except ManyTopics:
        return partial(_start_in_parts, broker, bytes(frame[position:]), call)
    keyless = keys_checked(broker, scan, inflate=True)
    if keyless is None:
        scan.release()
        return partial(_start_later, broker, bytes(frame[position:]), call)
    throttle_ms = _charged(broker, call, len(frame))
    future = append(broker, scan, call.session)
    return StartedProduce(broker, scan, future, call, keyless=keyless, throttle_ms=throttle_ms)


def _charged(broker: Broker, call: RequestContext, size_bytes: int) -> int:
    """Charge the client for a request; for how many ms it is throttled."""
    throttling = broker.throttling
    if throttling is None:
        return 0
    throttling.floods.note(call.session.brought, size_bytes)
    if not throttling.active:
        return 0
    return throttling.produced(call.session, call.client_id, size_bytes)


async def _start_later(broker: Broker, body: bytes, call: RequestContext) -> EncodedFrame | None:
    """Begin a request for a compacted topic whose records take long to check. Later requests of the
    connection wait, so that batches keep their order."""
    scan, keyless = await _keys_looked_into(broker, body, call)
    throttle_ms = _charged(broker, call, len(body))
    return await _append_and_finish(broker, scan, call, keyless, throttle_ms=throttle_ms)


async def _start_in_parts(broker: Broker, body: bytes, call: RequestContext) -> EncodedFrame | None:
    """Begin a request of more topics than one turn of the loop can check: it is split into several, one after
    the other, whose answers are joined. Later requests of the connection wait."""
    parts: list[EncodedFrame] = []
    slices = codec.read_in_slices(ProduceRequest, call.version, memoryview(body))
    try:
        request, stop = await broker.turns.run(slices)
    except ProtocolError as error:
        raise UnreadableRequest(f"Produce v{call.version} is malformed: {error}") from None
    if stop != len(body):
        raise UnreadableRequest(f"a Produce v{call.version} request has {len(body) - stop} bytes too many")
    topics = request.topic_data
    throttle_ms = _charged(broker, call, len(body))
    for first in range(0, len(topics), TOPICS_PER_PART):
        part = replace(request, topic_data=topics[first : first + TOPICS_PER_PART])
        scan, keyless = await _keys_looked_into(broker, codec.write(part, call.version), call)
        answer = await _append_and_finish(broker, scan, call, keyless, redirects=False)
        if answer is not None:
            parts.append(answer)
        await broker.turns.take()
    long = [request]
    del request, topics, part
    await broker.turns.run(let_go_in_slices(long))
    return _joined(parts, call, throttle_ms) if parts else None


def _joined(parts: list[EncodedFrame], call: RequestContext, throttle_ms: int) -> EncodedFrame:
    """One response with the topics of several."""
    count = 0
    topics: list[Buffer] = []
    errors: Counter[int] = Counter()
    for part in parts:
        own, encoded = _topics_of(memoryview(joined(part.buffers)), call.version)
        count += own
        topics.append(encoded)
        errors.update(part.errors)
    response = ProduceResponse(
        responses=EncodedArray(count, topics),  # type: ignore[arg-type]
        throttle_time_ms=throttle_ms,
    )
    body = codec.write_parts(response, call.version)
    frame = response_frame(call.correlation_id, API_KEY, call.version, body)
    return EncodedFrame(frame, errors, any(part.last for part in parts))


def _topics_of(frame: memoryview, version: int) -> tuple[int, memoryview]:
    """How many topics the frame of a response has, and their bytes, without the fields before and behind
    them."""
    flexible = version >= FLEXIBLE_FROM
    _, position = parse_response_header(frame[_LENGTH_BYTES:], API_KEY, version)
    position += _LENGTH_BYTES
    if flexible:
        count, position = read_unsigned_varint(frame, position)
        count -= 1
    else:
        (count,) = _COUNT.unpack_from(frame, position)
        position += _COUNT.size
    return count, frame[position : len(frame) - _THROTTLE_MS_BYTES - flexible]


async def _keys_looked_into(broker: Broker, body: bytes, call: RequestContext) -> tuple[ProduceScan, Keyless]:
    """The scan of a request, with the batches refused that lack keys."""
    checked: dict[int, KeyRefusal | None] = {}
    while True:  # once, or again where another topic has become compacted meanwhile
        scan = _scan(broker, memoryview(body), 0, call)
        compacted = scan.compacted()
        unchecked = [(number, data) for number, data in compacted if number not in checked]
        if not unchecked:
            break
        scan.release()
        refused = {refusal.batch: refusal for refusal in await broker.key_checks.beside_the_loop(unchecked)}
        checked |= {number: refused.get(number) for number, _ in unchecked}
    refusals = [refusal for number, _ in compacted if (refusal := checked[number]) is not None]
    return scan, _refuse(scan, refusals)


async def _append_and_finish(
    broker: Broker,
    scan: ProduceScan,
    call: RequestContext,
    keyless: Keyless,
    *,
    redirects: bool = True,
    throttle_ms: int = 0,
) -> EncodedFrame | None:
    future = append(broker, scan, call.session)
    started = StartedProduce(broker, scan, future, call, keyless=keyless, redirects=redirects, throttle_ms=throttle_ms)
    if future is not None:
        await settled(future)
    try:
        answer = started.finish()
    except BrokerError:
        raise
    except Exception as error:
        broker.faults.report(logging.ERROR, f"Produce v{call.version} failed unexpectedly", error)
        answer = started.fail()
    # the requests sent behind it are not parsed yet, so a refusal is in time however late it comes
    return answer if answer is None else answer._replace(last=ends_pipeline(future, scan))


def _scan(broker: Broker, frame: memoryview, position: int, call: RequestContext) -> ProduceScan:
    topics = topics_of(broker, call.session)
    resolve = topics.by_id if call.version >= TOPIC_IDS_FROM else topics.by_name
    return scan_produce(frame, position, call.version, resolve, broker.judged_ms(), TOPICS_AT_ONCE_MAX)


def topics_of(broker: Broker, session: Session) -> ProduceTopics | ProduceTopicsOf:
    """The topics as a client may see them that wants to write."""
    if broker.authorizer is None:
        return broker.produce_topics
    may_write = broker.authorizer.of(session).question(Operation.WRITE, ResourceKind.TOPIC)
    return ProduceTopicsOf(broker.produce_topics, may_write)


def keys_checked(broker: Broker, scan: ProduceScan, *, inflate: bool) -> Keyless | None:
    """Refuse the batches of compacted topics that have records without keys: compaction keeps the latest
    record of each key. Returns these records. None: the check takes too long to be done at once, or would have to
    inflate records."""
    compacted = scan.compacted()
    if not compacted:
        return NOTHING_KEYLESS
    refused = broker.key_checks.at_once(compacted, inflate=inflate)
    return None if refused is None else _refuse(scan, refused)


def _refuse(scan: ProduceScan, refused: Iterable[KeyRefusal]) -> Keyless:
    keyless: dict[int, Sequence[int]] = {}
    for number, verdict, records in refused:
        scan.refuse(number, verdict)
        if records:
            keyless[number] = records
    return keyless


def append(broker: Broker, scan: ProduceScan, session: Session) -> PromptFuture[list[AppendResult]] | None:
    """Hand the accepted batches of a scan to the store, and let go of the frame; None: none was accepted. An
    error of the store goes into the future."""
    try:
        copies_min: int | dict[int, int] = 0
        if scan.acks == ACKS_ALL and broker.produce_topics.min_insync_max > 1:
            copies_min = _copies_demanded(broker, scan)
        transaction = _transaction(broker, scan, session) if scan.transactional else None
        if scan.accepted_count_max:  # the store checks the checksums while it copies
            return broker.store_for(session).append(scan, scan.acks, copies_min=copies_min, transaction=transaction)
        return None
    except Exception as error:
        failed: PromptFuture[list[AppendResult]] = PromptFuture()
        failed.set_exception(error)
        return failed
    finally:
        scan.release()


def _transaction(broker: Broker, scan: ProduceScan, session: Session) -> AppendTransaction | None:
    """The transaction that a request names. Its batches of transactions are refused where the client may not write with
    this id."""
    try:
        named = bytes(scan.transactional_id or b"").decode()
    except UnicodeDecodeError:
        named = ""
    may_write = broker.authorizer is None or broker.authorizer.of(session).question(
        Operation.WRITE, ResourceKind.TRANSACTIONAL_ID
    )(named)
    if named and may_write:
        return AppendTransaction(named, scan.version >= ADDS_QUEUES_FROM)
    for number, batch in enumerate(scan.scanned()):
        if batch.verdict == Verdict.OK and batch.attributes & TRANSACTIONAL_BIT:
            scan.refuse(number, Verdict.TRANSACTIONAL_ID)
    return None


def ends_pipeline(future: PromptFuture[list[AppendResult]] | None, scan: ProduceScan) -> bool:
    """Whether the store has refused a scan for want of room on the disk. The producer's later batches must
    not be appended before these: a producer that numbers its batches is refused for the gap; for the others
    the connection ends, and they send all of it again in its order."""
    if future is None or not future.done() or future.cancelled() or future.exception() is not None:
        return False
    results = future.result()
    if not isinstance(results, list):
        return scan.lacks_room
    if not results or results[0].outcome is not Outcome.STORAGE_BUSY:
        return False
    return scan.has_unnumbered


def settled(future: PromptFuture[list[AppendResult]]) -> PromptFuture[None]:
    """A future that is done when `future` is settled, with a result or an error."""
    told: PromptFuture[None] = PromptFuture()
    future.add_done_callback(lambda _: None if told.done() else told.set_result(None))
    return told


def held_bytes(scan: ProduceScan) -> int:
    """Bytes that a scan holds until it is answered."""
    return HELD_PER_BATCH * scan.batch_count + HELD_PER_TOPIC * scan.topic_count


def settled_errors(scan: ProduceScan, future: PromptFuture[list[AppendResult]] | None) -> Mapping[int, int]:
    """Take in the store's result for a scan: without a list, the store has written it into the scan. Returns
    how often each error code occurs in the answer. Raises the future's error, and UnanswerableRequest, which
    closes the connection."""
    if future is not None:
        results = future.result()
        if isinstance(results, list):
            scan.settle(results)
    return errors_of(scan)


def errors_of(scan: ProduceScan) -> Mapping[int, int]:
    """How often each error code occurs in the answer. Raises UnanswerableRequest, which closes the
    connection."""
    errors = scan.errors(ERRORS)
    if errors and scan.acks == 0:
        raise UnanswerableRequest(f"a batch sent with acks=0 was refused: {ERROR_NAMES[next(iter(errors))]}")
    return errors


def redirected_where_needed(
    broker: Broker, scan: ProduceScan, response: list[Buffer], errors: Mapping[int, int], listener: str
) -> list[Buffer]:
    """The frame of a response, with the leaders named of partitions that other nodes lead, whether they are refused
    here or taken there: where clients of that listener reach them."""
    if scan.version >= REDIRECTED_FROM and names_leaders(scan, errors):
        count = max(sum(errors.values()), scan.batch_count)
        return redirected(broker, ProduceResponse, scan.version, response, count, listener) or response
    return response


def names_leaders(scan: ProduceScan, errors: Mapping[int, int]) -> bool:
    """Whether the answer to a scan is to tell clients where to go."""
    return scan.taken_elsewhere or bool(errors and NOT_LEADER in errors)


def _copies_demanded(broker: Broker, scan: ProduceScan) -> int | dict[int, int]:
    """How many copies the topics of a request demand of its batches (min.insync.replicas); batches for which
    too few replicas are in sync are refused. Topics of different demands share the highest where it can be
    met everywhere, else the highest in each write group: so no batch waits in vain for copies that only
    another one demands."""
    topics = [_topic(broker, key, scan.version) for key, _ in scan.topics]
    demanded = {topic.settings.min_insync_replicas for topic in topics if topic is not None}
    most = max(demanded, default=1)
    if most <= 1:
        return 0
    classes = {class_of(topic.number) for topic in topics if topic is not None}
    if most <= broker.leadership.in_sync_fewest(classes):
        return most
    by_group = _refuse_where_replicas_lack(broker, scan, topics)
    return most if len(demanded) == 1 else by_group


def _refuse_where_replicas_lack(broker: Broker, scan: ProduceScan, topics: Sequence[Topic | None]) -> dict[int, int]:
    """Batches for partitions that other nodes lead are left for those to refuse. Returns the demands of the
    other batches, per write group."""
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
            if leadership.leads(group) and demanded > len(leadership.replicas(group).in_sync):
                scan.refuse(number, Verdict.NOT_ENOUGH_REPLICAS)
            else:
                by_group[group] = max(demanded, by_group.get(group, 0))
        first += count
    return by_group


def _topic(broker: Broker, key: bytes, version: int) -> Topic | None:
    if version >= TOPIC_IDS_FROM:
        return broker.metadata.topic_by_id(UUID(bytes=key))
    return broker.metadata.topic(key.decode())
