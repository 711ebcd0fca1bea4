"""The Produce request: scanned from the bytes of its body into checked batches, and answered with the outcome of each.

`scan_produce` walks a body once and leaves one `ScannedBatch` per partition in a `ProduceScan`. The store writes its
results into those, and `ProduceScan.response` encodes them. The batches that passed are also a sequence of
`BatchAppend`, made one by one as they are asked for: what a store that does not know the kernel is given.

Two kinds of errors are kept apart. A body whose own structure is wrong (lengths beyond the end, trailing bytes) raises
`MalformedProduce`. A partition whose records are wrong gets a `Verdict`, and the others are not concerned.

Records are exactly one batch of format 2, as Kafka demands from version 3 on. Other input gets Kafka's answers: no
batch, an older format, or more than one batch is an invalid record; a batch that is shorter than it says, or whose
checksum is wrong, is a corrupt message.

A scan holds the frame until `release`: no longer than the call that appends its batches.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, overload

from mainstem.kernel.batch_header import (
    CHECKED_FROM,
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER,
    LENGTH_EXCLUDES,
    LOG_APPEND_TIME_BIT,
    MAGIC_AT,
    TRANSACTIONAL_BIT,
)
from mainstem.kernel.errors import MalformedBody, MalformedProduce, ManyTopics
from mainstem.kernel.layout import NO_TIMESTAMP, TIMESTAMP_DISTANCE_MAX, TOPICS_AT_ONCE_MAX, Verdict
from mainstem.kernel.pure.checksum import crc32c
from mainstem.kernel.pure.produce_response import ErrorTable, encode_response
from mainstem.kernel.pure.request_body import (
    read_count,
    read_i32,
    read_records_length,
    read_text_length,
    skip_tags,
)
from mainstem.model import AppendResult, BatchAppend, Outcome

VERSION_FIRST = 3
VERSION_LAST = 13
FLEXIBLE_FROM = 9
TOPIC_IDS_FROM = 13
TOPIC_ID_BYTES = 16

ACKS = (-1, 0, 1)
ACKS_ALL = -1

VERDICT_OF_OUTCOME = {outcome: Verdict[outcome.name] for outcome in Outcome if outcome.name in Verdict.__members__}
"""They share their names. An outcome of reads alone has no verdict."""

NOT_THE_LAST = frozenset({Verdict.COLD_PRODUCER, Verdict.NOT_LEADER})
"""Verdicts that a store may put off: it holds copies of such batches, and another verdict comes later."""

_COMPRESSION_LAST = 4  # none, gzip, snappy, lz4, zstd
_ZSTD = 4
_ZSTD_FROM = 7

_TOPIC_BYTES_MIN = 3  # flexible: an empty name, no partitions, no tags
_PARTITION_BYTES_MIN = 6  # flexible: index, null records, no tags

ENTRIES_MAX = 100_000
"""Topics and partitions of one request. Clients send a few hundred, by their default size (1 MiB) 15,000 at most;
an entry without records is six bytes and costs the event loop some time all the same."""

_ACKS_AND_TIMEOUT = struct.Struct(">hi")

_PRODUCE_KEY = 0
_FRAME_LENGTH_BYTES = 4
_HEAD = struct.Struct(">ihhih")
"""Frame length, API key, version, correlation id, length of the client id."""
_I16 = struct.Struct(">h")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceTopic:
    """The facts about a topic that the broker gives the scan."""

    number: int = 0
    """u32, the upper half of its queue ids."""
    partitions: int = 0
    message_bytes_max: int = 0
    """i32: larger batches are refused."""
    log_append_time: bool = False
    """The store stamps its own time on the topic's batches."""
    compacted: bool = False
    timestamp_before_ms_max: int = TIMESTAMP_DISTANCE_MAX
    """How far a timestamp may lie before the node's clock, unless the store stamps its own time."""
    timestamp_after_ms_max: int = TIMESTAMP_DISTANCE_MAX
    """How far a timestamp may lie after the node's clock."""
    refusal: int = Verdict.OK
    """The verdict on all of its batches; OK: judge each."""
    refusal_acks_all: int = Verdict.OK
    """The same, where the request asks for all acknowledgements."""

    def __post_init__(self) -> None:
        for refusal in (self.refusal, self.refusal_acks_all):
            Verdict(refusal)  # raises ValueError for what is none


class ScannedTopic(NamedTuple):
    key: bytes
    """The name in UTF-8 (unchecked), or from version 13 the 16 bytes of the topic id."""
    batch_count: int
    """How many of the scanned batches, in order, are this topic's."""


@dataclass(slots=True)
class ScannedBatch:
    """One partition of the request: the scan's findings, then the store's result.

    Accepted are the batches whose verdict was OK after the scan. Of the others, the fields from `queue_id` to
    `log_append_time` are 0.
    """

    partition: int
    verdict: int
    start: int
    """The position of the records in the frame."""
    length: int
    """Bytes of the records."""
    queue_id: int = 0
    record_count: int = 0
    last_offset_delta: int = 0
    max_timestamp: int = 0
    producer_id: int = 0
    base_sequence: int = 0
    producer_epoch: int = 0
    attributes: int = 0
    crc: int = 0
    log_append_time: bool = False
    """The store stamps its own time."""
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    group: int = 0
    block_index: int = 0
    """Index of the block that must be applied before the result may be told; 0: none."""


class ProduceScan(Sequence[BatchAppend]):
    """A Produce request, taken apart. As a sequence: its accepted batches, whose bytes are those of the frame."""

    __slots__ = ("_accepted", "_frame", "_now_ms", "_requests", "_resolved", "acks", "batches", "bytes_taken",
                 "taken_elsewhere", "timeout_ms", "topics", "transactional", "transactional_id", "version")  # fmt: skip

    def __init__(self, frame: memoryview, version: int, now_ms: int) -> None:
        self.version = version
        self._now_ms = now_ms
        self.transactional = False
        """The request names a transactional id."""
        self.transactional_id: bytes | None = None
        self.taken_elsewhere = False
        """Another node took some of its batches."""
        self.acks = 0
        self.timeout_ms = 0
        self.topics: list[ScannedTopic] = []
        self.batches: list[ScannedBatch] = []
        self._accepted: list[ScannedBatch] = []
        self._resolved: list[ProduceTopic] = []
        self._frame: memoryview | None = frame
        self._requests: list[tuple[int, int]] = []
        """Correlation id and number of topics of each request of a burst."""
        self.bytes_taken = 0
        """Bytes of the frames that a burst was made from, their lengths included."""

    @property
    def request_count(self) -> int:
        """How many requests a burst has."""
        return len(self._requests)

    @property
    def batch_count(self) -> int:
        return len(self.batches)

    @property
    def accepted_count(self) -> int:
        return len(self._accepted)

    @property
    def accepted_count_max(self) -> int:
        """The same, or more: what a kernel can say that has not looked at the checksums yet."""
        return len(self._accepted)

    def scanned(self) -> list[ScannedBatch]:
        """Copies of all scanned batches, for tests and logs."""
        return [replace(batch) for batch in self.batches]

    # --- how it is made -------------------------------------------------------------------------------------

    def take_body(
        self, frame: memoryview, position: int, resolve: Callable[[bytes], ProduceTopic], topics_max: int
    ) -> None:
        """Add one request, whose body fills `frame` from `position`. Raises MalformedProduce, and takes no topic and no
        batch of it then."""
        topic_count, batch_count = len(self.topics), len(self.batches)
        try:
            self._walk(frame, position, resolve, topics_max)
        except MalformedProduce:
            del self.topics[topic_count:], self._resolved[topic_count:], self.batches[batch_count:]
            raise
        self._accepted += [batch for batch in self.batches[batch_count:] if batch.record_count]

    def take_frame(self, correlation_id: int, topic_count: int, bytes_taken: int) -> None:
        """Note a request of a burst whose body was taken: it gets a response of its own."""
        self._requests.append((correlation_id, topic_count))
        self.bytes_taken = bytes_taken

    def _walk(
        self, frame: memoryview, position: int, resolve: Callable[[bytes], ProduceTopic], topics_max: int
    ) -> None:
        try:
            stop = self._read_topics(frame, position, resolve, topics_max)
        except (IndexError, struct.error):
            raise MalformedProduce(f"a Produce v{self.version} request of {len(frame)} bytes ends early") from None
        except MalformedProduce:
            raise
        except MalformedBody as error:
            raise MalformedProduce(str(error)) from None
        if stop != len(frame):
            raise MalformedProduce(f"a Produce v{self.version} request has {len(frame) - stop} bytes too many")

    def _read_topics(
        self, frame: memoryview, position: int, resolve: Callable[[bytes], ProduceTopic], topics_max: int
    ) -> int:
        flexible = self.version >= FLEXIBLE_FROM
        size, position = read_text_length(frame, position, flexible)
        self.transactional = size >= 0
        self.transactional_id = bytes(frame[position : position + size]) if size >= 0 else None
        position += max(size, 0)
        self.acks, self.timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
        position += _ACKS_AND_TIMEOUT.size
        topic_count, position = read_count(frame, position, flexible, _TOPIC_BYTES_MIN)
        if topic_count > ENTRIES_MAX:
            raise MalformedProduce(f"{topic_count} topics, more than the {ENTRIES_MAX} a request may have")
        if topic_count + len(self.topics) > topics_max:
            raise ManyTopics(f"{topic_count} topics, more than are scanned at once")
        for _ in range(topic_count):
            if self.version >= TOPIC_IDS_FROM:
                size = TOPIC_ID_BYTES
            else:
                size, position = read_text_length(frame, position, flexible)
                if size < 0:
                    raise MalformedProduce("a topic name is null")
            key = bytes(frame[position : position + size])
            position += size
            partition_count, position = read_count(frame, position, flexible, _PARTITION_BYTES_MIN)
            if topic_count + len(self.batches) + partition_count > ENTRIES_MAX:
                raise MalformedProduce(f"more than {ENTRIES_MAX} topics and partitions in a request")
            asked_before = bool(self.topics) and self.topics[-1].key == key
            topic = self._resolved[-1] if asked_before else resolve(key)
            self.topics.append(ScannedTopic(key, partition_count))
            self._resolved.append(topic)
            refusal = self._refusal(topic)
            for _ in range(partition_count):
                partition, position = read_i32(frame, position)
                size, position = read_records_length(frame, position, flexible)
                self.batches.append(self._judge(frame, topic, refusal, partition, position, size))
                position += size
                if flexible:
                    position = skip_tags(frame, position)
            if flexible:
                position = skip_tags(frame, position)
        return skip_tags(frame, position) if flexible else position

    def _refusal(self, topic: ProduceTopic) -> int:
        """The verdict that refuses all batches of a topic, or OK."""
        if self.acks not in ACKS:
            return Verdict.INVALID_ACKS
        if topic.refusal == Verdict.OK and self.acks == ACKS_ALL:
            return topic.refusal_acks_all
        return topic.refusal

    def _judge(
        self, frame: memoryview, topic: ProduceTopic, refusal: int, partition: int, start: int, size: int
    ) -> ScannedBatch:
        if refusal == Verdict.OK:
            if not 0 <= partition < topic.partitions:
                refusal = Verdict.UNKNOWN_PARTITION
            elif size > topic.message_bytes_max:
                refusal = Verdict.LARGER_THAN_TOPIC_ALLOWS
            else:
                refusal = _shape(frame, start, size)
        if refusal != Verdict.OK:
            return ScannedBatch(partition, refusal, start, size)
        (
            base_offset, _, _, _, crc, attributes, last_offset_delta, base_timestamp, max_timestamp,
            producer_id, producer_epoch, base_sequence, record_count,
        ) = HEADER.unpack_from(frame, start)  # fmt: skip
        unnumbered = producer_id >= 0 and (producer_epoch < 0 or base_sequence < 0)
        verdict = Verdict.OK
        if crc != crc32c(frame[start + CHECKED_FROM : start + size]):
            verdict = Verdict.BAD_CHECKSUM
        elif record_count < 1 or record_count != last_offset_delta + 1:
            verdict = Verdict.BAD_COUNT
        elif base_offset != 0 or producer_id < -1 or unnumbered:
            verdict = Verdict.BAD_FIELD
        elif attributes & COMPRESSION_MASK > _COMPRESSION_LAST:
            verdict = Verdict.BAD_COMPRESSION
        elif attributes & CONTROL_BIT:
            verdict = Verdict.CONTROL
        elif attributes & TRANSACTIONAL_BIT and not self.transactional:
            verdict = Verdict.TRANSACTIONAL
        elif attributes & TRANSACTIONAL_BIT and producer_id < 0:
            verdict = Verdict.BAD_FIELD
        elif self.version < _ZSTD_FROM and attributes & COMPRESSION_MASK == _ZSTD:
            verdict = Verdict.ZSTD_TOO_OLD
        elif attributes & LOG_APPEND_TIME_BIT and not topic.log_append_time:
            verdict = Verdict.INVALID_TIMESTAMP
        elif not topic.log_append_time and not _in_range(topic, self._now_ms, base_timestamp, max_timestamp):
            verdict = Verdict.TIMESTAMP_OUT_OF_RANGE
        if verdict is not Verdict.OK:
            return ScannedBatch(partition, verdict, start, size)
        return ScannedBatch(
            partition, Verdict.OK, start, size, topic.number << 32 | partition, record_count, last_offset_delta,
            max_timestamp, producer_id, base_sequence, producer_epoch, attributes, crc, topic.log_append_time,
        )  # fmt: skip

    # --- the accepted batches, for a store ------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._accepted)

    @overload
    def __getitem__(self, index: int) -> BatchAppend: ...

    @overload
    def __getitem__(self, index: slice) -> list[BatchAppend]: ...

    def __getitem__(self, index: int | slice) -> BatchAppend | list[BatchAppend]:
        """Raises ValueError once the frame is released."""
        if isinstance(index, slice):
            return [self._append_of(batch) for batch in self._accepted[index]]
        return self._append_of(self._accepted[index])

    def __iter__(self) -> Iterator[BatchAppend]:
        return map(self._append_of, self._accepted)

    def _append_of(self, batch: ScannedBatch) -> BatchAppend:
        return BatchAppend(
            batch.queue_id, self._data_of(batch), batch.record_count, batch.last_offset_delta, batch.max_timestamp,
            batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.attributes, batch.crc,
            log_append_time=batch.log_append_time,
        )  # fmt: skip

    def _data_of(self, batch: ScannedBatch) -> memoryview:
        if self._frame is None:
            raise ValueError("the frame of this request is released")
        return self._frame[batch.start : batch.start + batch.length]

    def release(self) -> None:
        """Let go of the frame."""
        self._frame = None

    # --- what became of them --------------------------------------------------------------------------------

    def compacted(self) -> list[tuple[int, memoryview]]:
        """The accepted batches of compacted topics: their numbers among all batches, and their bytes."""
        found: list[tuple[int, memoryview]] = []
        first = 0
        for (_, count), topic in zip(self.topics, self._resolved, strict=True):
            if topic.compacted:
                found.extend(
                    (number, self._data_of(self.batches[number]))
                    for number in range(first, first + count)
                    if self.batches[number].record_count
                )
            first += count
        return found

    def refuse(self, number: int, verdict: int) -> None:
        """Give an accepted batch, by its number among all, another verdict: it is accepted no longer. Raises
        ValueError for one that is not accepted, IndexError for one that is not there."""
        if number < 0:
            raise IndexError(f"no batch {number}")
        batch = self.batches[number]
        if not batch.record_count or verdict == Verdict.OK:
            raise ValueError(f"batch {number} is not accepted, or not refused by verdict {verdict}")
        self._accepted = [other for other in self._accepted if other is not batch]
        self.batches[number] = ScannedBatch(batch.partition, Verdict(verdict), batch.start, batch.length)

    def settle(self, results: Sequence[AppendResult]) -> None:
        """Take a store's results for the accepted batches, in their order. Raises ValueError unless there is one result
        for each."""
        if len(results) != len(self._accepted):
            raise ValueError(f"{len(results)} results for {len(self._accepted)} batches")
        for batch, result in zip(self._accepted, results, strict=True):
            batch.verdict = VERDICT_OF_OUTCOME[result.outcome]
            batch.base_offset = result.base_offset
            batch.log_append_time_ms = result.log_append_time_ms
            batch.log_start_offset = result.log_start_offset

    def wait_for(self, blocks: Sequence[tuple[int, int]]) -> None:
        """Note the block, as (group, index), that each accepted batch waits for, in their order."""
        for batch, (group, index) in zip(self._accepted, blocks, strict=True):
            batch.group, batch.block_index = group, index

    def late(self, verdict: int) -> list[tuple[int, BatchAppend]]:
        """The batches with a verdict that is not the last one, COLD_PRODUCER or NOT_LEADER: their numbers among all,
        and copies of them, which outlive the frame."""
        if verdict not in NOT_THE_LAST:
            raise ValueError(f"verdict {verdict} is the last one")
        return [
            (number, self._append_of(batch)._replace(data=memoryview(bytes(self._data_of(batch)))))
            for number, batch in enumerate(self.batches)
            if batch.verdict == verdict
        ]

    def resettle(self, number: int, result: AppendResult, group: int, block_index: int) -> None:
        """Set the result of a batch that was `late`, and the block it waits for."""
        if number < 0 or self.batches[number].verdict not in NOT_THE_LAST:
            raise IndexError(f"no late batch {number}")
        batch = self.batches[number]
        batch.verdict = VERDICT_OF_OUTCOME[result.outcome]
        batch.base_offset = result.base_offset
        batch.log_append_time_ms = result.log_append_time_ms
        batch.log_start_offset = result.log_start_offset
        batch.group, batch.block_index = group, block_index

    def fail(self, verdict: int, group: int = 0, block_index: int = 0) -> None:
        """Fail the appended batches: every accepted batch without an error so far gets this verdict; with a block's
        group and index, only those that wait for that block."""
        failure = Verdict(verdict)
        for batch in self._accepted:
            waits = not block_index or (batch.group, batch.block_index) == (group, block_index)
            if batch.verdict == Verdict.OK and waits:
                batch.verdict = failure
                batch.base_offset = batch.log_append_time_ms = batch.log_start_offset = -1

    # --- the response ---------------------------------------------------------------------------------------

    def response(self, correlation_id: int, errors: ErrorTable, throttle_ms: int = 0) -> bytes:
        """The frame of the response, in the version of the request, its length in front. `errors` has Kafka's error
        code and message (UTF-8) of each verdict, by its number; `throttle_ms` is the time for which the client is
        throttled. Raises OverflowError beyond 2 GiB."""
        return encode_response(self.version, correlation_id, self.topics, self.batches, errors, throttle_ms)

    def responses(self, errors: ErrorTable, throttle_ms: int = 0) -> bytes:
        """The frames of the responses to all requests of a burst, one behind the other."""
        topics, batches = iter(self.topics), iter(self.batches)
        frames = []
        for correlation_id, topic_count in self._requests:
            own = list(islice(topics, topic_count))
            answered = list(islice(batches, sum(count for _, count in own)))
            frames.append(encode_response(self.version, correlation_id, own, answered, errors, throttle_ms))
        return b"".join(frames)

    def errors(self, errors: ErrorTable) -> dict[int, int]:
        """How often each code of the response occurs that is not 0, in the order in which they occur first."""
        codes = (errors[batch.verdict][0] for batch in self.batches if batch.verdict != Verdict.OK)
        return dict(Counter(code for code in codes if code))

    @property
    def topic_count(self) -> int:
        return len(self.topics)

    @property
    def has_unnumbered(self) -> bool:
        """Some accepted batch is of a producer that numbers nothing."""
        return any(batch.producer_id < 0 for batch in self._accepted)

    @property
    def lacks_room(self) -> bool:
        """The store had no room for some accepted batch of a producer that numbers nothing."""
        return any(batch.producer_id < 0 and batch.verdict == Verdict.STORAGE_BUSY for batch in self._accepted)


def scan_produce(
    frame: memoryview,
    position: int,
    version: int,
    resolve: Callable[[bytes], ProduceTopic],
    now_ms: int = 0,
    topics_max: int = ENTRIES_MAX,
) -> ProduceScan:
    """Scan the Produce body of a version from 3 to 13 that fills `frame` from `position`.

    `resolve` is called for each topic of the request, unless it is the one before it again, with its name, or from
    version 13 its id. Its errors go through. `now_ms`: timestamps are judged by it. Raises MalformedProduce, and
    ManyTopics before anything of more than `topics_max` topics is looked at."""
    if not (VERSION_FIRST <= version <= VERSION_LAST and 0 <= position <= len(frame)):
        raise ValueError(f"no Produce body: version {version}, position {position} of {len(frame)} bytes")
    scan = ProduceScan(frame, version, now_ms)
    scan.take_body(frame, position, resolve, topics_max)
    return scan


def scan_burst(
    frames: memoryview,
    start: int,
    stop: int,
    requests_max: int,
    frame_bytes_max: int,
    by_name: Callable[[bytes], ProduceTopic],
    by_id: Callable[[bytes], ProduceTopic],
    now_ms: int = 0,
) -> ProduceScan | None:
    """Scan the Produce requests that lie whole at the front of `frames[start:stop]`, lengths in front, as many as are
    plain, `requests_max` at the most. None: the first is not, it is to be looked at by itself.

    Plain are sound requests of the versions from 3 to 13 and of up to `frame_bytes_max` bytes, whose header has an
    ASCII client id or none, and neither tagged fields nor a transactional id; they agree in version and acks, and
    have no more than 10,000 topics together. `by_name` and `by_id` resolve topics as for `scan_produce`.
    """
    if not 0 <= start <= stop <= len(frames):
        raise ValueError(f"no frames: {start} to {stop} of {len(frames)} bytes")
    head = _plain_head(frames, start, stop, frame_bytes_max) if requests_max >= 1 else None
    if head is None:
        return None
    scan = ProduceScan(frames, head.version, now_ms)
    scan.acks = head.acks
    while head is not None and (head.version, head.acks) == (scan.version, scan.acks):
        topic_count = len(scan.topics)
        resolve = by_id if head.version >= TOPIC_IDS_FROM else by_name
        try:
            scan.take_body(frames[: head.stop], head.body, resolve, TOPICS_AT_ONCE_MAX)
        except MalformedProduce:
            if not scan.request_count:
                return None
            break
        scan.take_frame(head.correlation_id, len(scan.topics) - topic_count, head.stop - start)
        if scan.request_count == requests_max:
            break
        head = _plain_head(frames, head.stop, stop, frame_bytes_max)
    return scan


class _Head(NamedTuple):
    """The fields in front of a plain request's topics."""

    version: int
    correlation_id: int
    acks: int
    body: int
    stop: int
    """Position behind the frame."""


def _plain_head(frames: memoryview, start: int, stop: int, frame_bytes_max: int) -> _Head | None:
    """The head of the plain request whose whole frame lies at `start`; None if there is none."""
    if stop - start < _HEAD.size:
        return None
    size, api_key, version, correlation_id, client_id_bytes = _HEAD.unpack_from(frames, start)
    end = start + _FRAME_LENGTH_BYTES + size
    position = start + _HEAD.size
    if not position <= end <= stop or size > frame_bytes_max:
        return None
    if api_key != _PRODUCE_KEY or not VERSION_FIRST <= version <= VERSION_LAST:
        return None
    if not -1 <= client_id_bytes <= end - position:
        return None
    client_id_bytes = max(client_id_bytes, 0)
    if not bytes(frames[position : position + client_id_bytes]).isascii():
        return None
    position += client_id_bytes
    flexible = version >= FLEXIBLE_FROM
    nothing = b"\0\0" if flexible else b"\xff\xff"
    """No tags in the header and a null transactional id; a null transactional id."""
    if end - position < 4 or frames[position : position + 2] != nothing:
        return None
    (acks,) = _I16.unpack_from(frames, position + 2)
    return _Head(version, correlation_id, acks, position + flexible, end) if acks in ACKS else None


def _in_range(topic: ProduceTopic, now_ms: int, base_timestamp: int, max_timestamp: int) -> bool:
    """By the header of a batch: its first record is not too old, and none claims to be too new."""
    bounded = topic.timestamp_before_ms_max != TIMESTAMP_DISTANCE_MAX and base_timestamp != NO_TIMESTAMP
    if bounded and base_timestamp < now_ms - topic.timestamp_before_ms_max:
        return False
    return max_timestamp <= now_ms + topic.timestamp_after_ms_max


def _shape(frame: memoryview, start: int, size: int) -> Verdict:
    """The verdict whether these bytes are one whole batch."""
    if size == 0:
        return Verdict.NO_BATCH
    if size <= MAGIC_AT:
        return Verdict.BAD_LENGTH
    magic = frame[start + MAGIC_AT]
    if magic < 2:
        return Verdict.OLD_FORMAT
    if size < HEADER.size:
        return Verdict.BAD_LENGTH
    batch_size = read_i32(frame, start + 8)[0] + LENGTH_EXCLUDES
    if batch_size > size or batch_size < HEADER.size or magic != 2:
        return Verdict.BAD_LENGTH
    return Verdict.MANY_BATCHES if batch_size < size else Verdict.OK
