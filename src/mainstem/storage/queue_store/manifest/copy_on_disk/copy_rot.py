"""Looks for rot in the manifest's copy: every byte of each file against its checksum, and that no change is missing.

Nothing is decoded, and memory is bounded by a piece: an image of a large store has hundreds of megabytes.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

import google_crc32c

from mainstem.ports import Files, ReadingMode
from mainstem.storage.errors import FormatError
from mainstem.storage.queue_store.manifest.manifest_rows import (
    CHANGES_SUFFIX,
    COPY_DIRECTORY,
    HEADER_BYTES,
    IMAGE_SUFFIX,
    CopyHeader,
    changes_path,
    image_path,
    numbers,
)

PIECE_BYTES = 256 << 10
"""Bytes read and checked in one turn of the event loop."""

Pace = Callable[[int], Awaitable[object]]
"""Awaited before so many bytes are read."""


class CopyRot(FormatError):
    """The copy is not what was written. Names the file, or the changes that are missing."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path
        """Of the damaged file, which can go; `COPY_DIRECTORY`: one is missing, or is another store's."""


async def look_for_rot(files: Files, identity: uuid.UUID, upto: int, pace: Pace) -> list[CopyRot]:
    """The damage of the copy of this store's manifest, which had all changes up to `upto` when this was called. The
    node may write meanwhile, and removes files: those are passed over. Raises OSError."""
    names = await files.names(COPY_DIRECTORY)
    images, changes = numbers(names, IMAGE_SUFFIX), numbers(names, CHANGES_SUFFIX)
    found: list[CopyRot] = []
    headers: dict[str, CopyHeader] = {}
    for path in (*map(image_path, images), *map(changes_path, changes)):
        try:
            headers[path] = await _checked(files, path, identity, pace)
        except FileNotFoundError:
            continue
        except CopyRot as rot:
            found.append(rot)
    if found:
        return found
    there = set(await files.names(COPY_DIRECTORY))
    if there.issuperset(names):  # else an image has made some superfluous meanwhile
        end = headers[image_path(images[-1])].first if images else 0
        for first in changes:
            header = headers[changes_path(first)]
            if first > end + 1:
                break
            end = max(end, header.last)
        if end < upto:
            found.append(CopyRot(COPY_DIRECTORY, f"changes {end + 1} to {upto} are not all there"))
    return found


async def _checked(files: Files, path: str, identity: uuid.UUID, pace: Pace) -> CopyHeader:
    """The header of a file of which every byte is what was written. Raises `CopyRot`, OSError."""
    header = await read_header(files, path)
    file = await files.open(path, reading=ReadingMode.COLD)
    try:
        size, rest, crc = 0, await file.size() - HEADER_BYTES, 0
        while size < rest:
            await pace(min(PIECE_BYTES, rest - size))
            piece = await file.read(HEADER_BYTES + size, PIECE_BYTES)
            size += len(piece)
            crc = google_crc32c.extend(crc, bytes(piece))
    finally:
        await file.close()
    if header.identity != identity:
        raise CopyRot(COPY_DIRECTORY, f"{path} is of store {header.identity}, this is store {identity}")
    if (size, crc) != (header.size, header.crc):
        raise CopyRot(path, "it is damaged, or cut short")
    return header


async def read_header(files: Files, path: str) -> CopyHeader:
    """The header of a file of the copy. Raises `CopyRot`, OSError."""
    file = await files.open(path, reading=ReadingMode.COLD)
    try:
        header = CopyHeader.unpack(await file.read(0, HEADER_BYTES), path)
    except FormatError as error:
        raise CopyRot(path, str(error).removeprefix(f"{path}: ")) from error
    finally:
        await file.close()
    if header.path != path:
        raise CopyRot(path, f"it says that it is {header.path}")
    return header
