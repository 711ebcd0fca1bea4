"""Blocks with real batches for journal tests, and a journal that remembers what recovery delivered."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import google_crc32c
from tests.fakes.clock import FakeClock
from tests.fakes.files import PowerLoss, SimulatedFiles

from mainstem.model import Sample
from mainstem.ports import Clock, Files
from mainstem.storage.errors import StorageFailed
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.journal.encoding.format import (
    DIRECTORY_STRUCT,
    KIND_CONTROL,
    KIND_DATA,
    BlockHeader,
    offset_of,
    sequence_of,
)
from mainstem.storage.journal.journal import BlockToWrite, Journal, RecoveryReport
from mainstem.storage.journal.segments.segment_files import segment_path

SMALL = JournalConfig(segment_bytes=16384, pool_segments=0, pool_segments_max=3)
"""Segments of four pages: one for the header, three for blocks."""


def batch(base_offset: int, size: int, leader_epoch: int = 1) -> bytes:
    """A record batch v2 of `size` bytes with a valid CRC; its records are filler that never ends in a zero."""
    records = bytes((base_offset + number) % 251 + 1 for number in range(size - 61))
    tail = struct.pack(">hiqqqhii", 0, 0, 1_000, 1_000, -1, -1, -1, 1) + records
    return struct.pack(">qiibI", base_offset, size - 12, leader_epoch, 2, google_crc32c.value(tail)) + tail


def data_block(index: int, *, group: int = 0, sizes: tuple[int, ...] = (100,), queue_id: int = 1) -> BlockToWrite:
    """A data block with one batch of one record per size, at offsets that follow from the index."""
    rows, batches, position = [], [], 0
    for number, size in enumerate(sizes):
        offset = index * 1000 + number
        content = batch(offset, size)
        crc = int.from_bytes(content[17:21], "big")
        rows.append(
            DIRECTORY_STRUCT.pack(queue_id + number, offset, 1_000, -1, position, size, 0, 1, -1, -1, 0, 1, crc)
        )
        batches.append(content)
        position += size
    return BlockToWrite(KIND_DATA, group, 1, index, b"".join(rows), len(rows), batches, 5)


def command_block(index: int, *, group: int = 0, size: int = 30) -> BlockToWrite:
    content = bytes((index * 7 + number) % 250 + 1 for number in range(size))
    return BlockToWrite(KIND_CONTROL, group, 1, index, b"", 0, [content], 5)


class Delivered(NamedTuple):
    """A block as recovery gave it to `visit`."""

    header: BlockHeader
    directory: bytes
    payload: bytes

    def is_(self, block: BlockToWrite) -> bool:
        """Is this the very block? (Of a data block, the batches are not seen here.)"""
        header = self.header
        return (
            (header.kind, header.group, header.term, header.index, header.batch_count, header.created_ms)
            == (block.kind, block.group, block.term, block.index, block.batch_count, block.created_ms)
            and self.directory == block.directory
            and self.payload == (b"" if block.kind == KIND_DATA else b"".join(block.payload))
        )


class Started(NamedTuple):
    journal: Journal
    delivered: list[Delivered]
    report: RecoveryReport

    def indexes(self) -> list[int]:
        return [block.header.index for block in self.delivered]


async def started(
    files: Files, config: JournalConfig = SMALL, clock: Clock | None = None, start: int = 0, durable: int = 0
) -> Started:
    """A journal, opened and recovered. It is closed after every error of recovery."""
    journal = await Journal.open(files, clock or FakeClock(), config)
    delivered: list[Delivered] = []
    try:
        report = await journal.recover(
            start,
            lambda header, directory, payload: delivered.append(Delivered(header, directory, payload)),
            durable=durable,
        )
    except BaseException:
        await abandoned(journal)
        raise
    return Started(journal, delivered, report)


def values(journal: Journal) -> dict[str, float]:
    return {sample.name: sample.value for sample in journal.samples() if isinstance(sample, Sample)}


async def until(condition: Callable[[], bool]) -> None:
    """Let a background task of the journal get there."""
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to that")


async def next_is_taken(journal: Journal) -> None:
    """Return once the file of the next segment is."""
    await until(lambda: values(journal)["mainstem_journal_segments_ahead"] == 1)


async def abandoned(journal: Journal) -> None:
    """Let go of a journal whose machine has lost its power, or whose disk has failed."""
    with suppress(PowerLoss, StorageFailed):
        await journal.close()


def flip(files: SimulatedFiles, position: int, bit: int = 0) -> None:
    """Flip a bit of the byte at a journal position."""
    files.flip(segment_path(sequence_of(position)), offset_of(position) * 8 + bit)
