"""Finding records by timestamp, for ListOffsets.

Batches whose max timestamp rules them out are skipped by their header; only the one that decides is decoded.
Control batches hold no messages and are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mainstem.protocol.records.batch import StoredBatch
from mainstem.protocol.records.record import read_records


class RecordPosition(NamedTuple):
    """Where a record is and the timestamp (ms) it was found by."""

    offset: int
    timestamp: int


def find_timestamp(
    batches: Iterable[StoredBatch], timestamp: int, offset_min: int = 0
) -> RecordPosition | None:
    """The first record at `offset_min` or later whose timestamp is at least `timestamp`; None if there is
    none. Raises `ProtocolError` for a batch that cannot be decoded."""
    for batch in batches:
        header = batch.header
        if header.is_control or header.max_timestamp < timestamp or header.last_offset < offset_min:
            continue
        for record in read_records(batch):
            if record.timestamp >= timestamp and record.offset >= offset_min:
                return RecordPosition(record.offset, record.timestamp)
    return None


def find_max_timestamp(batches: Iterable[StoredBatch], offset_min: int = 0) -> RecordPosition | None:
    """The record at `offset_min` or later with the greatest timestamp, the first of them if there are
    several; None if there are no records. Raises `ProtocolError` for a batch that cannot be decoded."""
    best: RecordPosition | None = None
    for batch in batches:
        header = batch.header
        if header.is_control or header.last_offset < offset_min:
            continue
        if best is not None and header.max_timestamp <= best.timestamp:
            continue
        for record in read_records(batch):
            if record.offset >= offset_min and (best is None or record.timestamp > best.timestamp):
                best = RecordPosition(record.offset, record.timestamp)
    return best
