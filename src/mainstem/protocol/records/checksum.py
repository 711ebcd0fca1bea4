"""CRC-32C (Castagnoli), the checksum of record batches."""

from __future__ import annotations

import google_crc32c

from mainstem.kernel import first_damaged
from mainstem.model import Buffer

__all__ = ["crc32c", "first_damaged"]

_CHUNK_BYTES = 64 * 1024
"""The library takes only `bytes`, so other buffers must be copied. Piece by piece the copy stays in the
processor's cache (as fast as one large copy at 1 MB) and needs no second batch's worth of memory."""


def crc32c(buffer: Buffer, start: int = 0) -> int:
    """The checksum of `buffer` from `start` to its end."""
    size = len(buffer) - start
    if size <= _CHUNK_BYTES:
        checksum: int = google_crc32c.value(bytes(buffer[start:]))
        return checksum
    view = memoryview(buffer)
    checksum = 0
    for position in range(start, len(buffer), _CHUNK_BYTES):
        checksum = google_crc32c.extend(checksum, bytes(view[position : position + _CHUNK_BYTES]))
    return checksum
