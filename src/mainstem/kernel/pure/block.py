"""The open block: where produced batches are copied to, once, and where their directory rows are made.

Pure-Python twin of the compiled builder. A builder belongs to one write group and one event loop; `add` stamps
base offset and leader epoch into the copy, so the bytes in the block are the bytes readers get.
"""

from __future__ import annotations

import struct

from mainstem.kernel.layout import ROW
from mainstem.model import BatchAppend

BASE_OFFSET = struct.Struct(">q")
LEADER_EPOCH = struct.Struct(">i")
LEADER_EPOCH_POSITION = 12


class BlockBuilder:
    """Batches of many queues on their way into one block.

    `payload` holds the batches back to back, `directory` one row each in the same order.
    """

    __slots__ = ("batch_count", "directory", "payload")

    def __init__(self) -> None:
        self.payload = bytearray()
        self.directory = bytearray()
        self.batch_count = 0

    def add(self, batch: BatchAppend, base_offset: int, leader_epoch: int) -> None:
        """Copy a validated batch in, as the one that starts at `base_offset`."""
        payload = self.payload
        position = len(payload)
        payload += batch.data
        BASE_OFFSET.pack_into(payload, position, base_offset)
        LEADER_EPOCH.pack_into(payload, position + LEADER_EPOCH_POSITION, leader_epoch)
        self.directory += ROW.pack(
            batch.queue_id,
            base_offset,
            batch.max_timestamp,
            batch.producer_id,
            position,
            len(payload) - position,
            batch.last_offset_delta,
            batch.record_count,
            batch.base_sequence,
            batch.producer_epoch,
            batch.attributes,
            leader_epoch,
            batch.crc,
        )
        self.batch_count += 1

    @property
    def size(self) -> int:
        """Bytes this block will take in the journal, without header and padding."""
        return len(self.payload) + len(self.directory)
