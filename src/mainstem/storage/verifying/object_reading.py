"""The objects of a write group as files that a check reads. A small file comes with one request, a larger one a window
at a time."""

from __future__ import annotations

from typing import overload

from mainstem.model import Buffer
from mainstem.ports import ObjectRange, ObjectStore, ReadingMode
from mainstem.storage.object_stores.errors import ObjectAbsent, ObjectTooShort
from mainstem.storage.store_files.object_names import object_of

WHOLE_BYTES_MAX = 8 << 20
"""Objects up to here are read in one go: each request waits for the store, whatever it brings."""


class ObjectsAsFiles:
    """Implements `file_check.Opens` over a cluster's folder. Absent objects are FileNotFoundError, as files are; that
    the store is out, or refuses, is `OutOfReach`."""

    def __init__(self, folder: ObjectStore, group: int, whole_bytes_max: int = WHOLE_BYTES_MAX) -> None:
        """Objects of up to `whole_bytes_max` bytes are read at once."""
        self._folder = folder
        self._group = group
        self._whole_bytes_max = whole_bytes_max

    async def open(self, path: str, *, reading: ReadingMode = ReadingMode.COLD) -> ObjectAsFile:
        name = object_of(self._group, path)
        try:
            size = (await self._folder.info(name)).size_bytes
        except ObjectAbsent as error:
            raise FileNotFoundError(str(error)) from error
        return ObjectAsFile(self._folder, name, size, at_once=size <= self._whole_bytes_max)


class ObjectAsFile:
    """An object of which the size was asked. It never changes."""

    def __init__(self, folder: ObjectStore, name: str, size_bytes: int, *, at_once: bool) -> None:
        self._folder = folder
        self._name = name
        self._size_bytes = size_bytes
        self._at_once = at_once
        self._whole: bytes | None = None

    async def size(self) -> int:
        return self._size_bytes

    @overload
    async def read(self, position: int, length: int) -> bytes: ...

    @overload
    async def read(self, position: int, length: int, *, at_once: bool) -> Buffer: ...

    async def read(self, position: int, length: int, *, at_once: bool = False) -> Buffer:
        """Bytes at a position; fewer at the object's end. Raises OSError, and `OutOfReach`."""
        length = min(length, self._size_bytes - position)
        if length <= 0:
            return b""
        if not self._at_once:
            return await self._read(position, length)
        if self._whole is None:
            self._whole = await self._read(0, self._size_bytes)
        return self._whole[position : position + length]

    async def _read(self, position: int, length: int) -> bytes:
        try:
            (content,) = await self._folder.read(self._name, [ObjectRange(position, length)])
        except ObjectAbsent as error:
            raise FileNotFoundError(str(error)) from error
        except ObjectTooShort as error:
            raise OSError(str(error)) from error
        return bytes(content)

    async def close(self) -> None:
        self._whole = None
