"""The open block: where produced batches are copied to, once, and where their directory rows are made.

A builder belongs to one write group and one event loop; `add` stamps base offset and leader epoch into the copy, so
the bytes in the block are the bytes readers get. The payloads of a group's blocks lie one behind the other in chunks
of memory, its arena: small blocks cost what they hold, and no payload is ever moved or grown.
"""

from __future__ import annotations

from mainstem.kernel.batch_header import (
    ATTRIBUTES,
    ATTRIBUTES_AT,
    BASE_OFFSET,
    CHECKSUM,
    CHECKSUM_AT,
    HEADER_BYTES,
    LEADER_EPOCH,
    LEADER_EPOCH_AT,
    LOG_APPEND_TIME_BIT,
    MAX_TIMESTAMP_AT,
    TIMESTAMP,
)
from mainstem.kernel.layout import CHUNK_BYTES, ROW
from mainstem.kernel.pure.checksum import crc32c
from mainstem.model import BatchAppend


class Arena:
    """The chunk that a write group's next payloads go to."""

    __slots__ = ("chunk_bytes", "room")

    def __init__(self, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.chunk_bytes = chunk_bytes
        self.room = 0
        """Bytes left in the chunk."""

    def take(self, size: int) -> None:
        if size > self.room:
            self.room = max(self.chunk_bytes, size)
        self.room -= size


class BlockBuilder:
    """Batches of many queues on their way into one block.

    `payload` holds the batches back to back, `directory` one row each in the same order. Only the newest builder of
    an arena may be added to, and no longer once a view of its directory is held.
    """

    __slots__ = ("_arena", "_directory", "_payload", "batch_count")

    def __init__(self, arena: Arena | None = None) -> None:
        self._arena = arena or Arena()
        self._payload = bytearray()
        self._directory = bytearray()
        self.batch_count = 0

    def fits(self, size: int) -> bool:
        """Whether there is room behind the batches in the block. A first batch always fits: it gets a chunk of its
        own."""
        return not self.batch_count or size <= self._arena.room

    def add(self, batch: BatchAppend, base_offset: int, leader_epoch: int, log_append_time_ms: int = -1) -> None:
        """Copy a validated batch in, as the one that starts at `base_offset`; with `log_append_time_ms`, as one
        that was made at that time (its timestamps and checksum are renewed). Raises `BufferError` while a view of
        the directory is held, `ValueError` for what is no batch or does not fit."""
        size = len(batch.data)
        if size < HEADER_BYTES:
            raise ValueError(f"{size} bytes are no batch")
        if not self.fits(size):
            raise ValueError("the block does not continue in another chunk")
        self._arena.take(size)
        payload = self._payload
        position = len(payload)
        payload += batch.data
        BASE_OFFSET.pack_into(payload, position, base_offset)
        LEADER_EPOCH.pack_into(payload, position + LEADER_EPOCH_AT, leader_epoch)
        attributes, max_timestamp, crc = batch.attributes, batch.max_timestamp, batch.crc
        if log_append_time_ms >= 0:
            attributes, max_timestamp = attributes | LOG_APPEND_TIME_BIT, log_append_time_ms
            ATTRIBUTES.pack_into(payload, position + ATTRIBUTES_AT, attributes)
            TIMESTAMP.pack_into(payload, position + MAX_TIMESTAMP_AT, max_timestamp)
            crc = crc32c(bytes(memoryview(payload)[position + ATTRIBUTES_AT : position + size]))
            CHECKSUM.pack_into(payload, position + CHECKSUM_AT, crc)
        self._directory += ROW.pack(
            batch.queue_id,
            base_offset,
            max_timestamp,
            batch.producer_id,
            position,
            size,
            batch.last_offset_delta,
            batch.record_count,
            batch.base_sequence,
            batch.producer_epoch,
            attributes,
            leader_epoch,
            crc,
        )
        self.batch_count += 1

    @property
    def payload(self) -> memoryview:
        """The batches so far."""
        return memoryview(self._payload)

    @property
    def directory(self) -> memoryview:
        """The rows so far, `ROW_BYTES` each."""
        return memoryview(self._directory)

    @property
    def payload_bytes(self) -> int:
        return len(self._payload)

    @property
    def size(self) -> int:
        """Bytes this block will take in the journal, without header and padding."""
        return len(self._payload) + len(self._directory)
