"""The bytes of metadata log and snapshot files: a header, then framed records. No I/O.

All integers little-endian. File header, 24 bytes: magic, format version u16, kind u16, index u64, CRC32C u32
of the 20 bytes before it. A log's index is that of its first record; a snapshot's that of the last command
in it. Record: magic, CRC32C u32, payload length u32, number u64, durable position u64, payload. The CRC covers
the record's position in the file (u64) and all that follows the CRC: a record is valid in one place only.

Strategy: a log is written by one writer and forced to disk record by record. Each record says up to where the
file was known to be on disk when it was written, and after every forced write follows a *mark*, a record
without payload, not forced, overwritten by the next record. So a bad record that any later one knows to be
durable is damage and is refused; one that nothing vouches for is a torn write, and the log ends before it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c

from mainstem.nameserver.errors import MetadataCorrupt

FORMAT_VERSION = 1
KIND_LOG = 1
KIND_SNAPSHOT = 2

_FILE_MAGIC = b"MSMETA\r\n"
_FILE_HEADER = struct.Struct("<8sHHQ")
_FILE_CRC = struct.Struct("<I")
FILE_HEADER_BYTES = _FILE_HEADER.size + _FILE_CRC.size

_RECORD_MAGIC = b"\xf5MR\x1a"
_RECORD_START = struct.Struct("<4sI")
_RECORD_REST = struct.Struct("<IQQ")
_POSITION = struct.Struct("<Q")
RECORD_HEADER_BYTES = _RECORD_START.size + _RECORD_REST.size
PAYLOAD_BYTES_MAX = 4 * 1024 * 1024  # a topic with every config at its longest needs about 1 MiB


class Record(NamedTuple):
    """`payload` is empty in a mark; `durable` is the file position known to be on disk before it."""

    position: int
    number: int
    durable: int
    payload: bytes

    @property
    def end(self) -> int:
        return self.position + RECORD_HEADER_BYTES + len(self.payload)


class LogContent(NamedTuple):
    records: list[Record]
    end: int
    """Where the next record goes; bytes behind it are a mark or a torn write."""
    torn: bool


def encode_file_header(kind: int, index: int) -> bytes:
    header = _FILE_HEADER.pack(_FILE_MAGIC, FORMAT_VERSION, kind, index)
    return header + _FILE_CRC.pack(google_crc32c.value(header))


def encode_record(position: int, index: int, durable: int, payload: bytes) -> bytes:
    """A record for exactly this position of the file; an empty payload makes a mark."""
    assert len(payload) <= PAYLOAD_BYTES_MAX, "commands are bounded before they are logged"
    rest = _RECORD_REST.pack(len(payload), index, durable) + payload
    return _RECORD_START.pack(_RECORD_MAGIC, _crc(position, rest)) + rest


def check_file_header(path: str, data: bytes, kind: int, index: int) -> None:
    """Raise `MetadataCorrupt` unless the file starts as one of this kind and index should."""
    if len(data) < FILE_HEADER_BYTES:
        raise MetadataCorrupt(path, 0, f"the file header has {len(data)} of {FILE_HEADER_BYTES} bytes")
    head = data[: _FILE_HEADER.size]
    (crc,) = _FILE_CRC.unpack_from(data, _FILE_HEADER.size)
    magic, version, found_kind, found_index = _FILE_HEADER.unpack(head)
    if magic != _FILE_MAGIC or crc != google_crc32c.value(head):
        raise MetadataCorrupt(path, 0, "the file header fails its checksum")
    if version != FORMAT_VERSION:
        raise MetadataCorrupt(path, 0, f"format version {version}, this program reads {FORMAT_VERSION}")
    if (found_kind, found_index) != (kind, index):
        raise MetadataCorrupt(path, 0, f"the header is of kind {found_kind}, index {found_index}")


def read_log(path: str, data: bytes, first_index: int) -> LogContent:
    """The records of a log up to a torn end. Raises `MetadataCorrupt` for damage below what is durable."""
    check_file_header(path, data, KIND_LOG, first_index)
    records: list[Record] = []
    position = FILE_HEADER_BYTES
    while (record := _record_at(data, position)) is not None and record.payload:
        if record.number != first_index + len(records):
            raise MetadataCorrupt(
                path, position, f"record {record.number} where {first_index + len(records)} belongs"
            )
        records.append(record)
        position = record.end
    if _is_vouched_for(data, position):
        raise MetadataCorrupt(path, position, "a record that was forced to disk fails its checksum")
    return LogContent(records, position, torn=record is None and position < len(data))


def read_snapshot(path: str, data: bytes, index: int) -> list[Record]:
    """All records of a snapshot, which ends with a mark that counts them. Raises `MetadataCorrupt`."""
    check_file_header(path, data, KIND_SNAPSHOT, index)
    records: list[Record] = []
    position = FILE_HEADER_BYTES
    while True:
        record = _record_at(data, position)
        if record is None:
            raise MetadataCorrupt(path, position, "a record of the snapshot fails its checksum")
        if not record.payload:
            break
        records.append(record)
        position = record.end
    if record.number != len(records) or record.end != len(data):
        raise MetadataCorrupt(path, position, f"the snapshot ends after {len(records)} of {record.number}")
    return records


def _is_vouched_for(data: bytes, position: int) -> bool:
    """Whether a valid record behind `position` knows that more than `position` bytes were durable."""
    candidate = data.find(_RECORD_MAGIC, position + 1)
    while candidate >= 0:
        record = _record_at(data, candidate)
        if record is not None and record.durable > position:
            return True
        candidate = data.find(_RECORD_MAGIC, candidate + 1)
    return False


def _record_at(data: bytes, position: int) -> Record | None:
    if position + RECORD_HEADER_BYTES > len(data):
        return None
    magic, crc = _RECORD_START.unpack_from(data, position)
    start = position + _RECORD_START.size
    length, index, durable = _RECORD_REST.unpack_from(data, start)
    end = position + RECORD_HEADER_BYTES + length
    if magic != _RECORD_MAGIC or length > PAYLOAD_BYTES_MAX or end > len(data):
        return None
    if crc != _crc(position, data[start:end]):
        return None
    return Record(position, index, durable, data[position + RECORD_HEADER_BYTES : end])


def _crc(position: int, rest: bytes) -> int:
    crc: int = google_crc32c.value(_POSITION.pack(position) + rest)
    return crc
