"""CRC32C (Castagnoli, RFC 3720 appendix B.4) of any contiguous buffer."""

from __future__ import annotations

import google_crc32c
import numpy

from mainstem.model import Buffer

LARGE_BYTES = 64 * 1024
"""The library takes `bytes` or an array: below this size a copy is the cheaper of the two."""


def crc32c(buffer: Buffer, crc: int = 0) -> int:
    """The checksum of a buffer, or of what `crc` is the checksum of with the buffer behind it."""
    if isinstance(buffer, bytes):
        checksum: int = google_crc32c.extend(crc, buffer)
    elif memoryview(buffer).nbytes < LARGE_BYTES:
        checksum = google_crc32c.extend(crc, bytes(buffer))
    else:
        checksum = google_crc32c.extend(crc, numpy.frombuffer(buffer, numpy.uint8))
    return checksum
