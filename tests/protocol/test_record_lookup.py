"""Finding records by timestamp, against a search through all of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from mainstem.protocol.records import (
    Compression,
    ControlType,
    NewBatch,
    NewRecord,
    RecordPosition,
    StoredBatch,
    build_batch,
    build_control_batch,
    find_max_timestamp,
    find_timestamp,
    read_records,
    stamp_log_append_time,
)

timestamps = st.integers(-1, 30)
plain_batches = st.builds(
    lambda times, compression: build_batch([NewRecord(time, b"k", b"v") for time in times], compression=compression),
    st.lists(timestamps, min_size=1, max_size=4),
    st.sampled_from([Compression.NONE, Compression.ZSTD]),
)


def _log_append_time(batch: NewBatch, timestamp: int) -> NewBatch:
    data = bytearray(batch.data)
    stamp_log_append_time(data, timestamp)
    return NewBatch.parse(data)


control_batches = st.builds(
    lambda time: build_control_batch(
        ControlType.ABORT, timestamp=time, producer_id=1, producer_epoch=0, coordinator_epoch=0
    ),
    timestamps,
)
histories = st.lists(
    plain_batches | st.builds(_log_append_time, plain_batches, timestamps) | control_batches, max_size=5
)


def _store(batches: list[NewBatch]) -> list[StoredBatch]:
    stored = []
    next_offset = 100
    for batch in batches:
        stored.append(batch.stored(next_offset, 0))
        next_offset = stored[-1].header.next_offset
    return stored


@given(history=histories, timestamp=timestamps, offset_min=st.integers(99, 112))
@settings(max_examples=examples(100), deadline=None)
def test_lookup_finds_what_a_full_search_finds(history: list[NewBatch], timestamp: int, offset_min: int) -> None:
    stored = _store(history)
    everything = [
        (RecordPosition(record.offset, record.timestamp), batch.header.is_control)
        for batch in stored
        for record in read_records(batch)
        if record.offset >= offset_min
    ]
    later = [position for position, is_control in everything if not is_control and position.timestamp >= timestamp]
    assert find_timestamp(stored, timestamp, offset_min) == (later[0] if later else None)
    greatest = max((position for position, _ in everything), key=lambda position: position.timestamp, default=None)
    assert find_max_timestamp(stored, offset_min) == greatest
