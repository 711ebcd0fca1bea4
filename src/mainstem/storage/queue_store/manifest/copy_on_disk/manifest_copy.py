"""The manifest's copy on disk 2, from which a lost manifest is made anew.

Each change of the manifest is written to disk 2 as well, in a file of its own (`manifest_rows.py`), before the store's
mark says that it was made. So what the mark vouches for, the copy has: journal and checkpoints rely on nothing else.

The changes since the store was made are the whole manifest. To have fewer, an *image* of all that the manifest says is
written from time to time, while the manifest goes on changing: it counts with the changes made since it was begun. The
last two images stay, with all changes since the older one, so that one damaged file loses nothing.

A version that knows nothing of the copy changes the manifest alone. The copy then ends before the manifest does; the
next start finds that, and an image is written over the gap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import chain, pairwise

import google_crc32c

from mainstem.ports import Files
from mainstem.storage.queue_store.manifest.copy_on_disk.copy_rot import CopyRot, Pace, look_for_rot, read_header
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.queue_store.manifest.manifest_rows import (
    CHANGES_SUFFIX,
    COPY_DIRECTORY,
    HEADER_BYTES,
    IMAGE_SUFFIX,
    PAGE_ROWS,
    CopyHeader,
    CopyKind,
    DroppedRow,
    FileRow,
    PositionRow,
    RangeRow,
    Row,
    SchemaRow,
    SeenRow,
    changes_path,
    image_path,
    numbers,
    pages,
)
from mainstem.storage.store_files.store_file import TEMPORARY_INFIX

log = logging.getLogger(__name__)

IMAGES_KEPT = 2

CHANGES_PER_IMAGE_MIN = 64
CHANGES_PER_IMAGE_MAX = 4096
"""Files of changes are small, and a file takes a page on the disk; a repair reads each."""

BYTES_PER_CHANGE = 4096
"""The least room that a file of changes takes on the disk."""

PENDING_ROWS_MAX = 100_000
"""Changes wait for the disk while it fails or is full; some ten MiB. An image says what more of them would have."""

_TEMPORARY = f"{TEMPORARY_INFIX}new"
"""The node has one writer of the copy."""


class ManifestCopy:
    """Writes the copy of one manifest. Make it with `open`, once store and manifest are paired."""

    def __init__(
        self, files: Files, manifest: Manifest, images: list[CopyHeader], stale: Sequence[str], *, whole: bool
    ) -> None:
        self._files = files
        self._manifest = manifest
        self._images = images
        """Of the last images, the oldest first."""
        self._stale = list(stale)
        """Paths of what goes before anything is written, in this order."""
        self._rotten: list[str] = []
        """Paths of what goes with the next image, which takes its place."""
        self._last = manifest.changes
        """The last change that is written."""
        self._whole = whole
        """The copy reaches from the first change of the store, or from an image, to `_last`."""
        self._changes = self._last - images[-1].first if images else self._last
        """Since the last image was begun."""
        self._pending: list[Row] = []
        """The changes behind `_last`."""
        manifest.on_change = self._note

    @classmethod
    async def open(cls, files: Files, manifest: Manifest) -> ManifestCopy:
        """Find what there is of the copy, and change nothing: the start may yet refuse. With the first write goes what
        was being written, and changes that the manifest never had: it lost them before the mark knew of them. Raises
        OSError."""
        names = await files.names(COPY_DIRECTORY)
        stale = [f"{COPY_DIRECTORY}/{name}" for name in names if TEMPORARY_INFIX in name]
        rotten: list[CopyRot] = []
        try:
            images, last = await _found(files, names, manifest)
            if last is not None and last > manifest.changes:
                stale += await _behind(files, names, manifest)
        except CopyRot as rot:
            log.warning("the copy of the manifest on disk 2 is damaged, and is begun anew: %s", rot)
            images, last, rotten = [], None, [rot]
        images = [image for image in images if image.last <= manifest.changes]
        copy = cls(files, manifest, images, stale, whole=last == manifest.changes)
        copy._replaces(rotten)
        return copy

    def _replaces(self, rotten: Sequence[CopyRot]) -> None:
        """The next image takes the place of these."""
        self._rotten = [rot.path for rot in rotten if rot.path != COPY_DIRECTORY]

    def _note(self, rows: Iterable[Row]) -> None:
        self._pending += rows
        if len(self._pending) > PENDING_ROWS_MAX:
            self._pending.clear()
            self._images, self._last, self._whole = [], self._manifest.changes, False

    async def write(self) -> None:
        """Have all changes made so far in the copy, durably. The caller holds the lock of changes. Raises OSError; the
        next call tries again."""
        first, last = self._last + 1, self._manifest.changes
        if not self._whole and last:  # a change is in no file: the mark would vouch for what the copy lacks
            self._last = last
            self._pending.clear()
            await self._write_image()
            return
        if first > last:
            return
        identity, count = self._manifest.identity, len(self._pending)
        assert identity is not None
        await self._remove_stale()
        body = b"".join(pages(self._pending))
        header = CopyHeader(CopyKind.CHANGES, identity, first, last, len(body), google_crc32c.value(body))
        temporary = header.path + _TEMPORARY
        file = await self._files.open(temporary, create=True)
        try:
            await file.size(truncate_to=0)
            await file.write(0, [header.pack(), body], sync=True)
        finally:
            await file.close()
        await self._files.rename(temporary, header.path)
        del self._pending[:count]
        self._last = last
        self._changes += 1

    @property
    def is_due(self) -> bool:
        """Whether an image is to be written: changes are to take no more room than the image does that they follow."""
        if not self._whole:
            return self._last > 0
        room = self._images[-1].size // BYTES_PER_CHANGE if self._images else 0
        return self._changes >= min(max(room, CHANGES_PER_IMAGE_MIN), CHANGES_PER_IMAGE_MAX)

    async def renew(self) -> None:
        """Write an image if it is due, and remove what the last two make superfluous. The manifest may change
        meanwhile. If the disk fails, the next call tries again."""
        if not self.is_due:
            return
        try:
            await self._write_image()
            await self._remove_superfluous()
        except OSError as error:
            log.warning("no image of the manifest could be written on disk 2: %s", error)

    async def look_for_rot(self, pace: Pace) -> list[CopyRot]:
        """Read the copy, and return what is not as it was written: an image is due then, which takes its place. `pace`
        is awaited for the bytes that are read. Raises OSError."""
        identity = self._manifest.identity
        if not self._whole or identity is None:
            return []  # an image is due in any case
        found = await look_for_rot(self._files, identity, self._last, pace)
        if found:
            self._images, self._whole = [], False
            self._replaces(found)
        return found

    async def _write_image(self) -> None:
        identity, begun, size, crc = self._manifest.identity, self._last, 0, 0
        assert identity is not None
        await self._remove_stale()
        temporary = image_path(begun) + _TEMPORARY
        file = await self._files.open(temporary, create=True)
        try:
            await file.size(truncate_to=0)
            async for body in self._image():
                await file.write(HEADER_BYTES + size, [body])
                size += len(body)
                crc = google_crc32c.extend(crc, body)
            header = CopyHeader(CopyKind.IMAGE, identity, begun, self._manifest.changes, size, crc)
            await file.write(0, [header.pack()], sync=True)
        finally:
            await file.close()
        await self._files.rename(temporary, header.path)
        self._images = [*self._images, header][-IMAGES_KEPT:]
        self._changes = self._last - begun
        self._whole = True
        while self._rotten:
            if self._rotten[0] != header.path:
                await self._files.remove(self._rotten[0])
            del self._rotten[0]

    async def _image(self) -> AsyncIterator[bytes]:
        """The content of the manifest, write group by write group, as pages; other changes may be in one than in
        another."""
        manifest = self._manifest
        rows: list[Row] = [SchemaRow(manifest.schema_version), *map(DroppedRow, sorted(manifest.dropped))]
        for group in manifest.groups():
            rows.append(PositionRow(group, *manifest.position(group)))
            for entry in chain.from_iterable(manifest.spans(group)):
                file = manifest.files.get(entry.name)
                if file is None:  # gone meanwhile, as a change says
                    continue
                if group == min(manifest.counts_for(entry.name), default=group):
                    rows.append(FileRow.of(file))
                    if entry.name in manifest.seen:
                        rows.append(SeenRow(entry.name, manifest.seen[entry.name]))
                rows.append(RangeRow(*entry))
                if len(rows) >= PAGE_ROWS:
                    for body in pages(rows):
                        yield body
                    rows.clear()
                    await asyncio.sleep(0)
        for body in pages(rows):
            yield body

    async def _remove_stale(self) -> None:
        while self._stale:
            await self._files.remove(self._stale[0])
            del self._stale[0]

    async def _remove_superfluous(self) -> None:
        if len(self._images) < IMAGES_KEPT:
            return
        oldest = self._images[0]
        names = await self._files.names(COPY_DIRECTORY)
        for last in numbers(names, IMAGE_SUFFIX):
            if last < oldest.last:
                await self._files.remove(image_path(last))
        for first, following in pairwise(numbers(names, CHANGES_SUFFIX)):
            if following <= oldest.first + 1:
                await self._files.remove(changes_path(first))


async def _found(files: Files, names: Sequence[str], manifest: Manifest) -> tuple[list[CopyHeader], int | None]:
    """The last images, and the last change that follows them; None: the copy has no beginning. Raises `CopyRot`,
    OSError."""
    changes = numbers(names, CHANGES_SUFFIX)
    images = [await read_header(files, image_path(last)) for last in numbers(names, IMAGE_SUFFIX)[-IMAGES_KEPT:]]
    newest = await read_header(files, changes_path(changes[-1])) if changes else None
    for header in (*images, *([newest] if newest is not None else [])):
        if header.identity != manifest.identity:
            raise CopyRot(COPY_DIRECTORY, f"{header.path} is of store {header.identity}")
    if newest is not None:
        return images, newest.last if images or changes[0] == 1 else None
    return images, images[-1].last if images else 0


async def _behind(files: Files, names: Sequence[str], manifest: Manifest) -> list[str]:
    """The paths of what has changes behind those of the manifest: others get their numbers. The newest comes first, so
    that what is left while they go has no gap. Raises `CopyRot`, OSError."""
    found = [image_path(last) for last in numbers(names, IMAGE_SUFFIX) if last > manifest.changes]
    for first in reversed(numbers(names, CHANGES_SUFFIX)):
        if (await read_header(files, changes_path(first))).last <= manifest.changes:
            break
        found.append(changes_path(first))
    return found
