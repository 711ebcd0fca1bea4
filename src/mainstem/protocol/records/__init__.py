"""Record batches, format v2: headers, checksums, records, compression and lookup.

Batches stay encoded from socket to socket; a batch is decoded only to look up timestamps, to check or
rewrite records (compaction), and by clients. `NewBatch` is a producer's batch, `StoredBatch` one that has an
offset: two types, so that one cannot be taken for the other.
"""

from __future__ import annotations

from mainstem.protocol.records.batch import (
    NewBatch,
    StoredBatch,
    restamp,
    stamp_log_append_time,
    stored_batches,
    verify_checksum,
)
from mainstem.protocol.records.builder import NewRecord, build_batch, build_control_batch, build_empty_batch
from mainstem.protocol.records.compression import Compression
from mainstem.protocol.records.header import BatchHeader, TimestampType, read_batch_header, walk_batches
from mainstem.protocol.records.lookup import RecordPosition, find_max_timestamp, find_timestamp
from mainstem.protocol.records.record import (
    ControlRecord,
    ControlType,
    Record,
    read_control,
    read_records,
    scan_records,
)

__all__ = [
    "BatchHeader",
    "Compression",
    "ControlRecord",
    "ControlType",
    "NewBatch",
    "NewRecord",
    "Record",
    "RecordPosition",
    "StoredBatch",
    "TimestampType",
    "build_batch",
    "build_control_batch",
    "build_empty_batch",
    "find_max_timestamp",
    "find_timestamp",
    "read_batch_header",
    "read_control",
    "read_records",
    "restamp",
    "scan_records",
    "stamp_log_append_time",
    "stored_batches",
    "verify_checksum",
    "walk_batches",
]
