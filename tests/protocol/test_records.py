"""Record batches against the builders and readers of aiokafka and kafka-python, and their rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy, _DefaultRecordBatchPy
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from tests.examples import examples
from tests.protocol.kafka_records import records_of, seen_by_others

from mainstem.kernel.batch_header import ATTRIBUTES_AT, CHECKSUM_AT, HEADER_BYTES
from mainstem.protocol.errors import CorruptBatch, ProtocolError, UnsupportedCompression, UnsupportedMagic
from mainstem.protocol.records import (
    Compression,
    ControlRecord,
    ControlType,
    NewBatch,
    NewRecord,
    Record,
    StoredBatch,
    TimestampType,
    build_batch,
    build_control_batch,
    read_batch_header,
    read_control,
    read_records,
    restamp,
    stamp_log_append_time,
    stored_batches,
    verify_checksum,
    walk_batches,
)
from mainstem.protocol.records.batch import crc32c

NOW = 1_700_000_000_000

optional_bytes = st.none() | st.binary(max_size=30)
new_records = st.builds(
    NewRecord,
    timestamp=st.integers(NOW - 10_000, NOW + 10_000),
    key=optional_bytes,
    value=optional_bytes,
    headers=st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), optional_bytes), max_size=3
    ).map(tuple),
)
record_lists = st.lists(new_records, min_size=1, max_size=8)
compressions = st.sampled_from(list(Compression))


def with_offsets(records: Sequence[NewRecord], base_offset: int = 0) -> list[Record]:
    return [
        Record(base_offset + delta, record.timestamp, record.key, record.value, record.headers)
        for delta, record in enumerate(records)
    ]


def simple(*timestamps: int, compression: Compression = Compression.NONE) -> NewBatch:
    return build_batch([NewRecord(time, None, b"value") for time in timestamps], compression=compression)


def with_checksum(data: bytearray) -> bytearray:
    data[CHECKSUM_AT : CHECKSUM_AT + 4] = crc32c(data, ATTRIBUTES_AT).to_bytes(4, "big")
    return data


def built_by_another(builder: type[Any], records: Sequence[NewRecord], compression: Compression) -> bytes:
    batch = builder(
        magic=2,
        compression_type=int(compression),
        is_transactional=True,
        producer_id=77,
        producer_epoch=3,
        base_sequence=11,
        batch_size=1 << 20,
    )
    for delta, record in enumerate(records):
        assert batch.append(delta, record.timestamp, record.key, record.value, list(record.headers))
    return bytes(batch.build())


@given(records=record_lists, compression=compressions)
@settings(max_examples=60, deadline=None)
def test_others_read_what_we_build(records: list[NewRecord], compression: Compression) -> None:
    batch = build_batch(
        records,
        compression=compression,
        producer_id=77,
        producer_epoch=3,
        base_sequence=11,
        transactional=True,
    )
    assert NewBatch.parse(batch.data) == batch
    assert list(read_records(batch)) == with_offsets(records)
    for theirs in seen_by_others(batch.data, compression):
        assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (77, 3, 11)
        assert theirs.is_transactional
        assert theirs.max_timestamp == batch.header.max_timestamp
        assert records_of(theirs) == with_offsets(records)


@given(records=record_lists, compression=compressions)
@settings(max_examples=60, deadline=None)
def test_we_read_what_others_build(records: list[NewRecord], compression: Compression) -> None:
    builders = [_DefaultRecordBatchBuilderPy]
    if compression in (Compression.NONE, Compression.GZIP):
        builders.append(DefaultRecordBatchBuilder)
    for builder in builders:
        batch = NewBatch.parse(built_by_another(builder, records, compression))
        assert list(read_records(batch)) == with_offsets(records)
        header = batch.header
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 11)
        assert header.is_transactional
        assert not header.is_control


@given(records=record_lists)
@settings(max_examples=40, deadline=None)
def test_uncompressed_batches_are_byte_identical(records: list[NewRecord]) -> None:
    ours = build_batch(records, producer_id=77, producer_epoch=3, base_sequence=11, transactional=True)
    theirs = bytearray(built_by_another(DefaultRecordBatchBuilder, records, Compression.NONE))
    restamp(theirs, 0, -1)
    assert bytes(ours.data) == bytes(theirs)


@pytest.mark.parametrize("compression", list(Compression))
def test_large_batches_of_every_compression(compression: Compression) -> None:
    records = [NewRecord(NOW, b"%d" % index, bytes(1000) + b"%d" % index) for index in range(500)]
    batch = build_batch(records, compression=compression)
    theirs = built_by_another(_DefaultRecordBatchBuilderPy, records, compression)
    assert list(read_records(batch)) == with_offsets(records)
    assert list(read_records(NewBatch.parse(theirs))) == with_offsets(records)
    assert [bytes(item.value) for item in _DefaultRecordBatchPy(bytearray(batch.data))] == [
        record.value for record in records
    ]


def test_a_known_header() -> None:
    header = read_batch_header(simple(NOW, NOW + 5).data)
    assert header.base_offset == 0
    assert header.size_bytes == header.length + 12
    assert (header.record_count, header.last_offset_delta) == (2, 1)
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 5)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.compression, header.timestamp_type) == (Compression.NONE, TimestampType.CREATE_TIME)


def test_stamping_leaves_the_checksum_valid() -> None:
    batch = simple(NOW, NOW, NOW)
    stored = batch.stored(1000, 7)
    assert (stored.header.base_offset, stored.header.leader_epoch) == (1000, 7)
    assert StoredBatch.parse(stored.data) == stored
    assert (stored.header.last_offset, stored.header.next_offset) == (1002, 1003)
    verify_checksum(stored.data, stored.header)
    assert [record.offset for record in read_records(stored)] == [1000, 1001, 1002]
    assert batch.header.base_offset == 0


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_log_append_time(compression: Compression) -> None:
    data = bytearray(simple(NOW, NOW + 5, compression=compression).data)
    stamp_log_append_time(memoryview(data), NOW + 99)
    batch = NewBatch.parse(data)
    assert batch.header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert batch.header.compression is compression
    assert [record.timestamp for record in read_records(batch)] == [NOW + 99, NOW + 99]
    theirs = _DefaultRecordBatchPy(bytearray(data))
    assert theirs.validate_crc()
    assert [record.timestamp for record in theirs] == [NOW + 99, NOW + 99]


def test_control_batches() -> None:
    batch = build_control_batch(ControlType.COMMIT, timestamp=NOW, producer_id=5, producer_epoch=1, coordinator_epoch=9)
    assert batch.header.is_control
    assert batch.header.is_transactional
    (record,) = read_records(batch)
    assert read_control(record) == ControlRecord(ControlType.COMMIT, 9)
    theirs = DefaultRecordBatch(bytearray(batch.data))
    assert theirs.is_control_batch
    assert next(theirs).commit
    assert read_control(Record(0, 0, b"\x00\x00\x00\x09", None)).type is None
    for key, value in ((None, b""), (b"\x00", b""), (b"\x00\x00\x00\x01", b"\x00")):
        with pytest.raises(CorruptBatch):
            read_control(Record(0, 0, key, value))


def test_walking_a_concatenation() -> None:
    batches = [simple(NOW).stored(0, 0), simple(NOW, NOW).stored(1, 0), simple(NOW).stored(3, 1)]
    joined = b"".join(bytes(batch.data) for batch in batches)
    assert list(stored_batches(joined)) == batches
    assert [position for position, _ in walk_batches(joined)] == [
        0,
        len(batches[0].data),
        len(batches[0].data) + len(batches[1].data),
    ]
    last = len(joined) - len(batches[2].data)
    for end in range(last + 1, len(joined)):
        assert list(stored_batches(joined[:end], partial_last=True)) == batches[:2]
        with pytest.raises(CorruptBatch):
            list(stored_batches(joined[:end]))


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_have_their_own_error(magic: int) -> None:
    old = bytes(16) + bytes([magic]) + bytes(10)
    with pytest.raises(UnsupportedMagic) as caught:
        read_batch_header(old)
    assert caught.value.magic == magic


def test_a_magic_from_the_future() -> None:
    with pytest.raises(CorruptBatch, match="unknown record format 3"):
        read_batch_header(bytes(16) + b"\x03" + bytes(60))


def test_a_lying_count() -> None:
    data = bytearray(simple(NOW, NOW).data)
    data[57:61] = (3).to_bytes(4, "big")
    with pytest.raises(CorruptBatch, match=r"3 records cannot end at offset \+1"):
        NewBatch.parse(with_checksum(data))


def test_a_record_too_few_or_too_many() -> None:
    for count, what in ((1, "bytes follow the last record"), (3, "ends early")):
        data = bytearray(simple(NOW, NOW).data)
        data[23:27] = (count - 1).to_bytes(4, "big")
        data[57:61] = count.to_bytes(4, "big")
        batch = NewBatch.parse(with_checksum(data))
        with pytest.raises(CorruptBatch, match=what):
            list(read_records(batch))


def test_bytes_around_a_batch() -> None:
    data = bytes(simple(NOW).data)
    for parse in (NewBatch.parse, StoredBatch.parse):
        with pytest.raises(CorruptBatch, match="2 bytes follow"):
            parse(data + b"xx")
    for size in range(len(data)):
        with pytest.raises(CorruptBatch):
            NewBatch.parse(data[:size])


def test_every_flipped_bit_is_noticed() -> None:
    """All that a producer's batch consists of, except its base offset and leader epoch, is protected."""
    data = bytes(simple(NOW).data)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 0x10
        if position < 8 or 12 <= position < 16:
            assert NewBatch.parse(flipped).header.checksum == read_batch_header(data).checksum
        else:
            with pytest.raises(ProtocolError):
                NewBatch.parse(flipped)


def test_an_unknown_compression() -> None:
    data = bytearray(simple(NOW).data)
    data[22] = 5
    batch = NewBatch.parse(with_checksum(data))
    with pytest.raises(UnsupportedCompression, match="no compression 5"):
        list(read_records(batch))


@given(
    records=record_lists,
    compression=compressions,
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4),
)
@settings(max_examples=examples(200), deadline=None)
def test_damaged_records_raise_protocol_errors_only(
    records: list[NewRecord], compression: Compression, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(build_batch(records, compression=compression).data)
    for position, value in changes:
        data[HEADER_BYTES + position % (len(data) - HEADER_BYTES)] = value
    batch = NewBatch.parse(with_checksum(data))
    try:
        list(read_records(batch, bytes_max=1 << 20))
    except ProtocolError:
        pass


@given(noise=st.binary(max_size=150))
@settings(max_examples=examples(100), deadline=None)
def test_noise_behind_a_valid_header(noise: bytes) -> None:
    data = bytearray(HEADER_BYTES) + noise
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[16] = 2
    data[22] = len(noise) % 5
    data[57:61] = (1).to_bytes(4, "big")
    batch = NewBatch.parse(with_checksum(data))
    try:
        list(read_records(batch, bytes_max=1 << 20))
    except ProtocolError:
        pass


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 200_000])
def test_the_checksum_of_any_size_and_kind_of_buffer(size: int) -> None:
    data = bytes(index * 7 % 256 for index in range(size))
    expected = crc32c(data)
    assert crc32c(memoryview(bytearray(data))) == expected
    assert crc32c(b"head" + data, 4) == expected


def test_a_known_checksum() -> None:
    assert crc32c(b"123456789") == 0xE3069283
