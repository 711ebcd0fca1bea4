"""Runs and disks for the tests of the queue store: small batches, a disk in memory, files on it."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import google_crc32c
import numpy

from mainstem.model import Buffer
from mainstem.ports import DiskUsage
from mainstem.rpc.split import RunFile
from mainstem.storage.queue_store.format import EXTENT_ROW
from mainstem.storage.queue_store.run_writer import BATCH_ROW, RunSummary, RunWriter


class Batch(NamedTuple):
    """A record batch as far as the queue store looks at it: a true header, any bytes for records."""

    queue_id: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int
    data: bytes


def make_batch(
    queue_id: int, base_offset: int, *, records: int = 1, size: int = 80, timestamp: int = 1000, epoch: int = 1,
    seed: int = 0,
) -> Batch:
    body = struct.pack(">hiqqqhii", 0, records - 1, timestamp, timestamp, -1, -1, -1, records)
    body += random.Random(queue_id * 1_000_003 + base_offset * 31 + seed).randbytes(max(0, size - 61))
    head = struct.pack(">qiibI", base_offset, len(body) + 9, epoch, 2, google_crc32c.value(body))
    return Batch(queue_id, base_offset, base_offset + records - 1, timestamp, epoch, head + body)


def describe(batches: Sequence[Batch]) -> numpy.ndarray:
    """Rows of `BATCH_ROW`."""
    rows = numpy.zeros(len(batches), BATCH_ROW)
    for row, batch in zip(rows, batches, strict=True):
        row["queue_id"], row["base_offset"], row["last_offset"] = batch[:3]
        row["max_timestamp"], row["leader_epoch"] = batch.max_timestamp, batch.leader_epoch
        row["length"] = len(batch.data)
        row["record_count"] = batch.last_offset - batch.base_offset + 1
    return rows


def in_order(batches: Iterable[Batch]) -> list[Batch]:
    return sorted(batches, key=lambda batch: batch[:2])


def write(writer: RunWriter, batches: Iterable[Batch], piece: int = 64) -> RunSummary:
    """Sort the batches, write them in pieces of so many, finish."""
    batches = in_order(batches)
    with writer:
        for start in range(0, len(batches), piece):
            part = batches[start:start + piece]
            writer.append(b"".join(batch.data for batch in part), describe(part))
        return writer.finish()


def extent_rows(*rows: tuple[int, int, int, int, int]) -> numpy.ndarray:
    """Rows of `EXTENT_ROW` from (queue id, base offset, last offset, max timestamp, length)."""
    result = numpy.zeros(len(rows), EXTENT_ROW)
    for row, values in zip(result, rows, strict=True):
        for field, value in zip(("queue_id", "base_offset", "last_offset", "max_timestamp", "length"), values,
                                strict=True):
            row[field] = value
    return result


class MemoryFiles:
    """`ports.Files` over a dict. Removed files stay readable to whoever has them open, as on POSIX."""

    def __init__(self) -> None:
        self.content: dict[str, bytearray] = {}
        self.reads: list[tuple[str, int, int]] = []
        self.open_count = 0
        self.gate: asyncio.Event | None = None
        """While set and not open, reads of runs wait for it."""

    async def open(self, path: str, *, create: bool = False) -> MemoryFile:
        if create:
            self.content.setdefault(path, bytearray())
        if path not in self.content:
            raise FileNotFoundError(path)
        self.open_count += 1
        return MemoryFile(self, path)

    async def names(self, directory: str) -> list[str]:
        return sorted(path.split("/", 1)[1] for path in self.content if path.startswith(directory + "/"))

    async def rename(self, source: str, target: str) -> None:
        self.content[target] = self.content.pop(source)

    async def remove(self, path: str) -> None:
        self.content.pop(path, None)

    async def usage(self) -> DiskUsage:
        return DiskUsage(1 << 40, 1 << 40)


class MemoryFile:
    def __init__(self, files: MemoryFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._content = files.content[path]
        self._closed = False

    async def read(self, position: int, length: int) -> bytes:
        assert not self._closed, f"{self._path} is closed"
        self._files.reads.append((self._path, position, length))
        if self._files.gate is not None and self._path.startswith("runs/"):
            await self._files.gate.wait()
        await asyncio.sleep(0)
        assert not self._closed, f"{self._path} was closed under a reader"
        return bytes(self._content[position:position + length])

    async def write(self, position: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        data = b"".join(buffers)
        if len(self._content) < position:
            self._content.extend(bytes(position - len(self._content)))
        self._content[position:position + len(data)] = data

    async def sync(self) -> None:
        return None

    async def size(self, *, truncate_to: int | None = None) -> int:
        if truncate_to is not None:
            del self._content[truncate_to:]
            self._content.extend(bytes(truncate_to - len(self._content)))
        return len(self._content)

    async def lock(self, *, exclusive: bool) -> bool:
        return True

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._files.open_count -= 1


class MemoryTarget:
    """`RunTarget` onto a disk in memory."""

    def __init__(self, files: MemoryFiles, name: str) -> None:
        self._files = files
        self._name = name
        self._temporary = f"runs/{name}.tmp-1"
        files.content[self._temporary] = bytearray()

    def write(self, buffer: Buffer) -> None:
        self._files.content[self._temporary] += buffer

    def finish(self) -> None:
        self._files.content[f"runs/{self._name}"] = self._files.content.pop(self._temporary)

    def abandon(self) -> None:
        self._files.content.pop(self._temporary, None)


def write_run(
    files: MemoryFiles, name: str, batches: Iterable[Batch], retention_class: str = "forever"
) -> RunFile:
    """A finished run in memory, described as a commit does."""
    summary = write(RunWriter(name, MemoryTarget(files, name)), batches)
    return RunFile(retention_class=retention_class, **summary._asdict())


def batches_of(views: Iterable[memoryview]) -> Iterator[bytes]:
    return map(bytes, views)
