"""Bytes of the metadata log: at every byte, a torn end is cut off and damage is refused where it lies."""

from __future__ import annotations

import random

import pytest

from mainstem.nameserver.disk.log_format import (
    FILE_HEADER_BYTES,
    KIND_LOG,
    KIND_SNAPSHOT,
    PAYLOAD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    LogRecordKind,
    encode_file_header,
    encode_mark,
    encode_record,
    read_log,
    read_snapshot,
)
from mainstem.nameserver.errors import MetadataCorrupt

PAYLOADS = [b"first", b"x" * 40, b"\xf5MR\x1a looks like a record", b"a", b"last one"]
FIRST = 7


def small_log(payloads: list[bytes]) -> tuple[bytes, list[int]]:
    """A log whose writer forced each record, without the mark at its end; and where each record starts."""
    data = bytearray(encode_file_header(KIND_LOG, FIRST))
    starts = []
    for index, payload in enumerate(payloads):
        starts.append(len(data))
        data += encode_record(len(data), FIRST + index, len(data), payload, term=3)
    return bytes(data), starts


def mark(data: bytes) -> bytes:
    return encode_mark(len(data), FIRST + len(PAYLOADS) - 1, len(data))


def test_read_back() -> None:
    data, starts = small_log(PAYLOADS)
    for ending in (b"", mark(data)):
        content = read_log("log", data + ending, FIRST)
        assert [record.payload for record in content.records] == PAYLOADS
        assert [record.position for record in content.records] == starts
        assert (content.end, content.torn) == (len(data), False)


def test_every_bit_flip_below_the_mark_is_refused_and_named() -> None:
    data, starts = small_log(PAYLOADS)
    whole = data + mark(data)
    for position in range(len(data)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(MetadataCorrupt) as raised:
            read_log("the/path.log", bytes(damaged), FIRST)
        expected = 0 if position < FILE_HEADER_BYTES else max(s for s in starts if s <= position)
        assert raised.value.position == expected
        assert "the/path.log" in str(raised.value)


def test_every_bit_flip_in_the_mark_costs_only_the_mark() -> None:
    data, _ = small_log(PAYLOADS)
    whole = data + mark(data)
    for position in range(len(data), len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        content = read_log("log", bytes(damaged), FIRST)
        assert [record.payload for record in content.records] == PAYLOADS
        assert content.end == len(data)


def test_a_write_torn_at_every_byte_leaves_what_was_durable() -> None:
    """The last record is being written over the mark of the one before."""
    before, _ = small_log(PAYLOADS[:-1])
    after, starts = small_log(PAYLOADS)
    vouched = before + encode_mark(len(before), FIRST + len(PAYLOADS) - 2, len(before))
    for end in range(len(before), len(after)):
        for torn in (after[:end], after[:end] + bytes(len(after) - end), after[:end] + vouched[end:]):
            content = read_log("log", torn, FIRST)
            assert [record.payload for record in content.records] == PAYLOADS[:-1]
            assert content.end == starts[-1]


def test_the_back_of_a_torn_write_may_arrive_without_its_front() -> None:
    before, _ = small_log(PAYLOADS[:-1])
    after, _ = small_log(PAYLOADS)
    for begin in range(len(before) + 1, len(after)):
        content = read_log("log", before + bytes(begin - len(before)) + after[begin:], FIRST)
        assert (content.end, content.torn) == (len(before), True)


def test_cut_at_every_byte_keeps_whole_records() -> None:
    data, starts = small_log(PAYLOADS)
    ends = [*starts[1:], len(data)]
    for length in range(FILE_HEADER_BYTES, len(data)):
        content = read_log("log", data[:length], FIRST)
        assert len(content.records) == sum(end <= length for end in ends)
    for length in range(FILE_HEADER_BYTES):
        with pytest.raises(MetadataCorrupt):
            read_log("log", data[:length], FIRST)


def test_a_record_moved_or_out_of_order_is_refused() -> None:
    header = encode_file_header(KIND_LOG, FIRST)
    record = encode_record(len(header) + 8, FIRST, len(header), b"elsewhere", term=1)
    assert read_log("log", header + record, FIRST).records == []
    skipped = encode_record(len(header), FIRST + 1, len(header), b"too new", term=1)
    with pytest.raises(MetadataCorrupt, match="record 8 where 7 belongs"):
        read_log("log", header + skipped, FIRST)


def test_a_header_of_another_file_is_refused() -> None:
    for header in (encode_file_header(KIND_SNAPSHOT, FIRST), encode_file_header(KIND_LOG, FIRST + 1)):
        with pytest.raises(MetadataCorrupt):
            read_log("log", header, FIRST)


def test_garbage_behind_a_header_is_a_torn_write() -> None:
    header = encode_file_header(KIND_LOG, FIRST)
    for seed in range(50):
        content = read_log("log", header + random.Random(seed).randbytes(500), FIRST)
        assert (content.records, content.end, content.torn) == ([], FILE_HEADER_BYTES, True)


def test_a_length_beyond_bounds_is_no_record() -> None:
    header = encode_file_header(KIND_LOG, FIRST)
    record = bytearray(encode_record(len(header), FIRST, len(header), b"payload", term=1))
    record[8:12] = (PAYLOAD_BYTES_MAX + 1).to_bytes(4, "little")
    assert read_log("log", header + record, FIRST).torn


def small_snapshot() -> bytes:
    data = bytearray(encode_file_header(KIND_SNAPSHOT, 40))
    for number, payload in enumerate(PAYLOADS, 1):
        data += encode_record(len(data), number, 0, payload, term=2)
    data += encode_mark(len(data), len(PAYLOADS), 0)
    return bytes(data)


def test_every_bit_flip_and_every_cut_of_a_snapshot_is_refused() -> None:
    whole = small_snapshot()
    assert [record.payload for record in read_snapshot("s", whole, 40)] == PAYLOADS
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(MetadataCorrupt):
            read_snapshot("s", bytes(damaged), 40)
        with pytest.raises(MetadataCorrupt):
            read_snapshot("s", whole[:position], 40)
    with pytest.raises(MetadataCorrupt):
        read_snapshot("s", whole + bytes(RECORD_HEADER_BYTES), 40)


def replacing_log(entries: list[tuple[int, int, bytes]]) -> bytes:
    """(number, term, payload) one after the other, as they were written."""
    data = bytearray(encode_file_header(KIND_LOG, FIRST))
    for number, term, payload in entries:
        data += encode_record(len(data), number, len(data), payload, term=term)
    return bytes(data)


def test_a_record_of_a_number_that_was_there_replaces_it_and_all_behind() -> None:
    data = replacing_log([(7, 1, b"a"), (8, 3, b"b"), (9, 3, b"c"), (8, 2, b"d"), (9, 4, b"e"), (9, 5, b"f")])
    content = read_log("log", data, FIRST)
    assert [(it.number, it.term, it.payload) for it in content.records] == [(7, 1, b"a"), (8, 2, b"d"), (9, 5, b"f")]
    assert content.end == len(data)
    for end in range(FILE_HEADER_BYTES, len(data)):
        assert len(read_log("log", data[:end], FIRST).records) <= 3


def test_a_term_that_goes_back_is_refused() -> None:
    data = replacing_log([(7, 4, b"a"), (8, 3, b"b")])
    with pytest.raises(MetadataCorrupt, match="term 3 behind one of term 4"):
        read_log("log", data, FIRST)
    with pytest.raises(MetadataCorrupt, match="record 6 where 8 belongs"):
        read_log("log", replacing_log([(7, 4, b"a"), (6, 4, b"b")]), FIRST)


def test_entries_without_payload_are_not_the_end() -> None:
    data = bytearray(encode_file_header(KIND_LOG, FIRST))
    kinds = (LogRecordKind.NO_OP, LogRecordKind.CHANGE, LogRecordKind.MEMBERSHIP, LogRecordKind.NO_OP)
    for number, kind in enumerate(kinds, FIRST):
        data += encode_record(len(data), number, len(data), b"", term=2, kind=kind)
    data += encode_mark(len(data), FIRST + 3, len(data))
    content = read_log("log", bytes(data), FIRST)
    assert [record.kind for record in content.records] == [
        LogRecordKind.NO_OP, LogRecordKind.CHANGE, LogRecordKind.MEMBERSHIP, LogRecordKind.NO_OP,
    ]  # fmt: skip
