"""Checks a whole store: its mark, its manifest, every file that counts, and what lies there besides.

Several files are checked at a time, each over files of its own (`ports.Files`), so that reads of one wait for no other.
A node may run meanwhile: what it replaced or removed since the manifest was read is left out of the report, and is
counted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from mainstem.ports import Files, ReadingMode
from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.manifest.copy_on_disk.copied_manifest import copy_faults
from mainstem.storage.queue_store.manifest.database.manifest_database import Contents, Database
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange, check_keys, spans_of
from mainstem.storage.queue_store.manifest.store_mark import MARK, MARK_NAME, SLOT_DISTANCE, StoreMark
from mainstem.storage.store_files.store_file import (
    PACKED_DIRECTORY,
    QUEUES_DIRECTORY,
    RUNS_DIRECTORY,
    TEMPORARY_INFIX,
    StoreFile,
    owner_of,
    path_of,
)
from mainstem.storage.verifying.file_check import check_file
from mainstem.storage.verifying.findings import COPY_ADVICE, MANIFEST_ADVICE, MARK_ADVICE, Finding, UnnamedFile

FINDINGS_MAX = 10_000
"""Of a whole store: whoever has more restores it."""

UNNAMED_MAX = 10_000


class StoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check of a whole store."""

    files: int
    """That were read."""
    bytes: int
    gone: int
    """Files that were replaced or removed meanwhile, by a node that runs."""
    findings: Sequence[Finding]
    findings_left_out: int
    unnamed: Sequence[UnnamedFile]
    unnamed_left_out: int


class CheckProgress(NamedTuple):
    files: int
    files_total: int
    bytes: int
    bytes_total: int


async def check_store(
    files: Sequence[Files],
    manifest_path: str | None,
    progress: Callable[[CheckProgress], None] = lambda progress: None,
) -> StoreReport:
    """Check the store in the root of `files`, as many files at a time as there are of these, all of the same root.
    `manifest_path`: None: every file there is, is checked by what it says of itself. Changes nothing."""
    return await _StoreCheck(files, manifest_path, progress).run()


class _StoreCheck:
    def __init__(
        self, files: Sequence[Files], manifest_path: str | None, progress: Callable[[CheckProgress], None]
    ) -> None:
        self._files = files
        self._manifest_path = manifest_path
        self._progress = progress
        self._found: list[Finding] = []
        self._left_out = 0
        self._done_files = self._done_bytes = self._total_bytes = self._total_files = 0

    async def run(self) -> StoreReport:
        paths = await all_paths(self._files[0])
        mark = await self._check_mark()  # before the manifest, which a running node changes first
        contents = await asyncio.to_thread(self._read_manifest)
        if mark is None and (contents is None or contents.changes):
            self._note([Finding(path=MARK_NAME, position=None, what="no whole copy is there", advice=_NO_MARK_ADVICE)])
        if contents is not None:
            self._note(_pairing(contents, mark, str(self._manifest_path)))
            self._note(manifest_faults(contents, str(self._manifest_path)))
            described: list[tuple[str, StoreFile | None]] = [(file.name, file) for file in contents.files]
        else:
            described = [(name, None) for name in sorted(_whole_files(paths))]
        if mark is not None:
            for path, what in await copy_faults(self._files[0], mark.identity, contents, mark.changes):
                self._note([Finding(path=path, position=None, what=what, advice=COPY_ADVICE)])
        await self._check_files(described)
        later = await asyncio.to_thread(self._read_again) if contents is not None else None
        gone: set[str] = set()
        if contents is not None and later is not None:
            gone = {file.name for file in contents.files} - {file.name for file in later.files}
            self._found = [finding for finding in self._found if finding.name not in gone]
        named = {name for name, _file in described} | {file.name for file in (later.files if later else ())}
        unnamed = [found async for found in unnamed_files(self._files[0], paths, named)]
        return StoreReport(
            files=self._done_files,
            bytes=self._done_bytes,
            gone=len(gone),
            findings=self._found,
            findings_left_out=self._left_out,
            unnamed=unnamed[:UNNAMED_MAX],
            unnamed_left_out=max(0, len(unnamed) - UNNAMED_MAX),
        )

    def _note(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            if len(self._found) < FINDINGS_MAX:
                self._found.append(finding)
            else:
                self._left_out += 1

    def _read_manifest(self) -> Contents | None:
        if self._manifest_path is None:
            return None
        try:
            return Database(self._manifest_path).read()
        except (StorageError, OSError) as error:
            what = str(error).removeprefix(f"{self._manifest_path}: ").partition(";")[0]
            self._note([_manifest_finding(self._manifest_path, what)])
            return None

    def _read_again(self) -> Contents | None:
        assert self._manifest_path is not None
        with contextlib.suppress(StorageError, OSError):  # a node that runs now may have it half replaced
            return Database(self._manifest_path).read()
        return None

    # --- files that count -----------------------------------------------------------------------------------

    async def _check_files(self, described: Sequence[tuple[str, StoreFile | None]]) -> None:
        self._total_files = len(described)
        self._total_bytes = sum(file.bytes for _name, file in described if file is not None)
        waiting = iter(described)
        async with asyncio.TaskGroup() as tasks:
            for files in self._files:
                tasks.create_task(self._check_in_turn(files, waiting))

    async def _check_in_turn(self, files: Files, waiting: Iterator[tuple[str, StoreFile | None]]) -> None:
        for name, file in waiting:
            try:
                self._note(await check_file(files, name, file, self._read))
            except StorageError as error:
                self._note([_manifest_finding(str(self._manifest_path), str(error))])
            self._done_files += 1
            self._tell()

    def _read(self, size: int) -> None:
        self._done_bytes += size
        self._tell()

    def _tell(self) -> None:
        self._progress(CheckProgress(self._done_files, self._total_files, self._done_bytes, self._total_bytes))

    # --- mark -----------------------------------------------------------------------------------------------

    async def _check_mark(self) -> StoreMark | None:
        """The newest whole copy; None: there is none."""
        try:
            opened = await self._files[0].open(MARK_NAME, reading=ReadingMode.COLD)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._note([_mark_finding(0, f"cannot be read: {error.strerror or error}")])
            return None
        try:
            content = await opened.read(0, SLOT_DISTANCE + MARK.size + 1)
        finally:
            await opened.close()
        marks: list[StoreMark] = []
        for place in (0, SLOT_DISTANCE):
            slot = content[place : place + MARK.size]
            mark = StoreMark.unpack(slot)
            if mark is not None:
                marks.append(mark)
            elif any(slot):
                self._note([_mark_finding(place, "a copy of the mark is damaged")])
        gap = content[MARK.size : SLOT_DISTANCE]
        if any(gap):
            place = MARK.size + next(at for at, byte in enumerate(gap) if byte)
            self._note([_mark_finding(place, "bytes that mean nothing are not zero")])
        if len({mark.identity for mark in marks}) > 1:
            self._note([_mark_finding(SLOT_DISTANCE, "the two copies name different stores")])
        return max(marks, key=lambda mark: mark.changes, default=None)


_NO_MARK_ADVICE = "check that the store's disk is mounted and right; if it is, `mainstem store repair` writes it anew"


async def all_paths(files: Files) -> list[str]:
    """Everything in the directories of a store, as paths below its root."""
    found = [
        f"{directory}/{name}"
        for directory in (RUNS_DIRECTORY, PACKED_DIRECTORY)
        for name in await files.names(directory)
    ]
    level = [QUEUES_DIRECTORY]
    for _depth in ("topic", "partition", "merge", "file"):
        below: list[str] = []
        for directory in level:
            try:
                below += [f"{directory}/{name}" for name in await files.names(directory)]
            except NotADirectoryError:  # a file that nobody here has put there
                found.append(directory)
        level = below
    return found + level


async def unnamed_files(files: Files, paths: Iterable[str], named: Collection[str]) -> AsyncIterator[UnnamedFile]:
    """Those of these paths that belong to no file of these names."""
    for path in paths:
        owner = owner_of(path)
        temporary = TEMPORARY_INFIX in path
        if owner in named and not temporary:
            continue
        try:
            opened = await files.open(path, reading=ReadingMode.COLD)
        except OSError:  # gone meanwhile, or a directory
            continue
        try:
            size = await opened.size()
        finally:
            await opened.close()
        kind = "unknown" if owner is None else "temporary" if temporary else "orphan"
        yield UnnamedFile(path=path, bytes=size, kind=kind)


def _whole_files(paths: Iterable[str]) -> set[str]:
    """The names of the store files among these paths."""
    owners = ((owner_of(path), path) for path in paths if TEMPORARY_INFIX not in path)
    return {owner for owner, path in owners if owner is not None and path_of(owner) == path}


def _pairing(contents: Contents, mark: StoreMark | None, where: str) -> Iterator[Finding]:
    if mark is None:
        return
    if contents.identity is None:
        yield _manifest_finding(where, "is new and empty, but the store has a mark")
    elif contents.identity != mark.identity:
        yield _manifest_finding(where, f"is of store {contents.identity}; this is store {mark.identity}")
    elif mark.changes > contents.changes:
        what = f"has seen {contents.changes} changes, the store {mark.changes}: it is an old copy, or has lost some"
        yield _manifest_finding(where, what)


def manifest_faults(contents: Contents, where: str) -> Iterator[Finding]:
    """The places at which the manifest contradicts itself."""
    files = {file.name: file for file in contents.files}
    by_group: dict[int, list[FileRange]] = {}
    counted: set[str] = set()
    for entry in contents.ranges:
        counted.add(entry.name)
        if entry.name not in files:
            yield _manifest_finding(
                where, f"names {entry.name}, for write group {entry.group}, and does not describe it"
            )
            continue
        by_group.setdefault(entry.group, []).append(entry)
        if not entry.after < entry.upto:
            yield _manifest_finding(where, f"{entry.name} has blocks ({entry.after}, {entry.upto}]")
        file = files[entry.name]
        if file.is_merged and file.group != entry.group:
            yield _manifest_finding(where, f"{entry.name} is of write group {file.group} and counts for {entry.group}")
    for name in sorted(files.keys() - counted):
        yield _manifest_finding(where, f"{name} counts for no write group")
    for group, entries in sorted(by_group.items()):
        spans = list(spans_of(entries, files))
        for span in spans:
            try:
                check_keys(files[entry.name] for entry in span if files[entry.name].is_merged)
            except StorageError as error:
                yield _manifest_finding(where, f"write group {group}: {error}")
        for one, other in pairwise(spans):
            if other.after < one.upto:
                yield _manifest_finding(
                    where,
                    f"write group {group}: blocks ({one.after}, {one.upto}] and ({other.after}, {other.upto}] overlap",
                )
        position = contents.positions.get(group)
        if position is None or spans[-1].upto > position.position:
            said = "none" if position is None else str(position.position)
            yield _manifest_finding(
                where, f"write group {group} is split up to {said}; a file goes to {spans[-1].upto}"
            )


def _manifest_finding(where: str, what: str) -> Finding:
    return Finding(path=where, position=None, what=what, advice=MANIFEST_ADVICE)


def _mark_finding(position: int, what: str) -> Finding:
    return Finding(path=MARK_NAME, position=position, what=what, advice=MARK_ADVICE)
