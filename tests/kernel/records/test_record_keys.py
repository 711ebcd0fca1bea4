"""Rows of keys: both twins say the same of any bytes, and of sound batches what decoding them says."""

from __future__ import annotations

import struct
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.kernel import KEY_PLACE_FIELDS, KEY_ROW_BYTES, RECORD_BYTES_MIN, RecordKind, compiled, pure
from mainstem.kernel.batch_header import HEADER_BYTES
from mainstem.protocol.records import NewRecord, build_batch

TWINS = pytest.mark.parametrize("kernel", [pure, compiled], ids=["pure", "compiled"])

HASH_KEY = bytes(range(16))
KEY_ROW = struct.Struct("<qQQB")

PUBLISHED = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    3: "9c70b60c5267a94e5f33b6b02985ed51",
    4: "f88164c12d9c8faf7d0f6e7c7bcd5579",
    5: "1368875980776f8854527a07690e9627",
    6: "14eeca338b208613485ea0308fd7a15e",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    9: "264499060ad9baabc47f8b02bb6d71ed",
    14: "31fcefac66d7de9c7ec7485fe4494902",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    16: "6ee2a4ca67b054bbfd3315bf85230577",
    17: "473d06e8738db89854c066c47ae47740",
    23: "c9d184ddd5a9f5e0cf8ce29a9abf691c",
    24: "2db479ae78bd50d8882a8a178a6132ad",
    31: "2939b0183223fafc1723de4f52c43d35",
    62: "5853542321f567a005d547a4f04759bd",
    63: "5150d1772f50834a503e069a973fbd7c",
}
"""Of SipHash-2-4 with 128 bits, by its authors (`vectors.h` of github.com/veorq/SipHash): of so many bytes 0, 1, 2…"""

RECORDS = st.lists(
    st.builds(
        NewRecord,
        timestamp=st.integers(0, 2**40),
        key=st.none() | st.binary(max_size=20),
        value=st.none() | st.binary(max_size=20),
        headers=st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=5)), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=8,
)


def place(position: int, length: int, records: int, base_offset: int, last_delta: int, control: bool) -> list[int]:
    return [position, length, records, base_offset, last_delta, control]


def scanned(kernel: Any, data: bytes, places: list[list[int]], room: int | None = None) -> tuple[bytes, list[int]]:
    """The bytes of the rows, and the number of each batch."""
    if room is None:
        room = sum(max(min(one[2], one[1] // RECORD_BYTES_MIN), 0) for one in places)
    rows = bytearray(KEY_ROW_BYTES * room)
    counts = array("q", [99] * len(places))
    found = kernel.key_rows(data, array("q", [field for one in places for field in one]), HASH_KEY, rows, counts)
    assert found == sum(max(count, 0) for count in counts)
    return bytes(rows[: found * KEY_ROW_BYTES]), counts.tolist()


@TWINS
@pytest.mark.parametrize("size", PUBLISHED)
def test_the_hash_has_its_published_values(kernel: Any, size: int) -> None:
    high, low = kernel.keyed_hash(HASH_KEY, bytes(range(size)))
    assert struct.pack("<QQ", low, high).hex() == PUBLISHED[size]


@given(key=st.binary(min_size=16, max_size=16), data=st.binary(max_size=600))
def test_the_twins_hash_alike(key: bytes, data: bytes) -> None:
    assert pure.keyed_hash(key, data) == compiled.keyed_hash(key, data)


@TWINS
@given(batches=st.lists(st.tuples(RECORDS, st.integers(0, 2**50), st.booleans()), max_size=4))
def test_rows_say_where_records_stand_and_what_they_are(
    kernel: Any, batches: list[tuple[list[NewRecord], int, bool]]
) -> None:
    data, places, expected = b"", [], []
    for records, base_offset, control in batches:
        body = bytes(build_batch(records).data[HEADER_BYTES:])
        places.append(place(len(data), len(body), len(records), base_offset, len(records) - 1, control))
        data += body
        for delta, record in enumerate(records):
            kind = RecordKind.CONTROL if control else RecordKind.NO_KEY
            high = low = 0
            if record.key is not None and not control:
                kind = RecordKind.TOMBSTONE if record.value is None else RecordKind.VALUE
                high, low = pure.keyed_hash(HASH_KEY, record.key)
            expected.append((base_offset + delta, high, low, kind))
    rows, counts = scanned(kernel, data, places)
    assert list(KEY_ROW.iter_unpack(rows)) == expected
    assert counts == [len(records) for records, _, _ in batches]


@TWINS
def test_a_batch_that_cannot_be_read_has_no_rows_and_the_others_have_theirs(kernel: Any) -> None:
    body = bytes(build_batch([NewRecord(1, b"k", b"v"), NewRecord(2, b"l", None)]).data[HEADER_BYTES:])
    size = len(body)
    bad = [
        place(0, size, 1, 0, 1, False),  # bytes behind the last record
        place(0, size - 1, 2, 0, 1, False),  # the last one ends early
        place(0, size, 3, 0, 2, False),  # one too few
        place(0, size, 2, 0, 0, False),  # an offset behind what the batch spans
        place(size, size, 2, 0, 1, False),  # offsets that do not rise
        place(0, size, 1 << 31, 0, 1, False),
        place(0, size, -1, 0, 1, False),
        place(0, -1, 2, 0, 1, False),
    ]
    record = bytes([14, 0, 0, 0, 2, 107, 1, 0])
    data = body + record * 2 + bytes(size)
    bad[4][1] = 2 * len(record)
    for one in bad:
        rows, counts = scanned(kernel, data, [place(0, size, 2, 5, 1, False), one, place(0, size, 2, 9, 1, False)])
        assert counts == [2, -1, 2]
        assert [row[0] for row in KEY_ROW.iter_unpack(rows)] == [5, 6, 9, 10]


@TWINS
def test_what_does_not_fit_together_is_refused(kernel: Any) -> None:
    body = bytes(build_batch([NewRecord(1, b"k", b"v")] * 2).data[HEADER_BYTES:])
    whole = place(0, len(body), 2, 0, 1, False)
    for places, room in (
        ([place(1, len(body), 2, 0, 1, False)], 2),
        ([place(-1, len(body), 2, 0, 1, False)], 2),
        ([place(0, 1 << 62, 2, 0, 1, False)], 2),
        ([whole, whole], 3),
    ):
        with pytest.raises(ValueError, match=r"outside|room"):
            scanned(kernel, body, places, room)
    counts = array("q", [0])
    for key, rows, fields in ((b"short", 50, 6), (HASH_KEY, 49, 6), (HASH_KEY, 50, 5), (HASH_KEY, 50, 12)):
        with pytest.raises(ValueError):
            kernel.key_rows(body, array("q", [*whole, *whole][:fields]), key, bytearray(rows), counts)
    with pytest.raises(ValueError):
        kernel.keyed_hash(bytes(15), b"")


@given(
    records=RECORDS,
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 40),
    count=st.integers(-1, 12),
    last_delta=st.integers(-1, 12),
)
def test_the_twins_agree_on_damaged_records(
    records: list[NewRecord], changes: list[tuple[int, int]], cut: int, count: int, last_delta: int
) -> None:
    body = bytearray(build_batch(records).data[HEADER_BYTES:])
    for at, value in changes:
        body[at % len(body)] = value
    places = [place(0, max(len(body) - cut, 0), count, 7, last_delta, False)]
    assert scanned(pure, bytes(body), places) == scanned(compiled, bytes(body), places)


@given(
    data=st.binary(max_size=300) | st.lists(st.sampled_from([0, 1, 2, 12, 14, 127, 128, 255]), max_size=200).map(bytes),
    count=st.integers(0, 30),
)
def test_the_twins_agree_on_any_bytes(data: bytes, count: int) -> None:
    assert KEY_PLACE_FIELDS == 6
    places = [place(0, len(data), count, 0, 2**31 - 1, False)]
    assert scanned(pure, data, places) == scanned(compiled, data, places)
