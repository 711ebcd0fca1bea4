"""The files of the remote tier as `ports.Files` for readers: each lies in an object, and is never written here.

Which object that is, and how large, the tier's manifest says: to open a file asks the store nothing. The beginning and
the end of a file, its header and, for most, its whole index, comes with the first look at either, since each request
waits for the store once, whatever it brings.

An object that is absent or too short is a file that is damaged (`ObjectAbsent`, `ObjectTooShort`). That the store is
out, or refuses this node, says nothing of the file (`OutOfReach`). An object of a file that does not count any more was
deleted: a reader that was under way looks again (`FileGone`).
"""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, overload

from mainstem.lru import Lru
from mainstem.model import Buffer
from mainstem.ports import ColdPart, DiskUsage, ObjectRange, ObjectStore, ReadingMode
from mainstem.storage.disks.single_flight import SingleFlight
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_format import FRAME_BYTES
from mainstem.storage.object_stores.errors import ObjectAbsent, ObjectTooShort
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.queue_store.reading.open_files import FileGone
from mainstem.storage.remote.reading.pieces_on_disk import KeptPiece, PiecesOnDisk
from mainstem.storage.store_files.object_names import object_of
from mainstem.storage.store_files.store_file import StoreFile, owner_of, path_of

log = logging.getLogger(__name__)

TAIL_BYTES = 256 * 1024
"""The bytes read of a file's end at once if nothing says how large its index is: that of 3,000 extents, in about the
time that its footer alone takes."""

INDEX_BYTES_MAX = 1024 * 1024
"""Up to here the whole index is read with the footer: that of 1 GB in extents of 64 KiB."""

EDGES_BYTES_MAX = 8 * 1024 * 1024
"""For the beginnings and ends of files: they are read once, by whoever loads an index, and soon not needed any more."""


class ObjectFiles:
    """`Files` that reads objects. The writing half of the port is refused: objects are written whole, by whoever moves
    a file into the tier."""

    def __init__(
        self,
        store: ObjectStore,
        manifest: Manifest,
        counts: Callable[[int, str], bool],
        pieces: PiecesOnDisk | None = None,
    ) -> None:
        """`store` is the cluster's folder; `pieces` are asked before it, and get what it gives. `counts(group, name)`
        tells whether a file of the manifest still counts: the log may have decided that it does not, and the manifest
        follows in its own time."""
        self._store = store
        self._manifest = manifest
        self._counts = counts
        self._pieces = pieces
        self._edges: Lru[str, tuple[Buffer, Buffer]] = Lru(EDGES_BYTES_MAX, lambda edges: sum(map(len, edges)))
        """Beginnings and ends, by path."""
        self._edge_loads: SingleFlight[str, tuple[Buffer, Buffer]] = SingleFlight()
        self._expected: dict[str, tuple[int, StoreFile]] = {}
        """Files that are looked at before they come to count, with their write groups, by name."""

    async def open(self, path: str, *, create: bool = False, reading: ReadingMode = ReadingMode.USUAL) -> ObjectFile:
        """FileNotFoundError unless the manifest names the file that the path belongs to."""
        name = owner_of(path)
        file = None if name is None else self._manifest.files.get(name)
        if create or name is None or (file is None and name not in self._expected):
            raise FileNotFoundError(f"{path}: the remote tier has no such file")
        if file is None:
            return ObjectFile(self, path, name, object_of(self._expected[name][0], path), None)
        group = min(self._manifest.counts_for(name), default=file.group)
        if path != path_of(name):
            return ObjectFile(self, path, name, object_of(group, path), None)
        behind_batches = file.bytes - FRAME_BYTES - file.batch_bytes
        tail_bytes = behind_batches if 0 < behind_batches <= INDEX_BYTES_MAX else TAIL_BYTES
        return ObjectFile(self, path, name, object_of(group, path), file.bytes, tail_bytes)

    @contextmanager
    def expecting(self, group: int, files: Sequence[StoreFile]) -> Iterator[None]:
        """Inside the `with`, open these files of a write group too, which lie in the store, and do not count yet."""
        self._expected |= {file.name: (group, file) for file in files}
        try:
            yield
        finally:
            for file in files:
                self._expected.pop(file.name, None)

    async def read_parts(self, parts: Sequence[ColdPart]) -> list[bytes | None]:
        """As `ports.ReadsParts`: all objects at once, the parts of each in one go."""
        of: dict[str, list[int]] = {}
        for number, part in enumerate(parts):
            of.setdefault(part.path, []).append(number)
        found: list[bytes | None] = [None] * len(parts)

        async def read(path: str, numbers: Sequence[int]) -> None:
            try:
                contents = await self._read_parts(path, [ObjectRange(*parts[number][1:]) for number in numbers])
            except (StorageError, OSError) as error:
                log.debug("parts of %s cannot be read: %s", path, error)
                return
            for number, content in zip(numbers, contents, strict=True):
                found[number] = bytes(content)

        await asyncio.gather(*(read(path, numbers) for path, numbers in of.items()))
        return found

    async def _read_parts(self, path: str, ranges: Sequence[ObjectRange]) -> list[Buffer]:
        file = await self.open(path)
        size = await file.size()
        edges = self._edges.get(path)
        if edges is not None and all(position >= size - len(edges[1]) for position, _length in ranges):
            return [await file.read(position, length, at_once=True) for position, length in ranges]
        inside = [ObjectRange(position, min(length, size - position)) for position, length in ranges]
        if any(length <= 0 for _position, length in inside):
            raise ObjectTooShort(f"{path} ends at {size}, before what was asked for begins")
        return await self._fetch(file, inside)

    async def names(self, directory: str) -> list[str]:
        """None: what there is of the tier is never found by listing."""
        return []

    async def rename(self, source: str, target: str) -> None:
        _refuse(source)

    async def remove(self, path: str, *, durable: bool = True) -> None:
        _refuse(path)

    async def usage(self) -> DiskUsage:
        _refuse("the tier")

    def forget(self, paths: Sequence[str]) -> None:
        """Drop what is kept of these paths' objects."""
        for path in paths:
            self._edges.pop(path)
            if self._pieces is not None:
                self._pieces.forget(path)

    async def size(self, file: ObjectFile) -> int:
        """Of an object whose size the manifest does not say."""
        try:
            return (await self._store.info(file.object_name)).size_bytes
        except ObjectAbsent as error:
            raise self._absent(file, error) from error

    async def read(self, file: ObjectFile, size: int, position: int, length: int) -> Buffer:
        """A stretch of an object of `size` bytes, all of it inside."""
        tail = size - file.tail_bytes if size > FRAME_BYTES + TAIL_BYTES else 0
        if position + length <= FRAME_BYTES or position >= tail:
            head, end = self._edges.get(file.path) or await self._edge_loads.run(
                file.path, lambda: self._load_edges(file, size, tail)
            )
            part, begins = (end, position - tail) if position >= tail else (head, position)
            return memoryview(part)[begins : begins + length]
        return (await self._fetch(file, [ObjectRange(position, length)]))[0]

    async def _load_edges(self, file: ObjectFile, size: int, tail: int) -> tuple[Buffer, Buffer]:
        """The beginning of the object of `size` bytes, and all from `tail` on; 0: all of it is at its end."""
        head = [ObjectRange(0, FRAME_BYTES)] if tail else []
        found = await self._fetch(file, [*head, ObjectRange(tail, size - tail)])
        edges = (found[0] if tail else b""), found[-1]
        self._edges.put(file.path, edges)
        return edges

    async def _fetch(self, file: ObjectFile, ranges: Sequence[ObjectRange]) -> list[Buffer]:
        """Stretches of an object, from disk 2 or the store; of one stretch among them that disk 2 lacks, all come from
        the store."""
        pieces = self._pieces
        if pieces is not None:
            kept = [await self._kept(pieces, file, place) for place in ranges]
            held = [piece for piece in kept if piece is not None]
            if len(held) == len(ranges):
                return held
        try:
            found = await self._store.read(file.object_name, ranges)
        except ObjectAbsent as error:
            raise self._absent(file, error) from error
        if pieces is not None:
            for place, content in zip(ranges, found, strict=True):
                for piece in _slots(place, pieces.slot_bytes):
                    begins = piece.position - place.position
                    pieces.keep(KeptPiece(file.path, *piece), memoryview(content)[begins : begins + piece.length])
        return found

    async def _kept(self, pieces: PiecesOnDisk, file: ObjectFile, place: ObjectRange) -> Buffer | None:
        """A stretch of an object from disk 2; None unless that has all of it."""
        held: list[Buffer] = []
        for piece in _slots(place, pieces.slot_bytes):
            content = await pieces.read(KeptPiece(file.path, *piece))
            if content is None:
                return None
            held.append(content)
        return held[0] if len(held) == 1 else b"".join(held)

    def _absent(self, file: ObjectFile, error: ObjectAbsent) -> StorageError:
        groups = self._manifest.counts_for(file.owner)
        if not any(self._counts(group, file.owner) for group in groups):
            return FileGone(f"{file.owner}: it left the remote tier")
        return error


class ObjectFile:
    """`File` that is an object. It never changes, so that its size stays what it was."""

    def __init__(
        self,
        files: ObjectFiles,
        path: str,
        owner: str,
        object_name: str,
        size_bytes: int | None,
        tail_bytes: int = TAIL_BYTES,
    ) -> None:
        """`owner`: the name of the file that the path belongs to. `size_bytes` None: the store has to be asked.
        `tail_bytes`: what is read of its end at once."""
        self._files = files
        self.path = path
        self.owner = owner
        self.object_name = object_name
        self._size_bytes = size_bytes
        self.tail_bytes = tail_bytes

    @overload
    async def read(self, position: int, length: int) -> bytes: ...

    @overload
    async def read(self, position: int, length: int, *, at_once: bool) -> Buffer: ...

    async def read(self, position: int, length: int, *, at_once: bool | None = None) -> Buffer:
        """Raises `StorageError`: `OutOfReach` while the store is out or refuses this node."""
        size = self._size_bytes if self._size_bytes is not None else await self.size()
        length = min(length, size - position)
        content = await self._files.read(self, size, position, length) if length > 0 else b""
        return bytes(content) if at_once is None else content

    async def write(self, position: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        _refuse(self.path)

    async def sync(self) -> None:
        return

    async def forget(self) -> None:
        return

    async def fill(self, position: int, length: int, *, bytes_per_second: float) -> None:
        _refuse(self.path)

    async def fill_in_memory(self, position: int, length: int) -> float:
        _refuse(self.path)

    async def size(self, *, truncate_to: int | None = None) -> int:
        if truncate_to is not None:
            _refuse(self.path)
        if self._size_bytes is None:
            self._size_bytes = await self._files.size(self)
        return self._size_bytes

    async def lock(self, *, exclusive: bool) -> bool:
        _refuse(self.path)

    async def close(self) -> None:
        return


def _slots(place: ObjectRange, slot_bytes: int) -> list[ObjectRange]:
    """A stretch in the parts that disk 2 keeps: several chunks are the same parts as each of them alone."""
    if place.position % slot_bytes:
        return [place]
    end = place.position + place.length
    return [ObjectRange(at, min(slot_bytes, end - at)) for at in range(place.position, end, slot_bytes)]


def _refuse(path: str) -> NoReturn:
    raise io.UnsupportedOperation(f"{path}: the remote tier is only read here")
