"""Runs copied from another node: checked where they are read, written beside the runs, checked again, and renamed.

A copy that breaks off leaves `<name>.tmp-copy` behind, which the next try of the same run overwrites, and which the
removal of orphans finds otherwise.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy

from mainstem.kernel import crc32c
from mainstem.ports import Files
from mainstem.rpc.split import RunFile
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.queue_store.extent_index import ExtentIndex
from mainstem.storage.queue_store.run_reader import RUNS_DIRECTORY, load_index
from mainstem.storage.queue_store.run_target import RUN_SUFFIX, TEMPORARY_INFIX


class ExtentChecks:
    """Checks the extents of a run whose bytes pass by in order."""

    def __init__(self, index: ExtentIndex, where: str) -> None:
        rows = index.rows
        self._where = where
        self._starts = numpy.ascontiguousarray(rows["position"])
        self._lengths = numpy.ascontiguousarray(rows["length"])
        self._checksums = numpy.ascontiguousarray(rows["crc"])
        self._row = 0
        self._crc = 0

    def feed(self, position: int, piece: bytes) -> None:
        """The bytes from `position` on, where the last piece ended. Raises `FormatError`."""
        end = position + len(piece)
        first, last = self._row, int(self._starts.searchsorted(numpy.uint64(end)))
        view = memoryview(piece)
        for start, length, checksum in zip(
            self._starts[first:last].tolist(),
            self._lengths[first:last].tolist(),
            self._checksums[first:last].tolist(),
            strict=True,
        ):
            self._crc = crc32c(view[max(start - position, 0) : start + length - position], self._crc)
            if start + length > end:
                break
            if self._crc != checksum:
                raise FormatError(
                    f"{self._where}: the extent at {start} fails its CRC; restore it from a replica"
                )
            self._row += 1
            self._crc = 0


def check_name(name: str) -> None:
    """Raises `StorageError` for what cannot be a run's."""
    if not name.endswith(RUN_SUFFIX) or "/" in name or "\0" in name:
        raise StorageError(f"{name!r} cannot be the name of a run")


def check_content(index: ExtentIndex, file: RunFile) -> None:
    """Raises `StorageError` unless a run has what it is said to have."""
    rows = index.rows
    found = (
        int(rows["length"].sum(dtype=numpy.int64)),
        int(rows["batch_count"].sum(dtype=numpy.int64)),
        int(rows["record_count"].sum(dtype=numpy.int64)),
        len(index.queues()[0]),
    )
    said = (file.batch_bytes, file.batch_count, file.record_count, file.queue_count)
    if found != said:
        raise StorageError(
            f"{file.name}: has (bytes, batches, records, queues) {found}, is said to have {said}"
        )


async def copy_run(files: Files, file: RunFile, pieces: AsyncIterator[bytes]) -> None:
    """Write a run from its bytes; whole, durable and under its name when this returns. Raises `StorageError` for what
    is not that run, OSError, and what `pieces` raises."""
    path = f"{RUNS_DIRECTORY}/{file.name}"
    temporary = f"{path}{TEMPORARY_INFIX}copy"
    target = await files.open(temporary, create=True)
    try:
        await target.size(truncate_to=0)
        position = 0
        async for piece in pieces:
            if position + len(piece) > file.bytes:
                raise StorageError(f"{path}: more than its {file.bytes} bytes arrived")
            await target.write(position, [piece], sync=True)  # little is ever dirty: commits share the disk
            position += len(piece)
        if position != file.bytes:
            raise StorageError(f"{path}: {position} of its {file.bytes} bytes arrived")
        check_content(await load_index(target, temporary, file.name), file)
    finally:
        await target.close()
    await files.rename(temporary, path)
