"""Walking records in place: both twins say the same of any bytes, and of sound batches what decoding them says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.kernel import compiled, pure
from mainstem.kernel.batch_header import HEADER_BYTES
from mainstem.protocol.errors import CorruptBatch
from mainstem.protocol.records import NewRecord, build_batch, read_records

TWINS = pytest.mark.parametrize("kernel", [pure, compiled], ids=["pure", "compiled"])

RECORDS = st.lists(
    st.builds(
        NewRecord,
        timestamp=st.integers(0, 2**40),
        key=st.none() | st.binary(max_size=5),
        value=st.none() | st.binary(max_size=200),
        headers=st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=5)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=12,
)


def body_of(records: list[NewRecord]) -> tuple[bytes, int]:
    batch = build_batch(records)
    return bytes(batch.data[HEADER_BYTES:]), batch.header.base_timestamp


@TWINS
@given(
    records=RECORDS,
    timestamp=st.integers(-5, 2**40 + 5),
    offset_min=st.integers(0, 13),
    rising_max=st.integers(0, 4),
)
def test_a_walk_finds_what_decoding_finds(
    kernel: Any, records: list[NewRecord], timestamp: int, offset_min: int, rising_max: int
) -> None:
    batch = build_batch(records)
    body, base = body_of(records)
    decoded = [record for record in read_records(batch) if record.offset >= offset_min]
    walk = kernel.walk_timestamps(body, len(records), timestamp - base, offset_min, rising_max)
    found = next((record for record in decoded if record.timestamp >= timestamp), None)
    greatest = max(decoded, key=lambda record: record.timestamp, default=None)
    assert walk.damaged_at == -1
    assert walk.found == (None if found is None else (found.offset, found.timestamp - base))
    assert walk.greatest == (None if greatest is None else (greatest.offset, greatest.timestamp - base))
    rising: list[tuple[int, int]] = []
    for record in decoded:
        if not rising or record.timestamp - base > rising[-1][1]:
            rising.append((record.offset, record.timestamp - base))
    assert walk.rising == tuple(rising[:rising_max])
    assert walk.all_rising == (len(rising) <= rising_max)


@TWINS
@given(records=RECORDS)
def test_the_first_record_without_a_key_is_found(kernel: Any, records: list[NewRecord]) -> None:
    body, _ = body_of(records)
    keyless = next((number for number, record in enumerate(records) if record.key is None), -1)
    assert kernel.first_keyless(body, len(records)) == (keyless, -1)


@TWINS
@given(records=RECORDS, damage=st.data())
def test_what_cannot_be_decoded_is_damaged(kernel: Any, records: list[NewRecord], damage: st.DataObject) -> None:
    batch = build_batch([NewRecord(timestamp=one.timestamp, key=b"k", value=one.value) for one in records])
    damaged = bytearray(batch.data)
    at = damage.draw(st.integers(HEADER_BYTES, len(damaged) - 1))
    damaged[at] ^= damage.draw(st.integers(1, 255))
    cut = damage.draw(st.integers(HEADER_BYTES, len(damaged)))
    changed = type(batch)(bytes(damaged[:cut]), batch.header)
    try:
        decoded = list(read_records(changed))
    except CorruptBatch:
        decoded = None
    keyless, damaged_at = kernel.first_keyless(memoryview(changed.data)[HEADER_BYTES:], len(records))
    if decoded is not None:
        assert damaged_at == -1 or any(record.key is None for record in decoded)
    else:
        assert damaged_at >= 0 or keyless >= 0
    walk = kernel.walk_timestamps(memoryview(changed.data)[HEADER_BYTES:], len(records), 0, 0, 3)
    assert (walk.damaged_at >= 0) == (decoded is None)


@given(
    body=st.binary(max_size=300) | st.lists(st.sampled_from([0, 1, 2, 12, 14, 127, 128, 255]), max_size=200).map(bytes),
    count=st.integers(-1, 30),
    timestamp=st.integers(-(2**70), 2**70),
    offset_min=st.integers(-(2**63), 2**63 - 1),
)
def test_the_twins_agree_on_any_bytes(body: bytes, count: int, timestamp: int, offset_min: int) -> None:
    assert pure.first_keyless(body, count) == compiled.first_keyless(body, count)
    walks = [kernel.walk_timestamps(body, count, timestamp, offset_min, 2) for kernel in (pure, compiled)]
    assert walks[0] == walks[1]


@TWINS
@pytest.mark.parametrize("delta", [-(2**63), -1, 0, 2**62, 2**63 - 1])
def test_numbers_of_64_bits_keep_their_value(kernel: Any, delta: int) -> None:
    number = bytearray()
    value = delta << 1 if delta >= 0 else (-delta << 1) - 1
    while value > 0x7F:
        number.append(value & 0x7F | 0x80)
        value >>= 7
    number.append(value)
    content = b"\0" + bytes(number) + b"\0" + b"\0" + b"\0" + b"\0"
    body = bytes([len(content) << 1]) + content
    walk = kernel.walk_timestamps(body, 1, -(2**63), 0, 1)
    assert (walk.greatest, walk.damaged_at) == ((0, delta), -1)
