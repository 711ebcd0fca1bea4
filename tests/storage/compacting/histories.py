"""Histories of queues as producers make them, and what compaction leaves of them by a plain model: all records decoded,
and sorted out by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from mainstem.kernel.batch_header import CHECKED_FROM, CHECKSUM_AT, DELETE_HORIZON_BIT
from mainstem.protocol.records import (
    Compression,
    ControlType,
    NewBatch,
    NewRecord,
    Record,
    StoredBatch,
    build_batch,
    build_control_batch,
    build_empty_batch,
    read_records,
    stamp_log_append_time,
    stored_batches,
)
from mainstem.protocol.records.batch import crc32c

NOW = 1_700_000_000_000

RECORDS = st.builds(
    NewRecord,
    timestamp=st.integers(NOW - 10_000, NOW + 10_000),
    key=st.none() | st.sampled_from([b"", b"a", b"b", b"c", b"a longer key than the others"]),
    value=st.none() | st.binary(max_size=30),
    headers=st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), st.none() | st.binary(max_size=6)),
        max_size=2,
    ).map(tuple),
)


def _stamped(batch: NewBatch, time: int) -> NewBatch:
    data = bytearray(batch.data)
    stamp_log_append_time(data, time)
    return NewBatch.parse(data)


_DATA = st.builds(
    lambda records, compression, producer, transactional: build_batch(
        records,
        compression=compression,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=transactional,
    ),
    st.lists(RECORDS, min_size=1, max_size=8),
    st.sampled_from(list(Compression)),
    st.sampled_from([(-1, -1, -1), (77, 3, 11), (2**40, 0, 2**31 - 1)]),
    st.booleans(),
)
_CONTROL = st.builds(
    lambda time: build_control_batch(
        ControlType.COMMIT, timestamp=time, producer_id=5, producer_epoch=1, coordinator_epoch=9
    ),
    st.integers(NOW, NOW + 1000),
)
BATCHES = st.lists(
    _DATA
    | _DATA
    | _DATA
    | st.builds(_stamped, _DATA, st.integers(NOW, NOW + 1000))
    | _CONTROL
    | st.builds(build_empty_batch),
    max_size=8,
)
HISTORIES = st.builds(
    lambda batches, gaps: stored(batches, gaps),
    BATCHES,
    st.lists(st.integers(0, 3), min_size=8, max_size=8),
)


def stored(batches: Sequence[NewBatch], gaps: Sequence[int] = (), first: int = 100) -> list[StoredBatch]:
    """The batches behind each other, with so many offsets left out before each."""
    made: list[StoredBatch] = []
    offset = first
    for number, batch in enumerate(batches):
        offset += gaps[number] if gaps else 0
        made.append(batch.stored(offset, number // 2))
        offset = made[-1].header.next_offset
    return made


def content_of(batches: Sequence[StoredBatch]) -> bytes:
    return b"".join(bytes(batch.data) for batch in batches)


def resealed(data: bytearray) -> bytes:
    """The batch with a right checksum."""
    data[CHECKSUM_AT : CHECKSUM_AT + 4] = crc32c(data, CHECKED_FROM).to_bytes(4, "big")
    return bytes(data)


class Told(NamedTuple):
    """A record, and what its batch says of it."""

    record: Record
    control: bool
    horizon: int

    @property
    def tombstone(self) -> bool:
        return self.record.key is not None and self.record.value is None


def tell(content: bytes) -> Iterator[Told]:
    for batch in stored_batches(content):
        horizon = batch.header.base_timestamp if batch.header.attributes & DELETE_HORIZON_BIT else -1
        for record in read_records(batch):
            yield Told(record, batch.header.is_control, horizon)


def latest(content: bytes, end: int, now: int) -> set[int]:
    """The offsets of the records with keys that stay of those below `end`: the last of each key, unless it is a
    tombstone whose time is over."""
    last: dict[bytes, Told] = {}
    for told in tell(content):
        if not told.control and told.record.key is not None and told.record.offset < end:
            last[told.record.key] = told
    return {told.record.offset for told in last.values() if not (told.tombstone and 0 <= told.horizon <= now)}
