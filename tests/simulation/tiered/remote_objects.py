"""The objects in the object store of a cluster, held against what the logs of its write groups say of them.

The observer knows the remote tier by the commands alone, as the nodes apply them: which change took effect, which files
count since then, which are leaving. It sees each object before the store writes it or deletes it. So what must hold of
the two together (U) is checked at the moment at which it could break:

* when files come to count, all their objects are there, whole, under names that never counted before;
* no name of a file is ever written with other bytes; a change or an image says what the log says of its number;
* nothing is deleted that counts;
* a change takes files out only when no batch of theirs is live any more, or when their blocks were not finished, or
  when the files that it brings have what is live;
* where all files are in the store, those that count have each block once;
* a replica that has applied a change is where that change has led, and so are the others;
* in the end what is in the store is what counts, and nothing else.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.fakes.object_store import SimulatedBucket
from tests.simulation.oracle import require

from mainstem.kernel import crc32c
from mainstem.rpc.messages.split import FileDescription
from mainstem.storage.extents.extent_index import Rows
from mainstem.storage.merging.merge_inputs import InputFile, index_pieces
from mainstem.storage.remote.chain.chain_format import decode_change, decode_image
from mainstem.storage.store_files.store_file import (
    JOINED_SUFFIX,
    MANY_GROUPS,
    index_path_of,
    owner_of,
    path_of,
    paths_of,
)
from mainstem.storage.write_groups import control

OBJECT = re.compile(r"(?P<folder>.*groups/(?P<group>\d+))/(?P<kind>files|chain|images|head)(?:/(?P<path>.+))?")
"""The name of an object of a write group."""

OF_NO_GROUP = re.compile(r"(?:.*/)?(?:topics/(?:lists/\d+|head)|owner)")
"""The name of an object that says which topics there are, or who lives there: whole nodes write such."""

FILES, CHAIN, HEAD = "files", "chain", "head"


class Position(NamedTuple):
    """The state to which the changes of a write group have led."""

    number: int
    epoch: int
    upto: int


class RemoteFile(NamedTuple):
    after: int
    upto: int
    description: FileDescription


@dataclass
class WriteGroupTier:
    """The remote tier of one write group, by the changes in its log."""

    files: dict[str, RemoteFile] = field(default_factory=dict)
    """By name, those that count."""
    leaving: set[str] = field(default_factory=set)
    """Names that count no more, and whose objects nobody has said to be deleted."""
    intended: dict[str, int] = field(default_factory=dict)
    """Names that were to be uploaded → in which epoch."""
    counted: set[str] = field(default_factory=set)
    """Names that count, or ever did."""
    positions: list[Position] = field(default_factory=lambda: [Position(0, 0, 0)])
    """All there were, the one of number 0 first."""
    changes: list[control.RemoteChanged] = field(default_factory=list)
    """Those that took effect, the one of number 1 first."""
    uploaded_bytes: int = 0
    """Of the files that came to count."""

    @property
    def position(self) -> Position:
        return self.positions[-1]

    def takes(self, group: int, change: control.RemoteChanged) -> bool:
        """Whether a change takes effect: the next one, of no earlier leader than the last, whose files this leader has
        intended."""
        number, epoch, upto = self.position
        named = [file.name for span in change.spans for file in span.files]
        return (
            change.number == number + 1 and change.epoch >= epoch and change.upto >= upto
            and all(self.intended.get(name) == change.epoch for name in named) and len(set(named)) == len(named)
            and all(file.group in (group, MANY_GROUPS) for span in change.spans for file in span.files)
            and all(0 <= span.after < span.upto for span in change.spans)
            and all(self._may_be_intended(name, change.epoch) for name in change.intended)
            and self.files.keys().isdisjoint(change.deleted)
        )  # fmt: skip

    def _may_be_intended(self, name: str, epoch: int) -> bool:
        return name not in self.files and name not in self.leaving and self.intended.get(name, epoch) == epoch

    def take(self, change: control.RemoteChanged) -> None:
        self.positions.append(Position(change.number, change.epoch, change.upto))
        self.changes.append(change)
        for span in change.spans:
            for file in span.files:
                self.files[file.name] = RemoteFile(span.after, span.upto, file)
                self.counted.add(file.name)
                self.intended.pop(file.name, None)
                self.uploaded_bytes += file.bytes
        for name in change.gone:
            if self.files.pop(name, None) is not None:
                self.leaving.add(name)
        for name in change.deleted:
            self.leaving.discard(name)
            self.intended.pop(name, None)
        for name in change.intended:
            self.intended.setdefault(name, change.epoch)


class RemoteObjects:
    """The observer of a bucket and of the logs."""

    def __init__(
        self,
        bucket: SimulatedBucket,
        guard: Callable[[Callable[[], None]], None],
        is_live: Callable[[int, int], bool],
    ) -> None:
        """`guard` runs a check and ends the run with what it finds; `is_live` says whether an offset of a queue is, by
        the logs."""
        self.has_all = False
        """All files of the cluster are in the store."""
        self._bucket = bucket
        self._is_live = is_live
        self.tiers: dict[int, WriteGroupTier] = {}
        self.folders: dict[int, str] = {}
        """By write group, where its objects lie: the first one that is written tells."""
        self.joins: Callable[[], bool] = lambda: True
        """The feature level lets queue segments be one object each."""
        self.changes: dict[str, int] = {}
        """The effects of changes, counted, and those that took none."""
        self._written: dict[str, int] = {}
        """Name of an object → CRC of what was written."""
        self._led_to: dict[tuple[int, int, int], tuple[Position, frozenset[str], frozenset[str]]] = {}
        """(write group, block, place in it) of a change → where the tier was then, what was intended, what leaving."""
        bucket.changing = lambda name, content: guard(lambda: self._changing(name, content))

    def tier(self, group: int) -> WriteGroupTier:
        return self.tiers.setdefault(group, WriteGroupTier())

    # --- from the store -----------------------------------------------------------------------------------

    def _changing(self, name: str, content: bytes | None) -> None:
        if OF_NO_GROUP.fullmatch(name) is not None:
            return
        found = OBJECT.fullmatch(name)
        require(found is not None, f"{name} is no object of a write group", "U")
        assert found is not None
        group, kind = int(found["group"]), found["kind"]
        if content is not None:
            folder = self.folders.setdefault(group, found["folder"])
            require(folder == found["folder"], f"{name}: other objects of its write group lie in {folder}", "U")
            self._check_written(name, content, group, kind)
        elif kind == FILES:
            owner = owner_of(found["path"])
            require(
                owner not in self.tier(group).files,
                f"{name} is deleted, and the log of write group {group} counts it",
                "U",
            )

    def _check_written(self, name: str, content: bytes, group: int, kind: str) -> None:
        """A file's object has what it was first written with: the same write may be done once more, late."""
        if kind == FILES:
            too_early = name.endswith(JOINED_SUFFIX) and not self.joins()
            require(not too_early, f"{name} is written, and the feature level does not allow it yet", "U")
            crc = self._written.setdefault(name, crc32c(content))
            require(crc == crc32c(content), f"{name} is written with other bytes than before", "U")
        elif kind != HEAD:
            number = int(name.rpartition("/")[2])
            changes = self.tier(group).changes
            require(0 < number <= len(changes), f"{name}: the log has {len(changes)} changes", "U")
            if kind == CHAIN:
                same = decode_change(content, name, group, number) == changes[number - 1]
            else:
                same = self._is_image(content, name, group, changes[:number])
            require(same, f"{name} says something else than the log", "U")

    def _is_image(self, content: bytes, name: str, group: int, changes: Sequence[control.RemoteChanged]) -> bool:
        """Whether an image says what these changes have led to."""
        start, files = decode_image(content, name, group)
        tier = WriteGroupTier()
        for change in changes:
            tier.take(change)
        described = {file.name: RemoteFile(after, upto, file.message()) for after, upto, file in files}
        said = start.number, start.epoch, start.upto
        names = start.intended == tier.intended and start.leaving.keys() == tier.leaving
        return said == tier.position and names and described == tier.files

    # --- from the logs ------------------------------------------------------------------------------------

    def changed(self, group: int, index: int, place: int, change: control.RemoteChanged) -> None:
        """A change is committed: the `place`th command of a block. Called once for each, in the order of the log."""
        tier, what = self.tier(group), f"write group {group}, block {index}: change {change.number}"
        if tier.takes(group, change):
            self._check(tier, group, change, what)
            tier.take(change)
            for kind in ("spans", "gone", "intended", "deleted"):
                self._count(kind, len(getattr(change, kind)))
            for file in (file for span in change.spans for file in span.files):
                self._count(f".{file.name.rpartition('.')[2]}", 1)
        else:
            self._count("without effect", 1)
        self._led_to[group, index, place] = tier.position, frozenset(tier.intended), frozenset(tier.leaving)

    def _check(self, tier: WriteGroupTier, group: int, change: control.RemoteChanged, what: str) -> None:
        for span in change.spans:
            for file in span.files:
                require(file.name not in tier.counted, f"{what}: {file.name} has counted before", "U")
                self._check_whole(group, file, what)
        gone = [tier.files[name] for name in change.gone if name in tier.files]
        new = self._extents_of(group, [file.name for span in change.spans for file in span.files] if gone else [])
        for one in gone:
            if one.upto <= tier.position.upto:  # else a part of what a leader has not finished
                self._check_dead(group, one.description, what, new)
        if self.has_all:
            left = {(file.after, file.upto) for name, file in tier.files.items() if name not in set(change.gone)}
            blocks = sorted(left | {(span.after, span.upto) for span in change.spans})
            for (after, upto), (next_after, next_upto) in pairwise(blocks):
                require(
                    next_after >= upto,
                    f"{what}: files count for blocks ({after}, {upto}], and others for ({next_after}, {next_upto}]",
                    "U",
                )

    def _check_whole(self, group: int, file: FileDescription, what: str) -> None:
        """All objects of a file that comes to count are in the store."""
        for number, path in enumerate(paths_of(file.name)):
            stored = self._bucket.objects.get(self._object(group, path))
            require(stored is not None, f"{what}: {file.name} counts, and {path} is not in the store", "U")
            assert stored is not None
            size = len(stored.content)
            require(
                number > 0 or size == file.bytes, f"{what}: {path} has {size} bytes in the store, not {file.bytes}", "U"
            )

    def _check_dead(
        self, group: int, file: FileDescription, what: str, new: Mapping[int, Sequence[tuple[int, int]]]
    ) -> None:
        """`new`: what the change brings, as `_extents_of` gives it."""
        for rows in self._rows(group, file.name):
            for queue_id, base, last in rows[["queue_id", "base_offset", "last_offset"]].tolist():
                for offset in (last, base):
                    is_there = any(first <= offset < end for first, end in new.get(queue_id, ()))
                    require(
                        is_there or not self._is_live(queue_id, offset),
                        f"{what}: {file.name} is gone, and queue {queue_id:#x} has offset {offset} in it, which is "
                        "live",
                        "U",
                    )

    def _rows(self, group: int, name: str) -> Iterator[Rows]:
        """The extents of a file, by its objects; none if the store has lost one."""
        paths = path_of(name), index_path_of(name)
        objects = [self._bucket.objects.get(self._object(group, path)) for path in paths]
        with tempfile.TemporaryDirectory() as directory:
            copies = [Path(directory) / ("index" if path != paths[0] else "file") for path in paths]
            for copy, stored in zip(copies, objects, strict=True):
                if stored is None:
                    return
                copy.write_bytes(stored.content)
            yield from index_pieces(InputFile(name, str(copies[0]), str(copies[1])))

    def extents(self, group: int) -> Iterator[tuple[int, int, int]]:
        """Of the files that count: (queue id, first offset, the one behind the last)."""
        for queue_id, extents in self._extents_of(group, self.tier(group).files).items():
            for base, end in extents:
                yield queue_id, base, end

    def _extents_of(self, group: int, names: Iterable[str]) -> dict[int, list[tuple[int, int]]]:
        """Of files: by queue, first offsets and those behind the last."""
        found: dict[int, list[tuple[int, int]]] = {}
        for name in names:
            for rows in self._rows(group, name):
                for queue_id, base, last in rows[["queue_id", "base_offset", "last_offset"]].tolist():
                    found.setdefault(queue_id, []).append((base, last + 1))
        return found

    def _object(self, group: int, path: str) -> str:
        return f"{self.folders.get(group, f'groups/{group}')}/{FILES}/{path}"

    def _count(self, what: str, many: int) -> None:
        self.changes[what] = self.changes.get(what, 0) + many

    # --- from the replicas --------------------------------------------------------------------------------

    def check_position(
        self,
        what: str,
        group: int,
        index: int,
        place: int,
        position: tuple[int, int, int],
        intended: Collection[str],
        leaving: Collection[str],
    ) -> None:
        """A replica has applied a change, or has known of it before: by a snapshot, or since its last start."""
        (led_to, is_intended, is_leaving), positions = self._led_to[group, index, place], self.tier(group).positions
        what = f"{what}, write group {group}, block {index}: is at {tuple(position)}"
        number = position[0]
        require(led_to.number <= number < len(positions), f"{what}, the log at {led_to}", "U")
        require(position == positions[number], f"{what}, others were at {positions[number]}", "U")
        if number == led_to.number:
            same = set(intended) == is_intended and set(leaving) == is_leaving
            what = f"{what}: intends {sorted(intended)}, deletes {sorted(leaving)}"
            require(same, f"{what}, unlike the log at {led_to}", "U")

    def check_files(self, what: str, group: int, files: Collection[tuple[int, int, str]]) -> None:
        """A replica that has applied the whole log counts these files: (after, upto, name)."""
        agreed = {(file.after, file.upto, name) for name, file in self.tier(group).files.items()}
        require(
            set(files) == agreed,
            f"{what}, write group {group}: counts {sorted(set(files) - agreed)} that the log does not, "
            f"and not {sorted(agreed - set(files))}",
            "U",
        )

    # --- at the end ---------------------------------------------------------------------------------------

    def unfinished(self) -> list[str]:
        """The names still to be deleted, or to be given up."""
        found = []
        for group, tier in sorted(self.tiers.items()):
            found += [f"write group {group}: {name}" for name in sorted(tier.leaving | tier.intended.keys())]
        return found

    def check_store(self) -> None:
        """In the store is what counts, and nothing else."""
        expected = {
            self._object(group, path): f"write group {group}"
            for group, tier in self.tiers.items() for name in tier.files for path in paths_of(name)
        }  # fmt: skip
        there = {name for name in self._bucket.objects if f"/{FILES}/" in name}
        for name, owner in sorted(expected.items()):
            require(name in there, f"{name} counts for {owner}, and is not in the store", "U")
        orphans = sorted(there - expected.keys())
        require(not orphans, f"nobody counts on what is in the store: {orphans[:5]}, {len(orphans)} objects", "U")
