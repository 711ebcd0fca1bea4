"""Makes anew what the rest of a store tells: the mark from the manifest, a queue segment's indexes from its batches.

Nothing is deleted: what was in the place of a file that is made anew is moved to `SET_ASIDE`, in the store's directory.
The node is stopped. A file that cannot be made anew stays as it is. The manifest's copy is only set aside where it is
damaged: a node that finds none writes one. The manifest itself is for `rebuilding.py`.

The CRC of a batch covers neither its offset nor its leader epoch; that of its extent does, in `.extents`. This is made
anew only where offsets follow each other without a gap and all batches are of one epoch, so that a flipped bit in them
would show.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy

from mainstem.kernel import first_damaged, walk_batches
from mainstem.storage.errors import FormatError
from mainstem.storage.queue_store.manifest.database.manifest_database import Contents
from mainstem.storage.queue_store.manifest.manifest_rows import COPY_DIRECTORY
from mainstem.storage.queue_store.manifest.store_mark import MARK_NAME, SLOT_DISTANCE, StoreMark
from mainstem.storage.store_files.run_target import LocalRunTarget, NoTarget, RunTarget
from mainstem.storage.store_files.segment_writer import BATCH_FIELDS, Integers, SegmentWriter, described
from mainstem.storage.store_files.store_file import (
    EXTENTS_SUFFIX,
    SEGMENT_SUFFIX,
    StoreFile,
    has_index_beside,
    path_of,
    paths_of,
)
from mainstem.storage.store_files.transaction_scan import TransactionScan, flags_of
from mainstem.storage.verifying.store_check import StoreReport

SET_ASIDE = "set-aside"
"""Below the store's directory."""

WINDOW_BYTES = 8 << 20

BYTES_PER_BATCH_MIN = 61


class Remake(NamedTuple):
    """Something that can be made anew."""

    path: str
    file: StoreFile | None
    """The queue segment that it belongs to; None: it is the mark, or the manifest's copy."""


class Remade(NamedTuple):
    path: str
    refused: str
    """Why it was left as it is; empty: it was made anew."""


def remakes(contents: Contents, report: StoreReport, manifest_path: str) -> list[Remake]:
    """The findings that can be made anew: the file is damaged, and its sources are not."""
    if any(finding.path == manifest_path for finding in report.findings):
        return []
    files = {file.name: file for file in contents.files}
    bad: dict[str, set[str]] = {}
    for finding in report.findings:
        bad.setdefault(finding.name, set()).add(finding.path)
    found: list[Remake] = []
    for name, paths in sorted(bad.items()):
        if name in files and has_index_beside(name) and path_of(name) not in paths:
            found += [Remake(path, files[name]) for path in paths_of(name)[1:] if path in paths]
    if any(finding.path == MARK_NAME for finding in report.findings) and contents.identity is not None:
        found.append(Remake(MARK_NAME, None))
    if any(Path(finding.path).parts[0] == COPY_DIRECTORY for finding in report.findings):
        found.append(Remake(COPY_DIRECTORY, None))
    return found


def remake(
    root: Path, contents: Contents, report: StoreReport, wanted: Sequence[Remake], *, disk_lost: bool = False
) -> list[Remade]:
    """Make these anew, durably. `disk_lost`: all files of the store are lost, as the operator says. Raises OSError."""
    by_name: dict[str, list[Remake]] = {}
    for one in wanted:
        by_name.setdefault(one.file.name if one.file is not None else one.path, []).append(one)
    done: list[Remade] = []
    for together in by_name.values():
        file, paths = together[0].file, [one.path for one in together]
        try:
            if paths == [COPY_DIRECTORY]:
                _set_aside(root, COPY_DIRECTORY)
            elif file is None:
                _remake_mark(root, contents, report, disk_lost=disk_lost)
            else:
                _remake_beside(root, file, paths)
        except FormatError as error:
            done += [Remade(path, str(error)) for path in paths]
        else:
            done += [Remade(path, "") for path in paths]
    return done


# --- the mark -------------------------------------------------------------------------------------------------


def _remake_mark(root: Path, contents: Contents, report: StoreReport, *, disk_lost: bool) -> None:
    """Raises `FormatError` where the manifest may be another store's, or an old copy."""
    assert contents.identity is not None
    content = (root / MARK_NAME).read_bytes() if (root / MARK_NAME).exists() else b""
    slots = [content[place : place + SLOT_DISTANCE][:64] for place in (0, SLOT_DISTANCE)]
    if not any(StoreMark.unpack(slot) for slot in slots):
        missing = [finding for finding in report.findings if finding.what == "is missing"]
        all_missing = contents.files and len({finding.name for finding in missing}) == len(contents.files)
        if all_missing and not (disk_lost and not any(root.iterdir())):
            raise FormatError(
                "none of the manifest's files is here: is this the store's disk, and mounted? If all of it is lost, "
                "name an empty directory, and say --disk-lost"
            )
        orphans = sum(unnamed.kind == "orphan" for unnamed in report.unnamed)
        if orphans:
            raise FormatError(
                f"no copy of the mark tells whether the manifest is an old one, and it does not name {orphans} of the "
                f"files here: restore {MARK_NAME} from a copy"
            )
    marks = {contents.changes % 2: StoreMark(contents.identity, contents.changes).pack()}
    if contents.changes:
        older = contents.changes - 1
        marks[older % 2] = StoreMark(contents.identity, older).pack()
    staged = _staging(root)
    target = LocalRunTarget(staged, MARK_NAME)
    target.write(marks.get(0, bytes(64)) + bytes(SLOT_DISTANCE - 64) + marks.get(1, b""))
    target.finish()
    _put(root, staged / MARK_NAME, MARK_NAME)
    staged.rmdir()


# --- queue segments -------------------------------------------------------------------------------------------


def _remake_beside(root: Path, file: StoreFile, paths: Sequence[str]) -> None:
    """Make some of a segment's siblings from its batches. Raises `FormatError` where these are not what they were."""
    stem = path_of(file.name).removesuffix(SEGMENT_SUFFIX)
    staged = _staging(root)

    def open_sibling(suffix: str) -> RunTarget:
        return NoTarget() if suffix == SEGMENT_SUFFIX else LocalRunTarget(staged, suffix.removeprefix("."))

    made = {path: staged / path.removeprefix(stem).removeprefix(".") for path in paths_of(file.name)[1:]}
    try:
        behind, epochs, gapless = file.first_offset, set[int](), True
        scan = TransactionScan(file.first_queue, from_first=file.first_offset == 0, where=path_of(file.name))
        with SegmentWriter(file.name, file.first_offset, open_sibling) as writer:
            for content, batches in _batches(root / path_of(file.name)):
                follows = numpy.append(behind, batches[:-1, 3] + 1) == batches[:, 2]
                gapless = gapless and bool(follows.all())
                epochs.update(numpy.unique(batches[:, 6]).tolist())
                behind = int(batches[-1, 3]) + 1
                if stem + EXTENTS_SUFFIX in paths:
                    scan.add(content, batches)
                flags = flags_of(content, numpy.ascontiguousarray(batches[:, 0]))
                writer.append(content, described(batches, file.first_queue, flags), batches)
            summary = writer.finish(scan.rows())
        said = {field: getattr(file, field) for field in summary._fields}
        if summary._asdict() != said:
            raise FormatError(f"{path_of(file.name)}: its batches are not those that the manifest has")
        if stem + EXTENTS_SUFFIX in paths and not (gapless and len(epochs) == 1):
            raise FormatError(
                f"{path_of(file.name)}: its offsets have gaps, or its batches are of several epochs, and nothing sound "
                f"says whether they are to; restore {stem + EXTENTS_SUFFIX} from a copy"
            )
        for path in paths:
            _put(root, made[path], path)
    finally:
        for left in staged.iterdir():
            left.unlink()
        staged.rmdir()


def _batches(path: Path) -> Iterator[tuple[memoryview, Integers]]:
    """The batches of a `.log`, whose CRCs are right, some megabytes at a time: bytes, and rows of `BATCH_FIELDS`."""
    place = 0
    with path.open("rb") as log:
        content = b""
        while (piece := log.read(WINDOW_BYTES)) or content:
            content += piece
            rows = numpy.zeros((len(content) // BYTES_PER_BATCH_MIN + 1, len(BATCH_FIELDS)), numpy.int64)
            count = walk_batches(content, rows.data.cast("B"))
            rows = rows[: count if count >= 0 else int(numpy.count_nonzero(rows[:, 1]))]
            if not len(rows) and not piece:
                raise FormatError(f"{path}: there is no batch at {place}")
            if not len(rows):
                continue
            position, length, base, epoch = (numpy.ascontiguousarray(rows[:, at]) for at in (0, 1, 2, 6))
            damaged = first_damaged(content, position.data, length.data, base.data, epoch.data)
            if damaged >= 0:
                raise FormatError(f"{path}: the batch at {place + int(position[damaged])} fails its CRC")
            end = int(rows[-1, 0] + rows[-1, 1])
            yield memoryview(content)[:end], rows
            content, place = content[end:], place + end


# --- files ----------------------------------------------------------------------------------------------------


def _staging(root: Path) -> Path:
    """A new directory for what is being made."""
    directory = root / SET_ASIDE / f"new-{uuid.uuid4().hex}"
    directory.mkdir(parents=True)
    return directory


def _put(root: Path, made: Path, path: str) -> None:
    """Give a file that was made its place; what is there is set aside."""
    place = root / path
    if place.exists():
        _set_aside(root, path)
    os.rename(made, place)
    _sync(place.parent)


def _set_aside(root: Path, path: str) -> None:
    aside = root / SET_ASIDE / path
    aside = aside.with_name(f"{aside.name}.{uuid.uuid4().hex}")
    aside.parent.mkdir(parents=True, exist_ok=True)
    os.rename(root / path, aside)
    _sync(aside.parent)
    _sync((root / path).parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
