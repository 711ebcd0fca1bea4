"""The content of the copy of a lost manifest: the newest image that is whole, and the changes that follow it.

If no image is there, the changes since the store was made are all. A file that is damaged ends the changes that can be
followed; an older image reaches no further, and serves where the newer one is what is damaged."""

from __future__ import annotations

import bisect
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from mainstem.ports import Files, ReadingMode
from mainstem.storage.errors import FormatError
from mainstem.storage.queue_store.manifest.database.manifest_database import (
    FIRST_SCHEMA_VERSION,
    MERGED_SCHEMA_VERSION,
    Contents,
    WriteGroupPosition,
)
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.queue_store.manifest.manifest_rows import (
    CHANGES_SUFFIX,
    COPY_DIRECTORY,
    HEADER_BYTES,
    IMAGE_SUFFIX,
    CopyHeader,
    DroppedRow,
    FileRow,
    GoneRow,
    PositionRow,
    RangeRow,
    RecalledRow,
    Row,
    SchemaRow,
    SeenRow,
    changes_path,
    image_path,
    numbers,
    rows_in,
)
from mainstem.storage.store_files.store_file import StoreFile

READ_BYTES = 8 << 20


class CopiedManifest(NamedTuple):
    """The content of a copy, and how that was found."""

    contents: Contents
    schema_version: int
    image: int | None
    """The last change that the image has which it began with; None: the first change of the store."""
    changes: int
    """Files of changes that were applied."""


class _Copied:
    """A manifest while rows are applied to it."""

    def __init__(self) -> None:
        self.files: dict[str, StoreFile] = {}
        self.ranges: dict[int, FileRange] = {}
        self.positions: dict[int, WriteGroupPosition] = {}
        self.dropped: set[str] = set()
        self.seen: dict[str, int] = {}
        self.schema_version = FIRST_SCHEMA_VERSION

    def apply(self, row: Row, *, repeated: bool) -> None:
        """`repeated`: an image may have had it before. Raises `FormatError`."""
        match row:
            case FileRow():
                file = row.file()
                self.files[file.name] = file
                if file.is_merged:  # for good: it may have none any more
                    self.schema_version = max(self.schema_version, MERGED_SCHEMA_VERSION)
            case RangeRow():
                self.ranges[row.sequence] = row.range()
            case GoneRow():
                if self.ranges.pop(row.sequence, None) is None and not repeated:
                    raise FormatError(f"range {row.sequence} goes, which never came")
            case PositionRow():
                self.positions[row.group] = WriteGroupPosition(row.position, row.applied_index)
            case DroppedRow():
                self.dropped.add(row.name)
            case RecalledRow():
                self.dropped.discard(row.name)
            case SeenRow():
                self.seen[row.name] = row.seen_ms
            case SchemaRow():
                self.schema_version = max(self.schema_version, row.version)

    def contents(self, identity: uuid.UUID, changes: int) -> Contents:
        """All of it, as a database gives it. Raises `FormatError`."""
        first: dict[str, int] = {}
        for sequence, entry in sorted(self.ranges.items()):
            first.setdefault(entry.name, sequence)
            if entry.name not in self.files:
                raise FormatError(f"{entry.name} counts for write group {entry.group}, and is not described")
        return Contents(
            identity=identity,
            changes=changes,
            files=[self.files[name] for name in first],
            ranges=sorted(self.ranges.values(), key=lambda one: (one.group, one.upto, one.after, one.sequence)),
            positions=self.positions,
            dropped=self.dropped,
            seen={name: seen_ms for name, seen_ms in self.seen.items() if name in first},
        )


async def read_copy(files: Files, identity: uuid.UUID) -> tuple[CopiedManifest | None, list[str]]:
    """The content of the copy of this store's manifest, and what is wrong with it; None: there is none that serves.
    Raises OSError."""
    names = await files.names(COPY_DIRECTORY)
    faults: dict[str, None] = {}
    for last in [*reversed(numbers(names, IMAGE_SUFFIX)), None]:
        try:
            copied = await _from_image(files, identity, last, numbers(names, CHANGES_SUFFIX), faults)
        except FormatError as error:
            faults[str(error)] = None
            continue
        if copied is not None:
            return copied, list(faults)
    return None, list(faults)


async def _from_image(
    files: Files, identity: uuid.UUID, image: int | None, changes: Sequence[int], faults: dict[str, None]
) -> CopiedManifest | None:
    """Raises `FormatError` when the image, or what follows it, does not serve. The damage that ends the changes early
    is noted."""
    copied, end, may_have, count = _Copied(), 0, 0, 0
    if image is not None:
        header, rows = await _read(files, identity, image_path(image))
        end, may_have = header.first, header.last
        for row in rows:
            copied.apply(row, repeated=True)
    for first in changes[max(bisect.bisect_right(changes, end + 1) - 1, 0) :]:
        if first > end + 1:
            faults[f"changes {end + 1} to {first - 1} are missing"] = None
            break
        try:
            header, rows = await _read(files, identity, changes_path(first))
        except FormatError as error:
            faults[str(error)] = None
            break
        if header.last <= end:
            continue
        for row in rows:
            copied.apply(row, repeated=header.first <= may_have)
        end, count = header.last, count + 1
    if end < may_have:
        raise FormatError(
            f"{image_path(may_have)}: it counts only with changes {end + 1} to {may_have}, which are missing"
        )
    if image is None and not count:
        return None
    return CopiedManifest(copied.contents(identity, end), copied.schema_version, image, count)


async def _read(files: Files, identity: uuid.UUID, path: str) -> tuple[CopyHeader, list[Row]]:
    """A file of the copy. Raises `FormatError`, OSError."""
    file = await files.open(path, reading=ReadingMode.COLD)
    try:
        header = CopyHeader.unpack(await file.read(0, HEADER_BYTES), path)
        body = bytearray()
        while piece := await file.read(HEADER_BYTES + len(body), READ_BYTES):
            body += piece
    finally:
        await file.close()
    if header.path != path:
        raise FormatError(f"{path}: it says that it is {header.path}")
    if header.identity != identity:
        raise FormatError(f"{path}: it is of store {header.identity}, this is store {identity}")
    return header, list(rows_in(bytes(body), header))


async def copy_faults(
    files: Files, identity: uuid.UUID, contents: Contents | None, vouched: int
) -> list[tuple[str, str]]:
    """The places at which a copy is damaged, ends before change `vouched`, or says something else than the manifest did
    after the same change, as (path, what). A store without a copy is one of an earlier version. A node may run
    meanwhile: what it removed is passed over. Raises OSError."""
    names = await files.names(COPY_DIRECTORY)
    found: list[tuple[str, str]] = []
    paths = [*map(image_path, numbers(names, IMAGE_SUFFIX)), *map(changes_path, numbers(names, CHANGES_SUFFIX))]
    for path in paths:
        try:
            await _read(files, identity, path)
        except FileNotFoundError:
            continue
        except FormatError as error:
            found.append((path, str(error).removeprefix(f"{path}: ")))
    if found or not paths:
        return found
    try:
        copied, faults = await read_copy(files, identity)
    except FileNotFoundError:
        return found
    end = copied.contents.changes if copied is not None else 0
    if end < vouched:
        why = "; ".join(faults) or "the newest changes are missing"
        found.append((COPY_DIRECTORY, f"the copy ends with change {end}, and the store has seen {vouched}: {why}"))
    elif contents is not None and copied is not None and copied.contents.changes == contents.changes:
        said = copied.contents._replace(seen=contents.seen)  # those come with the next change
        if said != contents:
            found.append((COPY_DIRECTORY, "the copy of the manifest does not say what the manifest says"))
    return found
