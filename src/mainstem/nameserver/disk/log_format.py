"""The bytes of metadata log and snapshot files: a header, then framed records. No I/O.

All integers little-endian. File header, 24 bytes: magic, format version u16, kind u16, index u64, CRC32C u32
of the 20 bytes before it. A log's index is that of its first record; a snapshot's that of the last entry
in it. Record: magic, CRC32C u32, payload length u32, kind u16, 0 u16, number u64, durable position u64, term u64,
payload. The CRC covers the record's position in the file (u64) and all that follows the CRC: a record is valid in
one place only. Version 1 had neither kind nor term; its records are read as commands (or marks) of
`TERM_OF_VERSION_1`.

Strategy: one writer appends to a log and forces it to disk record by record; a log only ever grows. A record whose
number occurred before replaces that entry and all entries behind it, none of which was committed. Each record says
how much of the file was known to be on disk when it was written. After every forced write follows a *mark*: a record
without payload, not forced, overwritten by the next record. So a bad record that any later record knows to be durable
is damage and is refused; a bad record that no later one vouches for is a torn write, and the log ends before it.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

import google_crc32c

from mainstem.nameserver.errors import MetadataCorrupt

FORMAT_VERSION = 2
FORMAT_VERSION_OLDEST = 1
TERM_OF_VERSION_1 = 1
"""The term of records of version 1, whose logs had one writer and were committed throughout."""
KIND_LOG = 1
KIND_SNAPSHOT = 2

_FILE_MAGIC = b"MSMETA\r\n"
_FILE_HEADER = struct.Struct("<8sHHQ")
_FILE_CRC = struct.Struct("<I")
FILE_HEADER_BYTES = _FILE_HEADER.size + _FILE_CRC.size

_RECORD_MAGIC = b"\xf5MR\x1a"
_RECORD_START = struct.Struct("<4sI")
_RECORD_REST = struct.Struct("<IHHQQQ")
_RECORD_REST_1 = struct.Struct("<IQQ")
_POSITION = struct.Struct("<Q")
RECORD_HEADER_BYTES = _RECORD_START.size + _RECORD_REST.size
RECORD_HEADER_BYTES_1 = _RECORD_START.size + _RECORD_REST_1.size
PAYLOAD_BYTES_MAX = 4 * 1024 * 1024  # a topic with every config at its longest needs about 1 MiB


class LogRecordKind(enum.IntEnum):
    """The kinds of records, by their content."""

    MARK = 0
    CHANGE = 1
    """Commands; in a snapshot one of them."""
    NO_OP = 2
    """The first entry of a leader's term; without payload."""
    MEMBERSHIP = 3
    """The voters and learners; in a snapshot its first record."""


_KINDS = frozenset(int(kind) for kind in LogRecordKind)


class LogEntry(NamedTuple):
    """One entry of the metadata quorum's log, as it is stored; this module does not look into the payload."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    term: int
    kind: LogRecordKind
    payload: bytes


class LogRecord(NamedTuple):
    """One framed record. `durable` is the file position known to be on disk before it, `end` where the next
    record goes."""

    position: int
    number: int
    durable: int
    payload: bytes
    term: int
    kind: LogRecordKind
    end: int

    @property
    def entry(self) -> LogEntry:
        return LogEntry(self.number, self.term, self.kind, self.payload)


class LogContent(NamedTuple):
    records: list[LogRecord]
    """Numbers go up one by one: replaced entries are left out."""
    end: int
    """The position of the next record; bytes behind it are a mark or a torn write."""
    torn: bool
    version: int


def encode_file_header(kind: int, index: int) -> bytes:
    header = _FILE_HEADER.pack(_FILE_MAGIC, FORMAT_VERSION, kind, index)
    return header + _FILE_CRC.pack(google_crc32c.value(header))


def encode_record(
    position: int,
    number: int,
    durable: int,
    payload: bytes,
    *,
    term: int,
    kind: LogRecordKind = LogRecordKind.CHANGE,
) -> bytes:
    """A record that is valid at exactly this position of the file."""
    assert len(payload) <= PAYLOAD_BYTES_MAX, "changes are bounded before they are logged"
    rest = _RECORD_REST.pack(len(payload), kind, 0, number, durable, term) + payload
    return _RECORD_START.pack(_RECORD_MAGIC, _crc(position, rest)) + rest


def encode_mark(position: int, number: int, durable: int) -> bytes:
    return encode_record(position, number, durable, b"", term=0, kind=LogRecordKind.MARK)


def check_file_header(path: str, data: bytes, kind: int, index: int) -> int:
    """Returns the format version. Raises `MetadataCorrupt` unless the file's header is of this kind and
    index."""
    if len(data) < FILE_HEADER_BYTES:
        raise MetadataCorrupt(path, 0, f"the file header has {len(data)} of {FILE_HEADER_BYTES} bytes")
    head = data[: _FILE_HEADER.size]
    (crc,) = _FILE_CRC.unpack_from(data, _FILE_HEADER.size)
    magic, version, found_kind, found_index = _FILE_HEADER.unpack(head)
    if magic != _FILE_MAGIC or crc != google_crc32c.value(head):
        raise MetadataCorrupt(path, 0, "the file header fails its checksum")
    if not FORMAT_VERSION_OLDEST <= version <= FORMAT_VERSION:
        raise MetadataCorrupt(
            path,
            0,
            f"format version {version}, this program reads {FORMAT_VERSION_OLDEST} to {FORMAT_VERSION}",
        )
    if (found_kind, found_index) != (kind, index):
        raise MetadataCorrupt(path, 0, f"the header is of kind {found_kind}, index {found_index}")
    return int(version)


def read_log(path: str, data: bytes, first_index: int) -> LogContent:
    """The records of a log up to a torn end. Raises `MetadataCorrupt` for a damaged record that was
    durable."""
    version = check_file_header(path, data, KIND_LOG, first_index)
    records: list[LogRecord] = []
    position = FILE_HEADER_BYTES
    while (record := _record_at(data, position, version)) is not None and record.kind != LogRecordKind.MARK:
        _place(path, records, record, first_index, version)
        position = record.end
    if _is_vouched_for(data, position, version):
        raise MetadataCorrupt(path, position, "a record that was forced to disk fails its checksum")
    return LogContent(records, position, torn=record is None and position < len(data), version=version)


def _place(path: str, records: list[LogRecord], record: LogRecord, first_index: int, version: int) -> None:
    """Append a record, or replace those from its number on."""
    following = first_index + len(records)
    least = first_index if version > 1 else following
    if not least <= record.number <= following:
        raise MetadataCorrupt(path, record.position, f"record {record.number} where {following} belongs")
    del records[record.number - first_index :]
    if records and record.term < records[-1].term:
        what = f"record {record.number} of term {record.term} behind one of term {records[-1].term}"
        raise MetadataCorrupt(path, record.position, what)
    records.append(record)


def read_snapshot(path: str, data: bytes, index: int) -> list[LogRecord]:
    """All records of a snapshot, which ends with a mark that counts them. Raises `MetadataCorrupt`."""
    version = check_file_header(path, data, KIND_SNAPSHOT, index)
    records: list[LogRecord] = []
    position = FILE_HEADER_BYTES
    while True:
        record = _record_at(data, position, version)
        if record is None:
            raise MetadataCorrupt(path, position, "a record of the snapshot fails its checksum")
        if record.kind == LogRecordKind.MARK:
            break
        records.append(record)
        position = record.end
    if record.number != len(records) or record.end != len(data):
        raise MetadataCorrupt(path, position, f"the snapshot ends after {len(records)} of {record.number}")
    return records


def _is_vouched_for(data: bytes, position: int, version: int) -> bool:
    """Whether a valid record behind `position` knows that more than `position` bytes were durable."""
    candidate = data.find(_RECORD_MAGIC, position + 1)
    while candidate >= 0:
        record = _record_at(data, candidate, version)
        if record is not None and record.durable > position:
            return True
        candidate = data.find(_RECORD_MAGIC, candidate + 1)
    return False


def _record_at(data: bytes, position: int, version: int) -> LogRecord | None:
    header_bytes = RECORD_HEADER_BYTES if version > 1 else RECORD_HEADER_BYTES_1
    if position + header_bytes > len(data):
        return None
    magic, crc = _RECORD_START.unpack_from(data, position)
    start = position + _RECORD_START.size
    if version > 1:
        length, kind, zero, number, durable, term = _RECORD_REST.unpack_from(data, start)
    else:
        length, number, durable = _RECORD_REST_1.unpack_from(data, start)
        kind, zero, term = (LogRecordKind.CHANGE if length else LogRecordKind.MARK), 0, TERM_OF_VERSION_1
    end = position + header_bytes + length
    if magic != _RECORD_MAGIC or length > PAYLOAD_BYTES_MAX or end > len(data):
        return None
    if crc != _crc(position, data[start:end]) or kind not in _KINDS or zero:
        return None
    return LogRecord(position, number, durable, data[position + header_bytes : end], term, LogRecordKind(kind), end)


def _crc(position: int, rest: bytes) -> int:
    crc: int = google_crc32c.value(_POSITION.pack(position) + rest)
    return crc
