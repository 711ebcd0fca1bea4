"""The durable log of metadata commands, with snapshots so that it stays short.

`metadata/<first index>.log` takes commands; `metadata/<index>.snapshot` holds the state after that command as
a shorter list of commands. To recover: the newest snapshot, then every log behind it, in an unbroken chain.

A snapshot is made in an order that may stop anywhere: first the next log is opened and takes over, then the
snapshot is written aside and renamed, then the files it replaces are removed. Until the rename the old files
are what counts, so a failure on the way costs nothing but a longer recovery.

Commands appended together share one write and one sync; a stop in between may leave the first of them, never one
without those before it.

Invariants: `append` returns when the commands are on disk; a torn end is cut off, anything else that cannot be
read is refused, file and position named, and left as it is; after a failed write nothing more is written,
since what is on disk is then unknown until the next start; nothing outside `metadata/` is ever touched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from mainstem.nameserver.commands import Command, decode_command, encode_command
from mainstem.nameserver.errors import ForeignDirectory, MetadataCorrupt, MetadataUnavailable
from mainstem.nameserver.log_format import (
    FILE_HEADER_BYTES,
    KIND_LOG,
    KIND_SNAPSHOT,
    PAYLOAD_BYTES_MAX,
    Record,
    encode_file_header,
    encode_record,
    read_log,
    read_snapshot,
)
from mainstem.nameserver.state import InconsistentCommand
from mainstem.ports import File, Files

DIRECTORY = "metadata"
_LOCK = f"{DIRECTORY}/lock"
_CHUNK_BYTES = 64 * 1024  # of a snapshot, encoded between two turns of the event loop: about 2 ms
COMMANDS_PER_TURN = 250
"""Commands that are made, encoded or applied between two turns of the event loop: about 2 ms."""

log = logging.getLogger(__name__)


def _path(index: int, suffix: str) -> str:
    return f"{DIRECTORY}/{index:020d}.{suffix}"


class MetadataLog:
    """Made by `open`; one writer at a time. `bytes_max` is the length from which on `wants_snapshot`."""

    def __init__(self, files: Files, lock: File, bytes_max: int) -> None:
        self._files = files
        self._lock = lock
        self._bytes_max = bytes_max
        self._file: File | None = None
        self._end = 0
        self._index = 0
        self._snapshot_bytes = 0
        self._bytes_at_last_try = 0
        self._failure: OSError | None = None

    @classmethod
    async def open(cls, files: Files, replay: Callable[[Command], object], *, bytes_max: int) -> MetadataLog:
        """Hand every durable command to `replay`, in order, and get ready to append. Raises
        `MetadataCorrupt`, and `ForeignDirectory` when another process holds the log."""
        lock = await files.open(_LOCK, create=True)
        metadata_log = cls(files, lock, bytes_max)
        try:
            if not await lock.lock(exclusive=True):
                raise ForeignDirectory("the metadata directory is in use by another process")
            await metadata_log._recover(replay)
        except BaseException:
            await metadata_log._release()
            raise
        return metadata_log

    @property
    def index(self) -> int:
        """The index of the newest durable command; 0 before the first."""
        return self._index

    @property
    def length(self) -> int:
        """Bytes in the log that takes commands now."""
        return self._end

    @property
    def wants_snapshot(self) -> bool:
        """Whether the log has outgrown its bound, and the newest snapshot, so that the bytes written for
        snapshots never exceed those written for commands by much."""
        if self._failure is not None:
            return False  # a record of unknown fate may lie in the log: no other log may follow it
        return self._end - self._bytes_at_last_try > max(self._bytes_max, self._snapshot_bytes)

    async def append(self, commands: Sequence[Command]) -> None:
        """Write commands and force them to disk. Raises `MetadataUnavailable` when the disk refuses: the
        commands, or the first of them, may or may not be there after a restart, and no other is taken before."""
        if self._failure is not None or self._file is None:
            raise MetadataUnavailable(f"the metadata log takes no more changes: {self._failure or 'closed'}")
        records: list[bytes] = []
        index, end = self._index, self._end
        for command in commands:
            payload = encode_command(command)
            if len(payload) > PAYLOAD_BYTES_MAX:
                raise MetadataUnavailable(f"a change of {len(payload)} bytes, at most {PAYLOAD_BYTES_MAX}")
            index += 1
            records.append(encode_record(end, index, self._end, payload))
            end += len(records[-1])
            if len(records) % COMMANDS_PER_TURN == 0:
                await asyncio.sleep(0)
        try:
            await self._file.write(self._end, records, sync=True)
        except OSError as error:
            self._failure = error
            raise MetadataUnavailable(f"the metadata log cannot be written: {error}") from error
        self._index, self._end = index, end
        await self._write_mark(sync=False)

    async def snapshot(self, commands: Iterable[Command]) -> None:
        """Replace the log by `commands`, which lead to the state after the newest one. The caller changes
        nothing meanwhile. A failing disk leaves the log longer than wanted; the next try comes later."""
        assert self._file is not None, "a closed log takes no snapshot"
        try:
            await self._roll()
            await self._write_snapshot(commands)
            await self._remove_replaced()
        except OSError as error:
            self._bytes_at_last_try = self._end
            log.warning("no snapshot of the metadata could be written: %s", error)

    async def close(self) -> None:
        if self._file is not None and self._failure is None:
            await self._write_mark(sync=True)
        await self._release()

    async def _release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            await file.close()
        await self._lock.close()

    async def _write_mark(self, *, sync: bool) -> None:
        """Vouch for the newest record. It is durable already, so a failure only stops what comes next."""
        assert self._file is not None
        mark = encode_record(self._end, self._index, self._end, b"")
        try:
            await self._file.write(self._end, [mark], sync=sync)
        except OSError as error:
            self._failure = error
            log.error("the metadata log takes no more changes: %s", error)

    # snapshots

    async def _roll(self) -> None:
        if self._end == FILE_HEADER_BYTES:
            return  # an empty log already stands where the next would
        file = await self._create_log(self._index + 1)
        assert self._file is not None
        old, self._file = self._file, file
        self._end = FILE_HEADER_BYTES
        self._bytes_at_last_try = 0
        await old.close()

    async def _create_log(self, first_index: int) -> File:
        await self._write_aside(_path(first_index, "log"), [encode_file_header(KIND_LOG, first_index)])
        return await self._files.open(_path(first_index, "log"))

    async def _write_snapshot(self, commands: Iterable[Command]) -> None:
        self._snapshot_bytes = await self._write_aside(
            _path(self._index, "snapshot"), _snapshot_chunks(self._index, commands)
        )

    async def _write_aside(self, path: str, chunks: Iterable[bytes]) -> int:
        """Write a whole file under a temporary name, force it to disk and rename it; returns its length."""
        file = await self._files.open(f"{path}.tmp", create=True)
        try:
            length = await file.size(truncate_to=0)
            for chunk in chunks:
                await file.write(length, [chunk])
                length += len(chunk)
                await asyncio.sleep(0)  # a small write may not have waited
            await file.sync()
        finally:
            await file.close()
        await self._files.rename(f"{path}.tmp", path)
        return length

    async def _remove_replaced(self) -> None:
        snapshots, logs = await self._stored()
        for index in snapshots[:-1]:
            await self._files.remove(_path(index, "snapshot"))
        for first_index in logs:
            if snapshots and first_index <= snapshots[-1]:
                await self._files.remove(_path(first_index, "log"))

    async def _stored(self) -> tuple[list[int], list[int]]:
        """Indexes of snapshots, first indexes of logs, each ascending."""
        found: dict[str, list[int]] = {"snapshot": [], "log": []}
        for name in await self._files.names(DIRECTORY):
            stem, _, suffix = name.partition(".")
            if suffix in found and len(stem) == 20 and stem.isdigit():
                found[suffix].append(int(stem))
        return sorted(found["snapshot"]), sorted(found["log"])

    # recovery

    async def _recover(self, replay: Callable[[Command], object]) -> None:
        snapshots, logs = await self._stored()
        if snapshots:
            self._index = snapshots[-1]
            await self._replay_snapshot(self._index, replay)
        elif not logs:
            logs = [1]
            self._file = await self._create_log(1)
        chain = [first_index for first_index in logs if first_index > self._index]
        if not chain:
            raise MetadataCorrupt(_path(self._index + 1, "log"), 0, "the file is missing")
        for first_index in chain:
            if first_index != self._index + 1:
                what = f"commands {self._index + 1} to {first_index - 1} are missing"
                raise MetadataCorrupt(_path(first_index, "log"), 0, what)
            await self._replay_log(first_index, replay, last=first_index == chain[-1])
        await self._remove_replaced()
        for name in await self._files.names(DIRECTORY):
            if name.endswith(".tmp"):
                await self._files.remove(f"{DIRECTORY}/{name}")

    async def _replay_snapshot(self, index: int, replay: Callable[[Command], object]) -> None:
        path = _path(index, "snapshot")
        file = await self._files.open(path)
        try:
            data = await _read_all(file)
        finally:
            await file.close()
        for record in read_snapshot(path, data, index):
            _replay_record(path, record, replay)
        self._snapshot_bytes = len(data)

    async def _replay_log(self, first_index: int, replay: Callable[[Command], object], *, last: bool) -> None:
        path = _path(first_index, "log")
        file = await self._files.open(path)
        try:
            data = await _read_all(file)
            content = read_log(path, data, first_index)
            for record in content.records:
                _replay_record(path, record, replay)
            self._index += len(content.records)
            if last:
                if content.torn:
                    log.warning(
                        "%s: cut off at byte %d, where a write was torn (%d bytes)",
                        path, content.end, len(data) - content.end,
                    )  # fmt: skip
                await file.size(truncate_to=content.end)
                await file.sync()
                self._end = content.end
                previous, self._file = self._file, file
                if previous is not None:
                    await previous.close()
        finally:
            if self._file is not file:
                await file.close()


def _snapshot_chunks(index: int, commands: Iterable[Command]) -> Iterable[bytes]:
    chunk = bytearray(encode_file_header(KIND_SNAPSHOT, index))
    position = len(chunk)
    count = 0
    for command in commands:
        count += 1
        record = encode_record(position, count, 0, encode_command(command))
        position += len(record)
        chunk += record
        if len(chunk) >= _CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    yield bytes(chunk) + encode_record(position, count, 0, b"")


def _replay_record(path: str, record: Record, replay: Callable[[Command], object]) -> None:
    try:
        replay(decode_command(record.payload))
    except (ValueError, InconsistentCommand) as error:
        raise MetadataCorrupt(path, record.position, str(error)) from error


async def _read_all(file: File) -> bytes:
    return await file.read(0, await file.size())
