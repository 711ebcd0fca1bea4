"""The remainder of batches, against a plain model of compaction and against the readers of other clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.protocol.kafka_records import records_of, seen_by_others
from tests.storage.compacting.histories import HISTORIES, NOW, content_of, latest, resealed, stored, tell

from mainstem.kernel.batch_header import CHECKED_FROM, DELETE_HORIZON_BIT, HEADER_BYTES
from mainstem.protocol.errors import ProtocolError
from mainstem.protocol.records import (
    Compression,
    NewBatch,
    NewRecord,
    Record,
    StoredBatch,
    TimestampType,
    build_batch,
    read_records,
    stored_batches,
    verify_checksum,
)
from mainstem.protocol.records.batch import crc32c
from mainstem.storage.compacting.kept import Kept
from mainstem.storage.compacting.key_rows import scan_keys
from mainstem.storage.compacting.rewrite import Rewritten, rewrite
from mainstem.storage.compacting.window import NOT_JUDGED, Window
from mainstem.storage.errors import FormatError
from mainstem.storage.store_files.store_file import NO_HORIZON

QUEUE = 7 << 32
HORIZON = NOW + 86_400_000
FAR = 1 << 60


def compact(content: bytes, kept: set[int], end: int = FAR, horizon: int = HORIZON) -> Rewritten:
    """One queue's batches."""
    offsets = numpy.array(sorted(kept), numpy.int64)
    chosen = Kept(numpy.full(len(offsets), QUEUE, numpy.uint64), offsets)
    batches = Window.of(content).batches
    count = len(batches)
    rulings = chosen.rulings(
        batches,
        numpy.full(count, QUEUE, numpy.uint64),
        numpy.full(count, end, numpy.int64),
        numpy.full(count, horizon, numpy.int64),
    )
    return rewrite(content, chosen.offsets, rulings)


def read_by_others(content: bytes) -> list[Record]:
    """All records, as aiokafka reads them, and kafka-python where it has the codecs."""
    found: list[Record] = []
    for batch in stored_batches(content):
        theirs = seen_by_others(batch.data, batch.header.compression)
        assert all(it.base_offset == batch.header.base_offset for it in theirs)
        seen = list(map(records_of, theirs))
        assert all(records == seen[0] for records in seen)
        found += seen[0]
    return found


def check_batches(before: Sequence[StoredBatch], made: Rewritten, end: int, horizon: int) -> None:
    """The form that each batch took, header by header."""
    content = bytes(made.content)
    assert made.batches.tolist() == Window.of(content).batches.tolist()
    after = dict(zip(made.sources.tolist(), stored_batches(content), strict=True))
    assert list(after) == sorted(after)
    for number, old in enumerate(before):
        new = after.get(number)
        if new is None:
            assert old.header.record_count > 0
            assert not old.header.is_control
            continue
        verify_checksum(new.data, new.header)
        left = list(read_records(new))
        judged = not old.header.is_control and old.header.last_offset < end
        had_horizon = bool(old.header.attributes & DELETE_HORIZON_BIT)
        tombstones = any(record.key is not None and record.value is None for record in left)
        marked = judged and tombstones and not had_horizon and horizon != NO_HORIZON
        if len(left) == old.header.record_count and not marked:
            assert bytes(new.data) == bytes(old.data)
            continue
        assert left
        assert new.header == old.header._replace(
            length=new.header.length,
            checksum=new.header.checksum,
            attributes=old.header.attributes | (DELETE_HORIZON_BIT if marked else 0),
            base_timestamp=horizon if marked else old.header.base_timestamp,
            max_timestamp=max(record.timestamp for record in left),
            record_count=len(left),
        )
        if new.header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            assert new.header.max_timestamp == old.header.max_timestamp


@given(history=HISTORIES, data=st.data(), horizon=st.sampled_from([HORIZON, NOW - 5, 0, NO_HORIZON]))
@settings(max_examples=examples(300), deadline=None)
def test_what_is_left_is_what_the_model_leaves(history: list[StoredBatch], data: st.DataObject, horizon: int) -> None:
    content = content_of(history)
    ends = [batch.header.base_offset for batch in history]
    end = data.draw(st.sampled_from([*ends, FAR]))
    kept = latest(content, end, NOW)
    made = compact(content, kept, end, horizon)
    expected = [
        told.record
        for told in tell(content)
        if told.control or told.record.key is None or told.record.offset >= end or told.record.offset in kept
    ]
    left = [told.record for told in tell(bytes(made.content))]
    assert left == expected
    assert read_by_others(bytes(made.content)) == expected
    assert made.dropped_records == len(list(tell(content))) - len(expected)
    check_batches(history, made, end, horizon)
    again = compact(bytes(made.content), kept, end, horizon + 1 if horizon >= 0 else horizon)
    assert bytes(again.content) == bytes(made.content), "nothing is left to be done, and horizons stay"


@given(history=HISTORIES)
@settings(max_examples=examples(100), deadline=None)
def test_tombstones_go_when_their_time_is_over_and_not_before(history: list[StoredBatch]) -> None:
    content = content_of(history)
    once = bytes(compact(content, latest(content, FAR, NOW)).content)
    assert bytes(compact(once, latest(once, FAR, HORIZON - 1), horizon=FAR).content) == once
    late = bytes(compact(once, latest(once, FAR, HORIZON), horizon=FAR).content)
    gone = [told.record for told in tell(once) if told.tombstone and not told.control]
    assert [told.record for told in tell(late)] == [told.record for told in tell(once) if told.record not in gone]
    for told in tell(late):
        assert told.horizon in (-1, HORIZON)


@given(
    histories=st.lists(HISTORIES, min_size=1, max_size=4),
    ends=st.lists(st.integers(100, 140), min_size=4, max_size=4),
)
@settings(max_examples=examples(100), deadline=None)
def test_batches_of_several_queues_in_one_window(histories: list[list[StoredBatch]], ends: list[int]) -> None:
    contents = [content_of(history) for history in histories]
    kept = [sorted(latest(content, end, NOW)) for content, end in zip(contents, ends, strict=False)]
    queue_ids = [3 << 32 | number for number in range(len(histories))]
    chosen = Kept(
        numpy.repeat(numpy.array(queue_ids, numpy.uint64), [len(offsets) for offsets in kept]),
        numpy.array([offset for offsets in kept for offset in offsets], numpy.int64),
    )
    counts = [len(history) for history in histories]
    content = b"".join(contents)
    columns = [
        numpy.repeat(numpy.array(column), counts)
        for column in (ends[: len(counts)], [HORIZON + number for number in range(len(counts))])
    ]
    rulings = chosen.rulings(
        Window.of(content).batches, numpy.repeat(numpy.array(queue_ids, numpy.uint64), counts), *columns
    )
    made = rewrite(content, chosen.offsets, rulings)
    apart = [
        compact(one, set(offsets), end, HORIZON + number)
        for number, (one, offsets, end) in enumerate(zip(contents, kept, ends, strict=False))
    ]
    assert bytes(made.content) == b"".join(bytes(one.content) for one in apart)
    assert made.dropped_records == sum(one.dropped_records for one in apart)
    firsts = [sum(counts[:number]) for number in range(len(counts))]
    assert made.sources.tolist() == [
        first + source for first, one in zip(firsts, apart, strict=True) for source in one.sources.tolist()
    ]


@pytest.mark.parametrize("compression", list(Compression))
def test_a_batch_from_which_everything_goes_is_left_out(compression: Compression) -> None:
    batches = [build_batch([NewRecord(NOW, b"k", b"v")] * 3, compression=compression) for _ in range(3)]
    made = compact(content_of(stored(batches)), {108})
    assert [told.record.offset for told in tell(bytes(made.content))] == [108]
    assert (made.sources.tolist(), made.dropped_records) == ([2], 8)
    none = compact(content_of(stored(batches)), set())
    assert (bytes(none.content), none.batches.shape, none.dropped_records) == (b"", (0, 7), 9)


@pytest.mark.parametrize("compression", list(Compression))
def test_a_batch_that_was_not_what_was_scanned_is_named(compression: Compression) -> None:
    batches = stored([build_batch([NewRecord(NOW, b"k", b"v")] * 3, compression=compression) for _ in range(2)])
    content = content_of(batches)
    size = len(batches[0].data)
    rulings = numpy.array([[NOT_JUDGED, 0, -1], [0, 2, -1]])
    with pytest.raises(FormatError, match=f"byte {size} .* offsets 103 to 105"):
        rewrite(content, numpy.array([103, 106]), rulings)
    damaged = bytearray(content)
    damaged[size + 17] ^= 1  # the checksum
    with pytest.raises(FormatError, match=f"byte {size} .* fails its checksum"):
        compact(bytes(damaged), {100, 101, 102, 103})


@pytest.mark.parametrize("compression", list(Compression))
def test_a_batch_that_cannot_be_read_stays(compression: Compression) -> None:
    bad = bytearray(build_batch([NewRecord(NOW, b"k", b"v")] * 3, compression=compression).data)
    bad[23:27], bad[57:61] = (1).to_bytes(4, "big"), (2).to_bytes(4, "big")  # it says two records, and has three
    good = build_batch([NewRecord(NOW, b"k", b"v")], compression=compression)
    history = stored([good, NewBatch.parse(resealed(bad)), good])
    made = compact(content_of(history), set())
    assert bytes(made.content) == bytes(history[1].data)
    assert made.sources.tolist() == [1]
    with pytest.raises(FormatError, match=f"byte {len(good.data)} "):
        compact(content_of(history), {102})


def whole(batch: StoredBatch) -> bool:
    return crc32c(batch.data, CHECKED_FROM) == batch.header.checksum


@given(
    history=HISTORIES.filter(bool),
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4),
    sealed=st.booleans(),
)
@settings(max_examples=examples(300), deadline=None)
def test_of_records_that_a_client_made_up_nothing_is_lost(
    history: list[StoredBatch], changes: list[tuple[int, int]], sealed: bool
) -> None:
    """Records are damaged, and as a client would have it the checksums are right (`sealed`); or they are not, as on a
    disk that went bad, and then no batch that changes gets a right one."""
    content = bytearray()
    for batch in history:
        data = bytearray(batch.data)
        for at, value in changes:
            if len(data) > HEADER_BYTES:
                data[HEADER_BYTES + at % (len(data) - HEADER_BYTES)] = value
        content += resealed(data) if sealed else data
    last: dict[tuple[int, int], int] = {}
    for piece in scan_keys(content, bytes(16)):
        for offset, high, low, kind in piece.rows.tolist():
            if kind < 2:
                last[high, low] = offset
    kept = set(last.values())
    damaged = [batch for batch in stored_batches(bytes(content)) if not whole(batch)]
    assert not (sealed and damaged)
    try:
        made = compact(bytes(content), kept)
    except FormatError:
        assert damaged
        return
    after = dict(zip(made.sources.tolist(), stored_batches(bytes(made.content)), strict=True))
    for number, old in enumerate(stored_batches(bytes(content))):
        try:
            decoded = list(read_records(old))
        except ProtocolError:
            if number in after and bytes(after[number].data) == bytes(old.data):
                continue  # it stays as it is
            with pytest.raises(ProtocolError, match="UTF-8"):  # of a header's name, which compaction does not look at
                list(read_records(old))
            continue
        if number not in after:
            assert all(record.key is not None and record.offset not in kept for record in decoded)
        elif bytes(after[number].data) != bytes(old.data):
            left = [record for record in decoded if record.key is None or record.offset in kept]
            assert list(read_records(after[number])) == left
            verify_checksum(after[number].data, after[number].header)
