"""The rows that are made of records' keys, against decoding all of them."""

from __future__ import annotations

import tracemalloc

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.storage.compacting.histories import HISTORIES, NOW, content_of, resealed, stored, tell

from mainstem.kernel import RecordKind, keyed_hash
from mainstem.kernel.batch_header import ATTRIBUTES_AT, HEADER_BYTES
from mainstem.protocol.errors import ProtocolError
from mainstem.protocol.records import Compression, NewBatch, NewRecord, StoredBatch, build_batch, walk_batches
from mainstem.storage.compacting.key_rows import KEY_ROW, scan_keys
from mainstem.storage.errors import FormatError

HASH_KEY = b"0123456789abcdef"


@given(history=HISTORIES, rows_max=st.sampled_from([1, 5, 1 << 18]))
@settings(max_examples=examples(150), deadline=None)
def test_every_record_has_its_row(history: list[StoredBatch], rows_max: int) -> None:
    content = content_of(history)
    pieces = list(scan_keys(content, HASH_KEY, rows_max))
    rows = numpy.concatenate([numpy.empty(0, KEY_ROW), *(piece.rows for piece in pieces)])
    expected = []
    for told in tell(content):
        key, kind = told.record.key, RecordKind.VALUE
        if told.control:
            key, kind = None, RecordKind.CONTROL
        elif key is None:
            kind = RecordKind.NO_KEY
        elif told.record.value is None:
            kind = RecordKind.TOMBSTONE
        expected.append((told.record.offset, *((0, 0) if key is None else keyed_hash(HASH_KEY, key)), kind))
    assert rows.tolist() == expected
    counts = [count for piece in pieces for count in piece.counts.tolist()]
    assert counts == [batch.header.record_count for batch in history]
    assert [piece.first_batch for piece in pieces] == numpy.cumsum([0, *(len(piece.counts) for piece in pieces)])[
        :-1
    ].tolist()
    assert all(len(piece.rows) <= rows_max or len(piece.counts) == 1 for piece in pieces)
    assert all((piece.horizons == -1).all() for piece in pieces)
    assert not any(piece.unreadable for piece in pieces)


def test_two_keys_are_told_apart_and_the_hash_depends_on_its_key() -> None:
    batch = build_batch([NewRecord(NOW, key, b"v") for key in (b"a", b"b", b"a")]).stored(0, 0)
    (piece,) = scan_keys(batch.data, HASH_KEY)
    (other,) = scan_keys(batch.data, HASH_KEY[::-1])
    hashes, others = ([row[1:3] for row in one.rows.tolist()] for one in (piece, other))
    assert hashes[0] == hashes[2] != hashes[1]
    assert not set(hashes) & set(others)


@pytest.mark.parametrize("compression", list(Compression))
def test_records_that_cannot_be_read_have_no_rows(compression: Compression) -> None:
    good = build_batch([NewRecord(NOW, b"k", b"v")], compression=compression)
    bad = bytearray(build_batch([NewRecord(NOW, b"k", b"v")] * 3, compression=compression).data)
    bad[23:27], bad[57:61] = (1).to_bytes(4, "big"), (2).to_bytes(4, "big")  # it says two records, and has three
    history = stored([good, NewBatch.parse(resealed(bad)), good])
    pieces = list(scan_keys(content_of(history), HASH_KEY))
    assert [count for piece in pieces for count in piece.counts.tolist()] == [1, 0, 1]
    assert [offset for piece in pieces for offset in piece.rows["offset"].tolist()] == [100, 103]
    assert sum(piece.unreadable for piece in pieces) == 1


def test_a_compression_that_does_not_exist_hides_the_records() -> None:
    data = bytearray(build_batch([NewRecord(NOW, b"k", b"v")]).data)
    data[ATTRIBUTES_AT + 1] = 6
    (piece,) = scan_keys(resealed(data), HASH_KEY)
    assert (len(piece.rows), piece.counts.tolist(), piece.unreadable) == (0, [0], 1)


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.LZ4, Compression.ZSTD, Compression.SNAPPY])
def test_a_batch_that_inflates_to_too_much_takes_no_memory(compression: Compression) -> None:
    records = [NewRecord(NOW, b"k", bytes(1 << 20))] * 70
    data = bytes(build_batch(records, compression=compression).data)
    tracemalloc.start()
    try:
        (piece,) = scan_keys(data, HASH_KEY)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(piece.rows), piece.unreadable) == (0, 1)
    assert peak < 100 << 20


@given(
    history=HISTORIES.filter(bool),
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 200),
    fixed=st.booleans(),
)
@settings(max_examples=examples(200), deadline=None)
def test_damaged_bytes_are_refused_by_position_or_their_records_left_out(
    history: list[StoredBatch], changes: list[tuple[int, int]], cut: int, fixed: bool
) -> None:
    """`fixed`: only records are damaged, as a client may send them."""
    content = bytearray(content_of(history))
    starts = [position for position, _ in walk_batches(content)]
    for at, value in changes:
        place = at % len(content)
        if not fixed or place - max(start for start in starts if start <= place) >= HEADER_BYTES:
            content[place] = value
    if not fixed:
        content = content[: max(len(content) - cut, 0)]
    try:
        list(walk_batches(content))
    except ProtocolError:
        with pytest.raises(FormatError, match=r"byte \d+"):
            list(scan_keys(content, HASH_KEY))
        return
    pieces = list(scan_keys(content, HASH_KEY))
    for piece in pieces:
        assert len(piece.rows) == piece.counts.sum()
    if fixed:
        assert sum(len(piece.counts) for piece in pieces) == len(history)


@pytest.mark.parametrize(("at", "value"), [(16, 1), (16, 3), (8, 0x80), (11, 1), (57, 0x80), (23, 0x80)])
def test_what_is_no_batch_is_named_by_its_position(at: int, value: int) -> None:
    batch = build_batch([NewRecord(NOW, b"k", b"v")]).stored(0, 0)
    content = bytearray(bytes(batch.data) * 2)
    content[len(batch.data) + at] = value
    with pytest.raises(FormatError, match=rf"byte {len(batch.data)}\b"):
        list(scan_keys(content, HASH_KEY))


def test_horizons_are_told() -> None:
    batches = []
    for marked in (False, True, False, True):
        data = bytearray(build_batch([NewRecord(NOW, b"k", None)]).data)
        if marked:
            data[ATTRIBUTES_AT + 1] |= 0x40
        batches.append(NewBatch.parse(resealed(data)))
    (piece,) = scan_keys(content_of(stored(batches)), HASH_KEY)
    assert piece.horizons.tolist() == [-1, NOW, -1, NOW]
    assert not list(scan_keys(b"", HASH_KEY))
