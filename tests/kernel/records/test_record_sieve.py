"""Batches without the records that go: the twins write the same bytes, whatever they are given. Their meaning is tested
with `storage/compacting`."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.kernel import RECORD_GROWTH_MAX, SIEVED_FIELDS, compiled, pure
from mainstem.kernel.batch_header import ATTRIBUTES_AT, CHECKED_FROM, CHECKSUM_AT, HEADER_BYTES
from mainstem.kernel.pure.extent_moves import WALK_FIELDS
from mainstem.protocol.records import NewRecord, build_batch, read_records, restamp, stored_batches
from mainstem.protocol.records.batch import crc32c

TWINS = pytest.mark.parametrize("kernel", [pure, compiled], ids=["pure", "compiled"])

Ruling = tuple[int, int, int]

BATCHES = st.lists(
    st.tuples(
        st.lists(
            st.builds(
                NewRecord,
                timestamp=st.integers(-(2**62), 2**62) | st.integers(0, 1000),
                key=st.none() | st.binary(max_size=3),
                value=st.none() | st.binary(max_size=80),
                headers=st.lists(st.tuples(st.text(max_size=2), st.none() | st.binary(max_size=3)), max_size=2).map(
                    tuple
                ),
            ),
            min_size=1,
            max_size=6,
        ),
        st.integers(0, 3),
        st.integers(0, 127),
    ),
    max_size=4,
)
"""Records, offsets before the first of them, attributes."""


def written(batches: list[tuple[list[NewRecord], int, int]]) -> bytearray:
    out = bytearray()
    next_offset = 10
    for records, gap, attributes in batches:
        base_timestamp = records[0].timestamp
        near = [record for record in records if abs(record.timestamp - base_timestamp) < 2**62]
        data = bytearray(build_batch(near).data)
        data[ATTRIBUTES_AT + 1] = attributes & ~7
        restamp(data, next_offset + gap, 3)
        out += with_checksum(data)
        next_offset += gap + len(near)
    return out


def with_checksum(data: bytearray) -> bytearray:
    data[CHECKSUM_AT : CHECKSUM_AT + 4] = crc32c(data, CHECKED_FROM).to_bytes(4, "big")
    return data


def sieved(kernel: Any, content: bytes, rulings: list[Ruling], kept: list[int]) -> tuple[int, bytes, list[list[int]]]:
    """The batches that come back, those that were written, and the rows."""
    rows = array("q", bytes(8 * WALK_FIELDS * len(rulings)))
    assert kernel.walk_batches(content, rows) == len(rulings)
    out = bytearray(len(content) * (1 + RECORD_GROWTH_MAX))
    results = array("q", bytes(8 * SIEVED_FIELDS * len(rulings)))
    flat = array("q", [number for ruling in rulings for number in ruling])
    count = kernel.sieve_batches(content, rows, flat, array("q", kept), out, results)
    found = [results[at : at + SIEVED_FIELDS].tolist() for at in range(0, max(count, 0) * SIEVED_FIELDS, SIEVED_FIELDS)]
    return count, bytes(out[: found[-1][0] + found[-1][1]]) if found else b"", found


def draw_rulings(data: st.DataObject, content: bytes) -> tuple[list[Ruling], list[int]]:
    """For each batch some of its offsets, rarely one that it does not have."""
    rulings: list[Ruling] = []
    kept: list[int] = []
    for batch in stored_batches(content):
        offsets = list(range(batch.header.base_offset, batch.header.next_offset))
        chosen = data.draw(st.sets(st.sampled_from(offsets)) | st.just(set(offsets)))
        if data.draw(st.integers(0, 30)) == 0:
            chosen.add(batch.header.next_offset)
        first = len(kept)
        kept += sorted(chosen)
        horizon = data.draw(st.sampled_from([-1, 0, 500, 2**50, 2**63 - 1]))
        rulings.append((first if data.draw(st.integers(0, 5)) else -1, len(kept), horizon))
    return rulings, kept


@given(batches=BATCHES, data=st.data())
def test_the_twins_write_the_same(batches: list[tuple[list[NewRecord], int, int]], data: st.DataObject) -> None:
    content = bytes(written(batches))
    rulings, kept = draw_rulings(data, content)
    assert sieved(pure, content, rulings, kept) == sieved(compiled, content, rulings, kept)


@given(
    batches=BATCHES,
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=3),
    honest=st.booleans(),
    data=st.data(),
)
def test_the_twins_agree_on_damaged_batches(
    batches: list[tuple[list[NewRecord], int, int]], changes: list[tuple[int, int]], honest: bool, data: st.DataObject
) -> None:
    """`honest`: the checksum tells of the damage."""
    whole = bytes(written(batches))
    rulings, kept = draw_rulings(data, whole)
    content = bytearray()
    for batch in stored_batches(whole):
        damaged = bytearray(batch.data)
        for at, value in changes:
            place = ATTRIBUTES_AT + at % (len(damaged) - ATTRIBUTES_AT)
            if not 23 <= place < 27:  # the last offset stays such that batches are found
                damaged[place] = value
        content += damaged if honest else with_checksum(damaged)
    assert sieved(pure, bytes(content), rulings, kept) == sieved(compiled, bytes(content), rulings, kept)


@given(
    batches=BATCHES.filter(bool),
    noise=st.binary(max_size=120),
    kept=st.sets(st.integers(8, 20)),
    horizon=st.sampled_from([-1, 700]),
)
def test_the_twins_agree_on_records_of_compressed_batches(
    batches: list[tuple[list[NewRecord], int, int]], noise: bytes, kept: set[int], horizon: int
) -> None:
    batch = next(stored_batches(bytes(written(batches))))
    for records in (bytes(batch.data[HEADER_BYTES:]), noise, bytes(batch.data[HEADER_BYTES:]) + noise):
        made = []
        for kernel in (pure, compiled):
            out = bytearray(HEADER_BYTES + len(records) * (1 + RECORD_GROWTH_MAX))
            offsets = array("q", sorted(kept))
            size = kernel.sieve_records(batch.data, records, offsets, horizon, out)
            made.append((size, bytes(out[: max(size, 0)])))
        assert made[0] == made[1]


@TWINS
def test_timestamps_stay_when_all_of_their_differences_are_stated_anew(kernel: Any) -> None:
    times = [2**40, 2**40 - 5, 2**40 + 2**35, 0, -1]
    content = bytes(written([([NewRecord(time, b"%d" % at, None) for at, time in enumerate(times)], 0, 0)]))
    for horizon in (0, 1, 2**40, 2**62):
        count, out, _ = sieved(kernel, content, [(0, 4, horizon)], [10, 12, 13, 14])
        assert count == 1
        (batch,) = stored_batches(out)
        assert [record.timestamp for record in read_records(batch)] == [times[0], *times[2:]]
        assert batch.header.base_timestamp == horizon
        assert batch.header.max_timestamp == times[2]


@TWINS
def test_a_batch_that_is_not_what_was_scanned_is_named(kernel: Any) -> None:
    records = [NewRecord(5, b"k", b"v"), NewRecord(5, b"l", b"w")]
    content = bytearray(written([(records, 0, 0), (records, 0, 0), (records, 0, 0)]))
    stays = (-1, 0, -1)
    for kept in ([12, 14], [11, 12], [12, 13, 14]):
        assert sieved(kernel, bytes(content), [stays, (0, len(kept), -1), stays], kept)[0] == -2
    size = len(content) // 3
    content[2 * size - 2] ^= 1  # of the last value, which its checksum does not know
    for kept in ([12], [13], []):
        assert sieved(kernel, bytes(content), [stays, (0, len(kept), -1), stays], kept)[0] == -2
    assert sieved(kernel, bytes(content), [stays, (0, 2, -1), stays], [12, 13])[0] == 3, "nothing goes: as it is"


@TWINS
def test_what_does_not_fit_together_is_refused(kernel: Any) -> None:
    content = bytes(written([([NewRecord(5, b"k", None), NewRecord(5, b"l", b"w")], 0, 0)]))
    rows, kept = array("q", bytes(8 * WALK_FIELDS)), array("q", [10])
    assert kernel.walk_batches(content, rows) == 1
    room = len(content) * 8

    def sieve(changes: dict[int, int], ruling: tuple[int, ...], room: int = room, results: int = SIEVED_FIELDS) -> None:
        changed = array("q", rows)
        for at, value in changes.items():
            changed[at] = value
        results_room = array("q", bytes(8 * results))
        kernel.sieve_batches(content, changed, array("q", ruling), kept, bytearray(room), results_room)

    sieve({}, (0, 1, 9))
    for changes, ruling in (
        ({0: -1}, (-1, 0, -1)),
        ({0: 1}, (-1, 0, -1)),
        ({1: 60}, (-1, 0, -1)),
        ({1: 1 << 62}, (-1, 0, -1)),
        ({}, (0, 2, -1)),
        ({}, (1, 0, -1)),
        ({}, (0, 1)),
    ):
        with pytest.raises(ValueError):
            sieve(changes, ruling)
    for ruling in ((-1, 0, -1), (0, 1, -1), (0, 1, 9)):
        with pytest.raises(ValueError, match="room"):
            sieve({}, ruling, room=HEADER_BYTES)
    with pytest.raises(ValueError):
        sieve({}, (0, 1, 9), results=SIEVED_FIELDS - 1)
    with pytest.raises(ValueError, match="room"):
        kernel.sieve_records(content, content[HEADER_BYTES:], kept, 9, bytearray(HEADER_BYTES))
    with pytest.raises(ValueError):
        kernel.sieve_records(content[: HEADER_BYTES - 1], content[HEADER_BYTES:], kept, 9, bytearray(room))
