"""Shows splitters what to upload to the remote tier, and has the logs of write groups say what is there.

A node uploads for the write groups that it leads. The files of a unit (`tier_choice.py`) are given out in pieces. First
the log says which objects are about to come, so that whoever leads next knows what may lie in the store and count for
nothing. Files that a splitter hands in are looked up in the store, and kept in memory; when the whole unit is there,
the log says that its files count, and that all blocks up to its end were considered. When there is no next unit, files
follow that the tier lacks behind that end (`tier_gaps.py`), a span at a time. Merges of the write group wait
while a piece is under way, and do not join what is being uploaded with its neighbours.

The fate of a unit that cannot be finished: when this node's leadership ends, the next leader deletes what it uploaded;
when its files do not count any more as they did (a damaged one was mended, a snapshot came), or the topics of one ask
no more to be copied, this node does. So it does with what a splitter was given and did not hand in. These objects are
deleted before the next attempt, which thereby finds out whether the store is there; a day later, when no task can be
writing them any more, the upkeep of the tier deletes them again, and has the log forget them (`remote_upkeep.py`). It
does so with what is a day old and has not come to count, too; of a unit that takes longer such files are uploaded anew.
After a failure nothing is given out for a while, which grows with each further one."""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from mainstem.model import Sample, Topic
from mainstem.ports import Clock, ObjectStore, ReadingMode
from mainstem.rpc.messages.split import MergeWaits
from mainstem.rpc.messages.tier import MovingFile, TierWork
from mainstem.storage.errors import StorageError
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.queue_store.changes.merges import DONE_REMEMBERED, HeldFor, Merge
from mainstem.storage.queue_store.manifest.in_memory.span_lists import SpanList
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.remote.decided.remote_state import RECORDED, Noted, RemotePosition
from mainstem.storage.split.copying import CopyingTopics, CopyRule
from mainstem.storage.split.tier_choice import (
    UNIT_BYTES,
    CopyLag,
    MovingRows,
    MovingSums,
    TierUnit,
    chosen,
    unit_of,
    waiting,
)
from mainstem.storage.split.tier_gaps import GapSources, SuspectSpan, TierGaps
from mainstem.storage.store_files.object_names import file_objects
from mainstem.storage.store_files.store_file import StoreFile, has_index_beside, index_path_of
from mainstem.storage.tiering.uploading import remote_name
from mainstem.storage.write_groups.control import RemoteSpan

log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 30
"""Given out at once, unless one file has more: after it merges get their turn."""

PIECE_FILES = 256
"""…and so many files: their names are in one change of the log."""

LOOKED_UP_AT_ONCE = 16
"""Requests to the store, while what was handed in is looked up."""

COMPARED_AT_ONCE = 64
"""Files whose indexes are compared with those in the store before a splitter hears that there is nothing: some seconds,
unless it asks for all that there is."""

REST_SECONDS = 10.0
"""Nothing is given out for so long after a failure; each further one doubles it…"""
REST_SECONDS_MAX = 600.0
"""…up to this. A store that is away comes back in minutes or in hours."""

KEPT = "kept"


class TierRecords(Protocol):
    """The remote tier as uploads see it (`remote_tier.RemoteTier`)."""

    @property
    def manifest(self) -> Manifest:
        """The files that count."""
        ...

    def position(self, group: int) -> RemotePosition: ...

    def counts(self, group: int, name: str) -> bool: ...

    def intended(self, group: int) -> Mapping[str, Noted]: ...

    async def drained(self, groups: Iterable[int]) -> None:
        """Return when all that was decided of these write groups is in the manifest. Raises `StorageError`."""
        ...

    async def record(
        self,
        group: int,
        *,
        upto: int = 0,
        spans: Sequence[RemoteSpan] = (),
        gone: Sequence[str] = (),
        intended: Sequence[str] = (),
        at_once: bool = False,
    ) -> str: ...


class RemotePlace(NamedTuple):
    """The URL of the remote tier."""

    store: ObjectStore
    """Onto the folder of this cluster."""
    url: str
    """For tasks, of the whole store…"""
    folder: str
    """…and the folder in it; empty: it is all of it."""
    config: ObjectStoreConfig

    def objects(self, group: int, name: str) -> tuple[str, ...]:
        """The objects of a file, as tasks name them."""
        prefix = f"{self.folder}/" if self.folder else ""
        return tuple(prefix + one for one in file_objects(group, name))


@dataclass(slots=True)
class _Uploading:
    """A unit on its way."""

    epoch: int
    """The term in which all of its names were intended."""
    after: int
    """The tier's position behind which it was chosen."""
    unit: TierUnit
    fills: bool = False
    """Whether it lies behind that position, where the tier lacks it."""
    gone: tuple[str, ...] = ()
    """Files of the tier whose place it takes."""
    done: dict[str, StoreFile] = field(default_factory=dict)
    """By the names of its files, those files as they lie in the store."""
    piece: _Piece | None = None
    """The part of it that a splitter has."""


class _Piece(NamedTuple):
    tier_id: str
    files: Mapping[str, StoreFile]
    """By their names in the store."""


class LocalTierLog:
    """`TierLog` over this node's queue store and its part in the remote tier."""

    def __init__(
        self,
        store: QueueStore,
        remote: TierRecords,
        place: RemotePlace | None,
        groups: int,
        epoch_of: Callable[[int], int | None],
        allowed: Callable[[], bool],
        topics: Callable[[], Iterable[Topic]],
        clock: Clock,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
        unit_bytes: int = UNIT_BYTES,
        piece_bytes: int = PIECE_BYTES,
        *,
        gaps: GapSources | None = None,
        shared: bool = False,
        joins: Callable[[], bool] = lambda: False,
    ) -> None:
        """`place`: None: this node has no remote tier to upload to. `gaps`: the indexes by which it finds what the tier
        lacks behind its position; None: it does not look for that. `shared`: splits, merges and compactions write to
        the object store, so that nothing is uploaded from here. `joins`: the feature level lets a queue segment be one
        object. `epoch_of`: the term in which this node leads a
        write group; None: it does not. `allowed`: the cluster's feature level lets files be in the tier. `topics`: all
        of the cluster."""
        self._store = store
        self._merges = store.merges
        self._remote = remote
        self._place = place
        self._shared = shared
        self._joins = joins
        self._groups = groups
        self._epoch_of = epoch_of
        self._allowed = allowed
        self._clock = clock
        self._new_id = new_id
        self.unit_bytes = unit_bytes
        self.piece_bytes = piece_bytes
        self._turn = asyncio.Lock()
        """Held while work is given out or taken in."""
        self._sums = MovingSums()
        self._gaps = (
            TierGaps(store.manifest, remote.manifest, gaps, lambda name: name in store.damaged, clock)
            if gaps is not None
            else None
        )
        self._copying = CopyingTopics(topics, clock)
        self._uploading: dict[int, _Uploading] = {}
        """By write group."""
        self._to_delete: dict[int, list[str]] = {}
        """By write group, names that were given up, of which objects may lie in the store. Those of another term may
        have come to count: a change that was under way when the leadership was lost may be in the next leader's log."""
        self._epochs: dict[int, int] = {}
        """By write group, the term of what is known here of its uploads."""
        self._done: dict[str, str] = {}
        """Outcomes of what was handed in: whoever lost the answer asks again at once."""
        self._next_group = 0
        self._rest_until = 0.0
        self._failures_in_a_row = 0
        self.waiting: dict[int, CopyLag] = {}
        """By write group that this node leads, what may move and has not, at the last look."""
        self.failures = 0
        self.uploaded_bytes = 0
        """Of files that came to count, since the start."""
        self.uploaded_files = 0
        self.last_success_ms: int | None = None
        self.last_failure = ""

    def grow(self, groups: int) -> None:
        """From now on there are so many write groups."""
        self._groups = groups

    # --- giving out ---------------------------------------------------------------------------------------

    def borders(self, group: int) -> Sequence[int]:
        """The blocks where merges keep what is in the tier, or on its way there, apart from what is not."""
        upto = self._remote.position(group).upto
        on_its_way = self._uploading.get(group)
        return (upto, *on_its_way.unit.uptos) if on_its_way is not None else (upto,)

    async def work(self, in_force: Callable[[], bool], *, drain: bool, joins: bool = True) -> TierWork:
        if self._shared:
            return TierWork()
        self._merges.give_up()
        if self._place is None:
            return TierWork(failure="this node has no remote tier: set remote_dir, to the same for all nodes")
        if not self._allowed():
            return TierWork(failure="the cluster's feature level does not allow files in the remote tier")
        if self._rests() and not drain:
            return TierWork()
        async with self._turn:
            for step in range(self._groups):
                group = (self._next_group + step) % self._groups
                try:
                    found = await self._work_of(
                        group, self._place, in_force, drain=drain, joined=joins and self._joins()
                    )
                except (StorageError, OSError) as error:
                    self._failed(f"write group {group}: {error}")
                    return TierWork(failure=self.last_failure)
                if found is not None:
                    self._next_group = group
                    return found
        return TierWork()

    async def waits(self) -> MergeWaits:
        """How much could be uploaded now."""
        if self._place is None or not self._allowed():
            return MergeWaits(0)
        size = 0
        for group in range(self._groups):
            if self._epoch_of(group) is None:
                self.waiting.pop(group, None)
                continue
            spans, rule = self._store.manifest.spans(group), await self._copying.rule()
            rows = await self._sums.of(group, spans, rule)
            upto = self._remote.position(group).upto
            self.waiting[group] = waiting(rows, upto)
            found = chosen(rows, upto, self.unit_bytes)
            size += int(rows["bytes"][slice(*found)].sum()) if found is not None else 0
            suspects = await self._suspects(group, spans, rows, upto, rule)
            size += sum(file.batch_bytes for one in suspects for file in one.files)
        return MergeWaits(0 if self._rests() else size)

    async def _suspects(
        self, group: int, spans: SpanList, rows: MovingRows, upto: int, rule: CopyRule
    ) -> list[SuspectSpan]:
        """The spans of which the tier may lack something behind its position; their files count among those that
        wait."""
        if self._gaps is None:
            return []
        found = await self._gaps.suspects(group, spans, rows, upto, rule)
        files, lag = [file for one in found for file in one.files], self.waiting.get(group, CopyLag())
        self.waiting[group] = CopyLag(lag.bytes + sum(file.batch_bytes for file in files), lag.files + len(files))
        return found

    async def moves(self) -> Callable[[StoreFile], bool]:
        """Whether a file of disk 2 is to move, by the topics' settings of now."""
        rule = await self._copying.rule()
        return rule.moves

    def _rests(self) -> bool:
        return self._clock.monotonic() < self._rest_until

    async def _work_of(
        self, group: int, place: RemotePlace, in_force: Callable[[], bool], *, drain: bool, joined: bool
    ) -> TierWork | None:
        """A piece of what is next of a write group; None: there is nothing now."""
        epoch = self._epoch_of(group)
        if epoch is None or self._epochs.get(group) != epoch:
            self._forget(group)  # whoever led meanwhile, or leads now, deletes what was uploaded in another term
        if epoch is None:
            return None
        self._epochs[group] = epoch
        await self._copying.rule()
        uploading = await self._next_unit(group, epoch, drain=drain)
        if uploading is None or self._epoch_of(group) != epoch or self._merges.holds_of(group):
            return None
        await self._delete_given_up(group, place)
        files = self._some(uploading, joined=joined)
        if not files:  # all of it is there, and could not be recorded
            outcome = await self._record_unit(group, uploading)
            return TierWork(failure=f"write group {group}: {outcome}") if outcome != RECORDED else None
        piece = uploading.piece = _Piece(self._new_id().hex, files)
        unit, since = uploading.unit, self._clock.monotonic()
        level = max(file.level for file in files.values())
        hold = Merge(group, level, unit.entries, tuple(unit.files()), in_force, since, HeldFor.UPLOAD)
        self._merges.hold(piece.tier_id, hold)  # from here on nothing merges them
        outcome = "refused: it could not be written"
        try:
            outcome = await self._remote.record(group, intended=tuple(files))
        finally:
            if outcome != RECORDED:
                self._merges.end(piece.tier_id)
        if outcome != RECORDED:
            return TierWork(failure=f"write group {group}: {outcome}")
        return TierWork(
            tier_id=piece.tier_id,
            group=group,
            files=tuple(MovingFile(file.message(), name, place.objects(group, name)) for name, file in files.items()),
            store=place.url,
            store_config=msgspec.json.encode(place.config),
        )

    async def _next_unit(self, group: int, epoch: int, *, drain: bool = False) -> _Uploading | None:
        """The unit that is on its way, if it is still what is next; another one otherwise. `drain`: however many
        indexes that takes."""
        uploading = self._uploading.get(group)
        assert uploading is None or uploading.epoch == epoch, "what is known is of this term"
        if uploading is not None and self._stands(group, uploading):
            self._give_up_piece(group, uploading)
            noted = self._remote.intended(group)
            may_count = {name for name, one in noted.items() if one.epoch == epoch}
            uploading.done = {name: file for name, file in uploading.done.items() if file.name in may_count}
            return uploading
        if uploading is not None:
            self._give_up_unit(group, uploading)
        spans = self._store.manifest.spans(group)
        rule = await self._copying.rule()
        rows = await self._sums.of(group, spans, rule)
        position = self._remote.position(group)
        self.waiting[group] = waiting(rows, position.upto)
        found = chosen(rows, position.upto, self.unit_bytes)
        if found is not None:
            unit = await unit_of(self._store.manifest, spans, *found, rule, lambda name: name in self._store.damaged)
            if unit is None:
                return None
            await self._drop_halves(group, epoch)
            new = _Uploading(epoch, position.upto, unit)
        else:
            await self._remote.drained([group])  # what counts already is not lacking
            suspects = await self._suspects(group, spans, rows, position.upto, rule)
            if self._gaps is None or not suspects:
                return None
            gap = await self._gaps.find(
                group, spans, suspects, position.upto, rule, sys.maxsize if drain else COMPARED_AT_ONCE
            )
            if gap is None:
                return None
            new = _Uploading(epoch, position.upto, gap.unit, fills=True, gone=gap.gone)
        if self._epoch_of(group) != epoch or not self._stands(group, new):
            return None
        self._uploading[group] = new
        return new

    def _stands(self, group: int, uploading: _Uploading) -> bool:
        """Whether the unit is what comes next in the tier, its files count as they did and can be read, and a topic of
        each still asks to be copied."""
        unit = uploading.unit
        return (
            self._remote.position(group).upto == uploading.after
            and self._store.manifest.spans(group).has(unit.spans, unit.first, unit.end)
            and not any(entry.name in self._store.damaged for entry in unit.entries)
            and self._copying.last.allows_all(unit.files())
        )

    async def _drop_halves(self, group: int, epoch: int) -> None:
        """Have the log drop files behind the tier's position: a leader that counted part of a unit was lost meanwhile.
        Raises `StorageError`."""
        await self._remote.drained([group])
        if self._epoch_of(group) != epoch:
            return  # another leader may have counted the rest meanwhile
        spans, upto = self._remote.manifest.spans(group), self._remote.position(group).upto
        halves = [entry.name for span in spans[spans.behind(upto) :] for entry in span]
        if halves:
            outcome = await self._remote.record(group, gone=halves)
            if outcome != RECORDED:
                raise StorageError(f"{len(halves)} files of an unfinished upload cannot be dropped: {outcome}")

    def _some(self, uploading: _Uploading, *, joined: bool) -> dict[str, StoreFile]:
        """The next files of a unit, by new names."""
        found: dict[str, StoreFile] = {}
        size = 0
        for file in uploading.unit.files():
            if file.name in uploading.done:
                continue
            size += file.bytes
            if found and (size > self.piece_bytes or len(found) >= PIECE_FILES):
                break
            found[remote_name(file.name, self._new_id().hex, joined=joined)] = file
        return found

    async def intend(self, group: int, names: Sequence[str]) -> str:
        if not self._shared:
            return "the queue store of this node is its own: nothing is written to a shared one"
        try:
            outcome = await self._remote.record(group, intended=names)
        except StorageError as error:
            return str(error)
        return "" if outcome == RECORDED else outcome.removeprefix("refused: ")

    # --- taking in ----------------------------------------------------------------------------------------

    async def record(self, tier_id: str, names: Sequence[str], failure: str) -> str:
        async with self._turn:
            if tier_id in self._done:
                return self._done[tier_id]
            await self._copying.rule()
            held = self._merges.under_way(tier_id)
            uploading = self._uploading.get(held.group) if held is not None else None
            if held is None or uploading is None or uploading.piece is None or uploading.piece.tier_id != tier_id:
                return "refused: this upload is not under way: its lease has ended, or it was given up"
            try:
                outcome = await self._take_in(held.group, uploading, uploading.piece, names, failure)
            except (StorageError, OSError) as error:
                self._failed(f"write group {held.group}: {error}")
                outcome = f"refused: {error}"
            finally:
                self._give_up_piece(held.group, uploading)
                self._merges.end(tier_id)
            self._done[tier_id] = outcome
            while len(self._done) > DONE_REMEMBERED:
                del self._done[next(iter(self._done))]
            return outcome

    async def _take_in(
        self, group: int, uploading: _Uploading, piece: _Piece, names: Sequence[str], failure: str
    ) -> str:
        """Raises `StorageError` where the store has not what was handed in."""
        if not piece.files.keys() >= set(names):
            return "refused: other files were uploaded than were given out"
        assert self._place is not None, "it was given out"
        moved = {name: await self._moved(piece.files[name], name) for name in names}
        await self._look_up(group, self._place.store, moved)
        for name, file in moved.items():
            uploading.done[piece.files[name].name] = file
        if failure:
            self._failed(failure)
        else:
            self._failures_in_a_row, self._rest_until = 0, 0.0
        if len(uploading.done) < len(uploading.unit.entries):
            return KEPT
        return await self._record_unit(group, uploading)

    async def _moved(self, file: StoreFile, name: str) -> StoreFile:
        """A file of disk 2 as it lies in the store under another name. Raises OSError."""
        size = file.bytes
        if has_index_beside(file.name) and not has_index_beside(name):
            beside = await self._store.stored.files.open(index_path_of(file.name), reading=ReadingMode.COLD)
            try:
                size += await beside.size()  # header, rows and footer are as long, wherever they lie
            finally:
                await beside.close()
        return msgspec.structs.replace(file, name=name, bytes=size)

    async def _look_up(self, group: int, store: ObjectStore, files: Mapping[str, StoreFile]) -> None:
        """Raises `StorageError` unless the store has these files."""
        bounded = asyncio.Semaphore(LOOKED_UP_AT_ONCE)

        async def look_up(name: str, size: int | None) -> None:
            async with bounded:
                info = await store.info(name)
            if size is not None and info.size_bytes != size:
                raise StorageError(f"{name} has {info.size_bytes} bytes in the object store, not {size}")

        looks = []
        for name, file in files.items():
            whole, *beside = file_objects(group, name)
            looks += [look_up(whole, file.bytes), *(look_up(one, None) for one in beside)]
        await asyncio.gather(*looks)

    async def _record_unit(self, group: int, uploading: _Uploading) -> str:
        """Have the log say that a unit counts. Raises `StorageError` if it does, and this node cannot note that."""
        if self._epoch_of(group) != uploading.epoch or not self._stands(group, uploading):
            return "refused: the files that were uploaded are not what comes next any more"
        unit = uploading.unit
        spans = [
            RemoteSpan(span.after, span.upto, tuple(uploading.done[file.name].message() for file in span.files))
            for span in unit.moving
        ]
        upto = uploading.after if uploading.fills else unit.upto
        outcome = await self._remote.record(
            group, upto=upto, spans=spans, gone=uploading.gone, at_once=bool(uploading.gone)
        )
        if outcome != RECORDED:
            if uploading.fills and self._gaps is not None:
                self._gaps.leave(group, unit)
                self._give_up_unit(group, uploading)
                return outcome
            if any(self._remote.counts(group, file.name) for file in uploading.done.values()):
                self._give_up_unit(group, uploading)  # half of it counts: that goes, before the next unit begins
            return outcome
        self._uploading.pop(group, None)
        self._next_group = group + 1
        size = sum(file.bytes for file in unit.files())
        self.uploaded_bytes += size
        self.uploaded_files += len(unit.entries)
        self.last_success_ms = self._clock.now_ms()
        rows = await self._sums.of(group, self._store.manifest.spans(group), await self._copying.rule())
        self.waiting[group] = waiting(rows, upto)
        log.info(
            "write group %d: %d files of %d bytes are in the remote tier, with all blocks up to %d", group,
            len(unit.entries), size, upto,
        )  # fmt: skip
        return RECORDED

    # --- giving up ----------------------------------------------------------------------------------------

    def _failed(self, reason: str) -> None:
        self.failures += 1
        self.last_failure = reason
        seconds = min(REST_SECONDS * 2**self._failures_in_a_row, REST_SECONDS_MAX)
        self._failures_in_a_row = min(self._failures_in_a_row + 1, 30)
        self._rest_until = self._clock.monotonic() + seconds
        log.warning("an upload to the remote tier failed, and is tried again in %.0f s: %s", seconds, reason)

    def _give_up_piece(self, group: int, uploading: _Uploading) -> None:
        """Take back what a splitter has of a unit, but for what it handed in."""
        if uploading.piece is not None:
            kept = {file.name for file in uploading.done.values()}
            lost = [name for name in uploading.piece.files if name not in kept]
            self._to_delete.setdefault(group, []).extend(lost)
            uploading.piece = None

    def _give_up_unit(self, group: int, uploading: _Uploading) -> None:
        self._give_up_piece(group, uploading)
        uncounted = [one.name for one in uploading.done.values() if not self._remote.counts(group, one.name)]
        self._to_delete.setdefault(group, []).extend(uncounted)
        self._uploading.pop(group, None)

    def _forget(self, group: int) -> None:
        """Forget a write group that this node does not lead any more, or not in the same term."""
        for known in (self._uploading, self._to_delete, self.waiting, self._epochs):
            known.pop(group, None)
        self._sums.forget(group)
        if self._gaps is not None:
            self._gaps.forget(group)

    async def _delete_given_up(self, group: int, place: RemotePlace) -> None:
        """Delete the objects of what was given up. Raises `ObjectStoreError`."""
        objects = [one for name in self._to_delete.get(group, ()) for one in file_objects(group, name)]
        if objects:
            await place.store.delete(objects)
        self._to_delete.pop(group, None)

    # --- measures -----------------------------------------------------------------------------------------

    def waiting_bytes(self) -> int:
        """Bytes of batches in merged files that may move to the remote tier and have not, at the last look."""
        return sum(one.bytes for one in list(self.waiting.values()))  # metrics are read in any thread

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`."""
        yield Sample(
            "mainstem_remote_copy_lag_bytes", "gauge",
            "Bytes of batches in merged files that may move to the remote tier and have not, at the last look.",
            self.waiting_bytes())  # fmt: skip
        yield Sample(
            "mainstem_remote_copy_lag_files", "gauge",
            "Merged files that may move to the remote tier and have not, at the last look.",
            sum(one.files for one in list(self.waiting.values())))  # fmt: skip
        yield Sample(
            "mainstem_remote_copy_bytes_total", "counter", "Bytes of files that were uploaded to the remote tier.",
            self.uploaded_bytes)  # fmt: skip
        yield Sample(
            "mainstem_remote_copy_files_total", "counter", "Files that were uploaded to the remote tier.",
            self.uploaded_files)  # fmt: skip
        yield Sample(
            "mainstem_remote_copy_errors_total", "counter", "Failed uploads to the remote tier.",
            self.failures)  # fmt: skip
        yield Sample(
            "mainstem_remote_copy_last_success_seconds", "gauge",
            "When files last came to count in the remote tier, in seconds since the Unix epoch; 0: none have",
            (self.last_success_ms or 0) / 1000)  # fmt: skip
