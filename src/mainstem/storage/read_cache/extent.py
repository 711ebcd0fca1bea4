"""Extents of files, which the owner of each file names and reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from mainstem.model import Buffer

ChunkKey = tuple[str, int]
"""File name and number of the chunk in it."""


class CachedFile(Protocol):
    """A file that can be read; `name` is never given to another file."""

    @property
    def name(self) -> str: ...

    async def read(self, position: int, length: int, *, at_once: bool) -> Buffer:
        """Bytes at a position; fewer at the end of the file. `at_once`: no commits want the disk now."""
        ...


class Extent(NamedTuple):
    """Bytes of a file and their CRC32C."""

    source: CachedFile
    position: int
    length: int
    crc: int


ReadTogether = Callable[[Sequence[tuple[str, int, int]]], Awaitable[Sequence[Buffer | None]]]
"""Reads parts of files, by name, position and length, in one go; None for what cannot be read so."""
