"""Checks that bytes are what was written as the payload of a block, before a block that was read back whole is passed
on."""

from __future__ import annotations

import numpy

from mainstem.kernel import crc32c, first_damaged
from mainstem.model import Buffer
from mainstem.storage.journal.format import DIRECTORY_ROW, KIND_DATA, BlockHeader


def payload_fault(header: BlockHeader, directory: Buffer, payload: Buffer) -> str | None:
    """Describe the fault of a block's payload; None when it is sound. About as fast as memory is read."""
    if len(payload) != header.payload_length:
        return f"its payload ends after {len(payload)} of {header.payload_length} bytes"
    if header.kind != KIND_DATA:
        return None if crc32c(payload) == header.payload_crc else "its payload fails its CRC"
    rows = numpy.frombuffer(directory, DIRECTORY_ROW, header.batch_count)
    starts, lengths, base_offsets, leader_epochs = (
        rows[name].astype(numpy.int64) for name in ("position", "length", "base_offset", "leader_epoch")
    )
    damaged = first_damaged(payload, starts.data, lengths.data, base_offsets.data, leader_epochs.data)
    return None if damaged < 0 else f"the batch at byte {starts[damaged]} of its payload is not what was written"
