"""Are these bytes what was written as the payload of a block? Asked of a block that was read back whole, and is to be
passed on."""

from __future__ import annotations

import numpy

from mainstem.kernel import crc32c, first_damaged
from mainstem.model import Buffer
from mainstem.storage.journal.format import DIRECTORY_ROW, KIND_DATA, BlockHeader

STAMP = numpy.arange(12, 17)
"""Of a batch, the leader epoch (4 bytes) and the magic: its CRC covers neither, and the directory knows both."""
MAGIC = 2


def payload_fault(header: BlockHeader, directory: Buffer, payload: Buffer) -> str | None:
    """What is wrong with a block's payload, None when nothing is. About as fast as memory is read."""
    if len(payload) != header.payload_length:
        return f"its payload ends after {len(payload)} of {header.payload_length} bytes"
    if header.kind != KIND_DATA:
        return None if crc32c(payload) == header.payload_crc else "its payload fails its CRC"
    rows = numpy.frombuffer(directory, DIRECTORY_ROW, header.batch_count)
    starts, lengths, base_offsets = (
        rows[name].astype(numpy.int64) for name in ("position", "length", "base_offset")
    )
    damaged = first_damaged(payload, starts.data, lengths.data, base_offsets.data)
    if damaged < 0 and len(rows):
        expected = numpy.full((len(rows), len(STAMP)), MAGIC, numpy.uint8)
        expected[:, :4] = rows["leader_epoch"].astype(">i4").view(numpy.uint8).reshape(-1, 4)
        found = numpy.frombuffer(payload, numpy.uint8)[starts[:, None] + STAMP]
        wrong = numpy.flatnonzero((found != expected).any(axis=1))
        damaged = int(wrong[0]) if len(wrong) else -1
    return (
        None if damaged < 0 else f"the batch at byte {starts[damaged]} of its payload is not what was written"
    )
