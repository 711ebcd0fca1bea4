"""Do all records of a batch have a key? Compaction keeps the latest record of each, so compacted topics ask for it."""

from __future__ import annotations

import enum

from mainstem.kernel import first_keyless
from mainstem.kernel.batch_header import HEADER_BYTES
from mainstem.model import Buffer
from mainstem.protocol.errors import ProtocolError, RecordsTooLarge
from mainstem.protocol.records.compression import Compression, decompress, inflated_bytes_max
from mainstem.protocol.records.header import read_batch_header


class Keys(enum.Enum):
    ALL = "all records have one"
    MISSING = "a record has none"
    UNREADABLE = "the records cannot be read"
    TOO_LARGE = "the records inflate to more than may be"


def is_compressed(data: Buffer) -> bool:
    """Whether the batch, whose header was checked before, is compressed."""
    return read_batch_header(data).compression_code != Compression.NONE


def keys_of(data: Buffer, bytes_max: int | None = None) -> tuple[Keys, int]:
    """Look into a batch, inflating at most so many bytes; None: as many as a batch of its size may inflate to. Also
    returns how many bytes of records there were to look into."""
    try:
        header = read_batch_header(data)
        payload = memoryview(data)[HEADER_BYTES:]
        allowed = inflated_bytes_max(len(payload))
        body = decompress(header.compression, payload, allowed if bytes_max is None else min(bytes_max, allowed))
    except RecordsTooLarge:
        return Keys.TOO_LARGE, 0
    except ProtocolError:
        return Keys.UNREADABLE, 0
    keyless, damaged_at = first_keyless(body, header.record_count)
    if damaged_at >= 0:
        return Keys.UNREADABLE, len(body)
    return (Keys.MISSING if keyless >= 0 else Keys.ALL), len(body)
