"""The batches of a topic, fetched as they are stored, and written as the files in which Kafka keeps a partition.

Each batch is checked before it is written, and has its bytes, its offset and its leader epoch on both sides.
"""

from __future__ import annotations

import base64
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import numpy
import numpy.typing

from mainstem.address import Address
from mainstem.cli.clients.client_settings import settings_of
from mainstem.cli.clients.kafka_connection import KafkaConnections
from mainstem.cli.errors import CommandFailed, NodeUnreachable, RequestRefused
from mainstem.kernel import first_damaged, walk_batches
from mainstem.model import Buffer
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from mainstem.protocol.messages.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from mainstem.storage.extents.aborted import NO_PRODUCER
from mainstem.storage.store_files.run_target import LocalRunTarget, NoTarget, RunTarget
from mainstem.storage.store_files.segment_writer import BATCH_FIELDS, OFFSETS_MAX, SegmentWriter, described
from mainstem.storage.store_files.store_file import EXTENTS_SUFFIX, SEGMENT_SUFFIX
from mainstem.storage.store_files.transaction_scan import TransactionScan

TRANSACTION_INDEX_SUFFIX = ".txnindex"
TRANSACTION_ENTRY = numpy.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)
"""An entry of Kafka's index of aborted transactions, version 0."""

METADATA_VERSION = 10
LIST_OFFSETS_VERSION = 5
FETCH_VERSION = 12

FETCH_BYTES = 8 << 20
FETCH_WAIT_MS = 500
PATIENCE_SECONDS = 30.0
"""How long a partition may give nothing: a leader that went away has a successor by then."""
PAUSE_SECONDS = 0.2

PARTIAL_SUFFIX = ".partial"
"""Of the directory of a partition that is not whole yet."""

Integers = numpy.typing.NDArray[numpy.int64]


class TopicPlaces(NamedTuple):
    """A topic, and who leads its partitions."""

    topic_id: UUID
    leaders: dict[int, Address | None]
    """By partition; None: nobody does now."""


class Written(NamedTuple):
    """A partition that was written."""

    partition: int
    directory: str
    first_offset: int
    end_offset: int
    segments: int
    batches: int
    bytes: int


class PartitionSource(Protocol):
    """A topic, to be read partition by partition. Raises `MainstemError`s that say what cannot be read."""

    topic: str

    @property
    def topic_id(self) -> UUID: ...

    def bounds(self, partition: int) -> tuple[int, int]:
        """The first offset of a partition, and the one behind its last."""
        ...

    def batches(self, partition: int, first: int, end: int) -> Iterator[tuple[memoryview, Integers]]:
        """Whole batches from the one with offset `first` on, as far as they begin before `end`: bytes, which were
        checked, and a row of `BATCH_FIELDS` for each."""
        ...


class TopicSource:
    """A topic of a cluster, to be read. Close it."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        """Raises NodeUnreachable, RequestRefused; NotAdmitted, SettingsUnusable."""
        self.topic = topic
        self._bootstrap = bootstrap
        self._connections = KafkaConnections(settings_of(bootstrap))
        self.places = self._places()

    def close(self) -> None:
        self._connections.close()

    @property
    def topic_id(self) -> UUID:
        return self.places.topic_id

    def _places(self) -> TopicPlaces:
        request = MetadataRequest(topics=(MetadataRequestTopic(name=self.topic),), allow_auto_topic_creation=False)
        answer = self._connections.call_any(self._bootstrap, request, METADATA_VERSION)
        addresses = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
        (topic,) = answer.topics
        if topic.error_code:
            raise RequestRefused(f"topic {self.topic}: {_said(topic.error_code)}")
        leaders = {it.partition_index: addresses.get(it.leader_id) for it in topic.partitions}
        return TopicPlaces(topic.topic_id, dict(sorted(leaders.items())))

    def bounds(self, partition: int) -> tuple[int, int]:
        """The first offset of a partition, and the one behind its last. Raises RequestRefused."""
        first, end = (self._offset(partition, timestamp) for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP))
        return first, end

    def _offset(self, partition: int, timestamp: int) -> int:
        wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=self.topic, partitions=(wanted,)),))
        answer = self._asked(partition, request, LIST_OFFSETS_VERSION, lambda it: it.topics[0].partitions[0])
        return int(answer.offset)

    def batches(self, partition: int, first: int, end: int) -> Iterator[tuple[memoryview, Integers]]:
        """Whole batches from the one with offset `first` on, as far as they begin before `end`: bytes, and a row of
        `BATCH_FIELDS` for each. Raises RequestRefused, CommandFailed."""
        offset, since = first, time.monotonic()
        while offset < end:
            content, rows = whole_batches(self._fetched(partition, offset))
            wanted = (rows[:, 3] >= offset) & (rows[:, 2] < end)
            if not wanted.any():
                if time.monotonic() - since > PATIENCE_SECONDS:
                    raise CommandFailed(
                        f"partition {partition} of {self.topic}: nothing came from offset {offset} on, of {end}"
                    )
                continue
            rows = rows[wanted]
            begin, stop = int(rows[0, 0]), int(rows[-1, 0] + rows[-1, 1])
            rows[:, 0] -= begin
            check_batches(f"partition {partition} of {self.topic}", content[begin:stop], rows)
            yield content[begin:stop], rows
            offset, since = int(rows[-1, 3]) + 1, time.monotonic()

    def _fetched(self, partition: int, offset: int) -> bytes:
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        request = FetchRequest(
            max_wait_ms=FETCH_WAIT_MS, min_bytes=1, max_bytes=FETCH_BYTES,
            topics=(FetchTopic(topic=self.topic, partitions=(wanted,)),),
        )  # fmt: skip
        found = self._asked(partition, request, FETCH_VERSION, lambda it: it.responses[0].partitions[0])
        records = found.records
        if records is None:
            return b""
        return b"".join(map(bytes, records)) if isinstance(records, tuple) else bytes(records)

    def _asked(self, partition: int, request: Any, version: int, part: Callable[[Any], Any]) -> Any:
        """The leader's answer for the partition, tried again where that may help. Raises RequestRefused."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while True:
            leader = self.places.leaders.get(partition)
            why = "it has no leader"
            if leader is not None:
                try:
                    found = part(self._connections.call(leader, request, version))
                except OSError as error:
                    why = f"{leader}: {error.strerror or error}"
                else:
                    if not found.error_code:
                        return found
                    why = _said(found.error_code)
                    if not ErrorCode(found.error_code).retriable:
                        give_up = 0.0
            if time.monotonic() >= give_up:
                raise RequestRefused(f"partition {partition} of {self.topic}: {why}")
            time.sleep(PAUSE_SECONDS)
            with contextlib.suppress(NodeUnreachable):  # none of them now
                self.places = self._places()


def _said(code: int) -> str:
    try:
        return f"{ErrorCode(code).message} ({ErrorCode(code).name})"
    except ValueError:
        return f"error {code}"


def check_batches(where: str, content: memoryview, rows: Integers) -> None:
    """Raises CommandFailed naming `where` and the first batch that fails its CRC."""
    position, length, base, epoch = (numpy.ascontiguousarray(rows[:, at]) for at in (0, 1, 2, 6))
    damaged = first_damaged(content, position.data, length.data, base.data, epoch.data)
    if damaged >= 0:
        raise CommandFailed(f"{where}: the batch with offset {base[damaged]} fails its CRC")


def whole_batches(content: Buffer) -> tuple[memoryview, Integers]:
    """The whole batches at the beginning of an answer, which may end within one."""
    view = memoryview(content)
    rows = numpy.zeros((len(view) // 61 + 1, len(BATCH_FIELDS)), numpy.int64)
    count = walk_batches(view, rows.data.cast("B"))
    if count < 0:
        count = int(numpy.count_nonzero(rows[:, 1]))
    return view, rows[:count]


class PartitionFiles:
    """The directory of one partition, being written: `<topic>-<partition>`, as Kafka names it. It has that name when it
    is whole."""

    def __init__(self, root: Path, topic: str, partition: int, topic_id: UUID, segment_bytes: int) -> None:
        self._root = root
        self._directory = directory_of(root, topic, partition)
        self._partial = self._directory.with_name(self._directory.name + PARTIAL_SUFFIX)
        self._topic = topic
        self._partition = partition
        self._topic_id = topic_id
        self._segment_bytes = segment_bytes
        self._scan = TransactionScan(partition, from_first=True, where=f"partition {partition} of {topic}")
        self._writer: SegmentWriter | None = None
        self._base = self._written = 0
        """Of the segment being written: its first offset, and its bytes."""
        self._epochs: list[tuple[int, int]] = []
        self.segments = self.batches = self.bytes = 0

    def begin(self) -> None:
        """Raises CommandFailed where the directory exists."""
        refuse_existing(self._directory)
        try:
            self._partial.mkdir(parents=True)
        except FileExistsError:
            raise CommandFailed(f"{self._partial} is there: an export that did not end left it; remove it") from None

    def add(self, content: memoryview, rows: Integers) -> None:
        """Append batches. Raises FormatError, OSError."""
        while len(rows):
            count = self._fitting(rows)
            if not count:
                self._end_segment()
                continue
            if self._writer is None:
                self._begin_segment(int(rows[0, 2]))
            assert self._writer is not None
            part = rows[:count].copy()
            begin, stop = int(part[0, 0]), int(part[-1, 0] + part[-1, 1])
            part[:, 0] -= begin
            self._writer.append(content[begin:stop], described(part, self._partition), part)
            self._scan.add(content[begin:stop], part)
            self._note_epochs(part)
            self._written += stop - begin
            self.bytes += stop - begin
            self.batches += count
            rows = rows[count:]

    def finish(self, first: int) -> None:
        """Make the directory whole, and give it its name. `first`: the first offset of the partition."""
        if not self.segments and self._writer is None:
            self._begin_segment(first)
        self._end_segment()
        for name, text in (
            ("leader-epoch-checkpoint", _checkpoint(self._epochs)),
            ("partition.metadata", f"version: 0\ntopic_id: {kafka_id(self._topic_id)}\n"),
        ):
            target = LocalRunTarget(self._partial, name)
            target.write(text.encode())
            target.finish()
        refuse_existing(self._directory)
        os.rename(self._partial, self._directory)
        descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def abandon(self) -> None:
        """Let go of a segment that is being written; the partial directory stays, with the segments before it."""
        if self._writer is not None:
            self._writer.__exit__(None, None, None)
            self._writer = None

    def _fitting(self, rows: Integers) -> int:
        """How many batches go into the segment being written; a new one takes one at least."""
        base = self._base if self._writer is not None else int(rows[0, 2])
        written = self._written if self._writer is not None else 0
        room = numpy.cumsum(rows[:, 1]) + written <= min(self._segment_bytes, OFFSETS_MAX)
        near = rows[:, 3] - base <= OFFSETS_MAX
        count = int((room & near).argmin()) if not (room & near).all() else len(rows)
        return max(count, 1) if self._writer is None else count

    def _begin_segment(self, base: int) -> None:
        name = f"{self._topic}/{self._partition}/export/{base:020d}{SEGMENT_SUFFIX}"

        def open_sibling(suffix: str) -> RunTarget:
            return NoTarget() if suffix == EXTENTS_SUFFIX else LocalRunTarget(self._partial, f"{base:020d}{suffix}")

        self._writer = SegmentWriter(name, base, open_sibling)
        self._base, self._written = base, 0

    def _end_segment(self) -> None:
        if self._writer is not None:
            self._writer.finish()
            self._writer = None
            self.segments += 1
            self._write_aborted()

    def _write_aborted(self) -> None:
        """Write Kafka's `.txnindex` beside a segment that has markers of aborted transactions."""
        rows = self._scan.rows()
        rows = rows[(rows["producer_id"] != NO_PRODUCER) & (rows["last_offset"] >= self._base)]
        if not len(rows):
            return
        entries = numpy.zeros(len(rows), TRANSACTION_ENTRY)
        for field in ("producer_id", "first_offset", "last_offset", "last_stable_offset"):
            entries[field] = rows[field]
        target = LocalRunTarget(self._partial, f"{self._base:020d}{TRANSACTION_INDEX_SUFFIX}")
        target.write(entries.tobytes())
        target.finish()

    def _note_epochs(self, rows: Integers) -> None:
        """Epochs with the first offset of each."""
        for at in numpy.flatnonzero(numpy.diff(rows[:, 6], prepend=self._epochs[-1][0] if self._epochs else -1) > 0):
            self._epochs.append((int(rows[at, 6]), int(rows[at, 2])))


def directory_of(root: Path, topic: str, partition: int) -> Path:
    return root / f"{topic}-{partition}"


def refuse_existing(directory: Path) -> None:
    """Raises CommandFailed."""
    if directory.exists():
        raise CommandFailed(f"{directory} is there already; nothing is written over")


def kafka_id(topic_id: UUID) -> str:
    """A topic's id as Kafka writes it."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def _checkpoint(epochs: list[tuple[int, int]]) -> str:
    """Kafka's `leader-epoch-checkpoint`: version, number of entries, entries."""
    return "\n".join(["0", str(len(epochs)), *(f"{epoch} {offset}" for epoch, offset in epochs)]) + "\n"


def export_partition(
    source: PartitionSource, partition: int, root: Path, segment_bytes: int, told: Callable[[int], None]
) -> Written:
    """Write one partition, up to its end as of now. `told` hears of bytes that were written. Raises CommandLineError,
    FormatError, OSError."""
    first, end = source.bounds(partition)
    files = PartitionFiles(root, source.topic, partition, source.topic_id, segment_bytes)
    files.begin()
    try:
        last = first
        for content, rows in source.batches(partition, first, end):
            files.add(content, rows)
            last = int(rows[-1, 3]) + 1
            told(len(content))
        files.finish(first)
    finally:
        files.abandon()
    directory = directory_of(root, source.topic, partition)
    return Written(partition, str(directory), first, last, files.segments, files.batches, files.bytes)
