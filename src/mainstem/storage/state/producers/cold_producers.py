"""Keeps the producers of a node that do not fit into its memory in files; `awaited_producers` reads them back.

Each write group holds the states of producers that changed lately; the rest lies in `producer_files`. Top to bottom as
a producer goes its way:

    flush    states that changed are written to a new file of their group: before each checkpoint, so that it need not
             hold them, and when memory holds too many
    evict    then those that were not used since the last look may go from memory
    merge    files of about the same size become one; where all of a write group's do, expired producers, and those of
             deleted topics, are left out, and those beyond the bound (`producer_limits.py`)

No step touches a damaged page until it is settled (`producer_damage.py`): other replicas are asked for its producers
(`producer_mending.py`), and producers that need it are told to try again.

Files that no checkpoint names any more are removed when a checkpoint is saved. A level at which other programs may
have to read the checkpoint has no files, and all producers in memory, as those programs have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.kernel import ProducerStates
from mainstem.kernel.pure.producer_states import COLD_FILES_MAX, KEY
from mainstem.model import Sample
from mainstem.ports import Clock, Files
from mainstem.storage.errors import StorageError
from mainstem.storage.state.producers import producer_files
from mainstem.storage.state.producers.producer_damage import DamagedPages
from mainstem.storage.state.producers.producer_expiry import FOREVER_MS, Expired, ProducerExpiry
from mainstem.storage.state.producers.producer_files import (
    DIRECTORY,
    ProducerFile,
    ProducersDamaged,
    SavedFile,
    damaged_pages,
    path_of,
    pieces_of,
)
from mainstem.storage.state.producers.producer_limits import ProducerLimits, Values, value_of
from mainstem.storage.state.producers.producer_rows import STATE, Name, States, sorted_states

log = logging.getLogger(__name__)

STEP = 4096
"""Producers looked at in one turn of the event loop: about a tenth of a millisecond."""

FILES_MIN = 6
"""This many files of a write group are left alone; merging begins with the next one."""
FILES_MAX = 24
"""From here on all are merged, whatever their sizes: the kernel looks through 32 at the most."""

MERGE_GROWTH = 2
"""An older file is merged along while it has no more than this many times the producers of the newer ones together:
each is then written again about once per doubling."""

LOOK_SECONDS = 0.25
"""Seconds between two looks whether memory holds too many producers."""

SETTLE_LOOK_SECONDS = 0.05
SETTLE_SECONDS_MAX = 120.0
"""How long one who needs all producers of a group waits until what is damaged is settled: twice as long as replicas are
asked."""

LOST_MS = 600_000
"""So long at least a producer is remembered to be lost: no client sends a batch again later, by default two minutes."""


class Known(NamedTuple):
    """All states that memory and files have of some producers."""

    applied: int
    """The block that it is as of; it may have some of later ones."""
    rows: dict[Name, list[numpy.void]]
    """The newest whole state, and what partial ones there are behind it, oldest first; where pages are damaged, what
    there is behind the newest of them."""
    held: set[Name]
    """Producers whose whole state is in memory."""
    missing: set[Name]
    """Producers that need a damaged page of a file, because no newer whole state replaces it."""


class ColdProducers:
    """Keeps the producers of all write groups of a node within bounds of memory and disk."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        expiry: ProducerExpiry,
        states: Sequence[ProducerStates],
        was_deleted: Callable[[int], bool],
        is_allowed: Callable[[], bool],
        *,
        memory_max: int,
        count_max: int,
    ) -> None:
        """`states`: of each write group. `memory_max`: how many of them are to be in memory, and `count_max` at all,
        both over all groups. `is_allowed`: may there be files?"""
        self._files = files
        self._clock = clock
        self._expiry = expiry
        self._states = states
        self._was_deleted = was_deleted
        self._is_allowed = is_allowed
        self._memory_max_of_all, self._count_max_of_all = memory_max, count_max
        self._of: list[list[ProducerFile]] = [[] for _ in states]
        """The files of each write group, oldest first."""
        self.merged_whole_at = [clock.monotonic()] * len(states)
        """Per write group, when (monotonic) all its files were last merged into one."""
        self._next_number = 1
        self.turn = asyncio.Lock()
        """One change of the files at a time; who reads without it looks afterwards whether they have changed."""
        self.damaged = DamagedPages(clock, len(states))
        self._changes = [0] * len(states)
        self._kept: set[str] = set()
        """Files that the newest checkpoint names."""
        self._naming: set[str] = set()
        """Files that the checkpoint names which is being saved."""
        self._read_by: dict[str, int] = {}
        self.forgotten = 0
        """How many producers the bound has pushed out."""

    def grow(self) -> None:
        """There are more write groups than before."""
        more = len(self._states) - len(self._of)
        self._of += [[] for _ in range(more)]
        self.merged_whole_at += [self._clock.monotonic()] * more
        self._changes += [0] * more
        self.damaged.grow(len(self._states))

    @property
    def _memory_max(self) -> int:
        return max(1, self._memory_max_of_all // len(self._states))

    @property
    def _count_max(self) -> int:
        return max(1, self._count_max_of_all // len(self._states))

    @property
    def active(self) -> bool:
        """Whether producers are in files, or may be."""
        return self._is_allowed() or any(self._of)

    @property
    def filed(self) -> int:
        """States in files; a producer may have several."""
        return sum(file.states for files in self._of for file in files)

    def files_of(self, number: int) -> list[ProducerFile]:
        """The files of a write group, oldest first."""
        return list(self._of[number])

    def changes(self, number: int) -> int:
        """How often the files of a write group changed: who reads without the turn looks before and afterwards."""
        return self._changes[number]

    def file_count(self, number: int) -> int:
        """How many files have producers of a write group."""
        return len(self._of[number])

    # --- flush and evict ----------------------------------------------------------------------------------

    async def flush(self) -> dict[int, list[SavedFile]]:
        """Write what changed, in all groups; the files that count then, for a checkpoint. Changes meanwhile may be part
        of it or not: applying them again changes nothing."""
        for number in range(len(self._states)):
            async with self.turn:
                await self._flush(number)
        named = {number: [file.saved() for file in files] for number, files in enumerate(self._of)}
        self._naming = {file.name for files in named.values() for file in files}
        return named

    async def _flush(self, number: int) -> None:
        await self._have_room(number)
        states, pieces = self._states[number], []
        rows = states.changed(True, STEP)
        while rows is not None:
            if rows:
                pieces.append(rows)
            await asyncio.sleep(0)
            rows = states.changed(False, STEP)
        if not pieces:
            return
        found = await asyncio.to_thread(lambda: sorted_states(numpy.frombuffer(b"".join(pieces), STATE)))
        try:
            file = await self._write(number, _in_pieces(found))
        except BaseException:
            states.all_changed()
            raise
        if file is not None:
            self._set(number, [*self._of[number], file])

    async def _have_room(self, number: int) -> None:
        """Have room for one more file of a group. Raises `StorageError` where what could be merged has to wait."""
        if len(self._of[number]) >= FILES_MAX:
            await self._merge(number)
        if len(self._of[number]) >= COLD_FILES_MAX:
            raise StorageError(
                f"write group {number}: {len(self._of[number])} files of producers, which are not merged before other "
                "replicas have said what was in their damaged pages"
            )

    async def _write(self, number: int, pieces: AsyncIterator[States]) -> ProducerFile | None:
        name, self._next_number = self._next_number, self._next_number + 1
        return await producer_files.write(self._files, name, number, pieces)

    def _set(self, number: int, files: list[ProducerFile]) -> None:
        self._of[number] = files
        self.damaged.keep(number, {file.name for file in files})
        self._changes[number] += 1
        self._states[number].set_cold([file.names for file in files])

    async def keep_within(self) -> None:
        """Let go from memory what it holds too much, and merge files where there are many."""
        for number, states in enumerate(self._states):
            states.count_max = 2 * self._memory_max if self._is_allowed() else 0
            if not self.active:
                continue
            if len(states) > self._memory_max:
                async with self.turn:
                    await self._flush(number)
                    await self._evict(number)
            if self._merge_is_due(number):
                async with self.turn:
                    await self._merge(number)

    async def _evict(self, number: int) -> None:
        """Down to three quarters, so that this is not done for each."""
        states, target = self._states[number], self._memory_max * 3 // 4
        for _ in range(3 * (len(states) // STEP + 1)):  # who was used is passed over once
            if len(states) <= target:
                break
            states.evict(target, STEP)
            await asyncio.sleep(0)

    # --- merge --------------------------------------------------------------------------------------------

    def _mergeable(self, number: int) -> list[ProducerFile]:
        """The files that are newer than any which has a page that is not settled."""
        files = self._of[number]
        asked = {page.file for page in self.damaged.asked(number)}
        first = max((place + 1 for place, file in enumerate(files) if file.name in asked), default=0)
        return files[first:]

    def _merge_is_due(self, number: int) -> bool:
        files, mergeable = self._of[number], self._mergeable(number)
        if len(mergeable) == len(files):
            return len(files) > FILES_MIN or self._whole_is_due(number)
        return len(mergeable) > FILES_MIN or (len(files) >= FILES_MAX and len(mergeable) > 1)

    def _whole_is_due(self, number: int) -> bool:
        """Everything is to be looked at: for what has expired, or because it is too much."""
        files = self._of[number]
        age = self._clock.monotonic() - self.merged_whole_at[number]
        return bool(files) and (
            len(files) >= FILES_MAX
            or age > self._expiry.seconds / 4
            or sum(file.states for file in files) > self._count_max * 5 // 4
        )

    async def _merge(self, number: int) -> None:
        """Merge what is due; nothing where a page is met that cannot be read: it is to be settled first."""
        files, mergeable = self._of[number], self._mergeable(number)
        if not mergeable or (len(mergeable) == 1 and len(files) > 1):
            return
        first, count = len(mergeable) - 1, mergeable[-1].states
        while first > 0 and mergeable[first - 1].states <= MERGE_GROWTH * count:
            first -= 1
            count += mergeable[first].states
        sources = mergeable if self._whole_is_due(number) else mergeable[min(first, len(mergeable) - 2) :]
        whole, forgotten = len(sources) == len(files), self.forgotten
        try:
            pieces = producer_files.merged(self._files, sources, self.damaged.is_settled)
            if whole:
                limits = await self._limits(sources) if sum(file.states for file in sources) > self._count_max else None
                pieces = self._kept_of(number, pieces, limits)
            made = await self._write(number, pieces)
        except ProducersDamaged as error:
            self.forgotten = forgotten
            self._met(number, error)
            return
        self._set(number, files[: len(files) - len(sources)] + ([made] if made is not None else []))
        if whole:
            self.merged_whole_at[number] = self._clock.monotonic()
        await self._remove(file.name for file in sources)

    def _met(self, number: int, error: ProducersDamaged) -> None:
        self.damaged.met(number, self._expiry.applied(number), error.pages)

    async def _kept_of(
        self, number: int, pieces: AsyncIterator[States], limits: ProducerLimits | None
    ) -> AsyncIterator[States]:
        """Without what has expired or was deleted, and within the limits."""
        expired = self._expiry.expired(number)
        async for rows in pieces:
            forgiven = (rows["count"] == 0) & (rows["last_timestamp_ms"] < self._clock.now_ms() - LOST_MS)
            keep = ~has_expired(rows, expired) & ~self._of_deleted(rows) & ~forgiven
            if limits is not None:
                kept = keep & limits.keep(rows)
                self.forgotten += int(keep.sum() - kept.sum())
                keep = kept
            rows = rows[keep]
            rows["partial"] = 0  # nothing older is left
            yield rows

    def _of_deleted(self, rows: States) -> numpy.typing.NDArray[numpy.bool_]:
        """Which of these are of topics that were deleted."""
        topics = rows["queue_id"] >> numpy.uint64(32)
        return numpy.isin(topics, [topic for topic in numpy.unique(topics).tolist() if self._was_deleted(topic)])

    async def _limits(self, sources: Sequence[ProducerFile]) -> ProducerLimits:
        queues: list[numpy.typing.NDArray[numpy.uint64]] = []
        times: list[Values] = []
        async for rows in producer_files.merged(self._files, sources, self.damaged.is_settled):
            queues.append(rows["queue_id"].copy())
            times.append(value_of(rows))
        return await asyncio.to_thread(
            lambda: ProducerLimits(numpy.concatenate(queues), numpy.concatenate(times), self._count_max)
        )

    # --- mended -------------------------------------------------------------------------------------------

    def names_of(self, number: int, file: str, page: int) -> list[Name]:
        """The producers in a page of a file."""
        return next((one.names_of(page) for one in self._of[number] if one.name == file), [])

    async def known(self, number: int, names: Collection[Name]) -> Known:
        """The states of these producers in memory and files. Raises OSError where a file cannot be read."""
        async with self.turn:
            return await self.known_now(number, names)

    async def known_now(self, number: int, names: Collection[Name]) -> Known:
        """As `known`, for a caller that has the turn."""
        rows, damaged, unread = await pieces_of(self._files, self._of[number], names)
        for error in unread.values():
            raise error
        states, applied = self._states[number], self._expiry.applied(number)
        image = numpy.frombuffer(states.held(b"".join(KEY.pack(*name) for name in sorted(names))), STATE)
        self.damaged.met(number, applied, damaged.values())
        held = set()
        for row in image:
            name = int(row["queue_id"]), int(row["producer_id"])
            if not row["partial"]:
                held.add(name)
                rows[name] = []
            rows.setdefault(name, []).append(row)
        return Known(applied, rows, held, damaged.keys() - held)

    async def add(self, number: int, rows: States) -> None:
        """Let these states, which are whole, be in a file that is newer than all others; for who has the turn."""
        await self._have_room(number)
        file = await self._write(number, _in_pieces(sorted_states(rows)))
        if file is not None:
            self._set(number, [*self._of[number], file])

    # --- upkeep -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Flush, evict and merge, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.keep_within()
            except (StorageError, OSError) as error:
                log.error("producers stay in memory, as they cannot be written: %s", error)

    def saved(self, named: Mapping[int, Sequence[SavedFile]]) -> None:
        """Take note that a checkpoint that names these files is on the disk."""
        self._kept = {file.name for files in named.values() for file in files}
        self._naming = set()

    async def _remove(self, names: Iterable[str]) -> None:
        """Remove those of these files that neither count, nor are named by a checkpoint, nor are read."""
        needed = {file.name for files in self._of for file in files} | self._kept | self._naming | self._read_by.keys()
        for name in names:
            if name not in needed:
                await self._files.remove(path_of(name))

    async def remove_unnamed(self) -> None:
        """Remove everything that neither counts nor is named by the newest checkpoint."""
        async with self.turn:
            await self._remove(await self._files.names(DIRECTORY))

    async def load(self, named: Mapping[int, Sequence[SavedFile]]) -> None:
        """Begin with the files that a checkpoint names, and have in memory what there is room for, the newest first.
        Raises `FormatError`."""
        for name in await self._files.names(DIRECTORY):
            digits = name.partition(".")[0]
            if digits.isdigit():
                self._next_number = max(self._next_number, int(digits) + 1)
        for number, files in named.items():
            of_group = [await producer_files.open_named(self._files, saved, number) for saved in files]
            self._set(number, of_group)
            if sum(file.states for file in of_group) <= self._memory_max:
                try:
                    async for rows in producer_files.merged(self._files, of_group, self.damaged.is_settled):
                        self._states[number].load_image(rows[rows["count"] > 0].tobytes())
                except ProducersDamaged as error:
                    # whose newest state is in such a page is not known: all are read when they are asked for
                    self._met(number, error)
                    self._states[number].expire(FOREVER_MS, len(self._states[number]))
                self._states[number].changed(True, len(self._states[number]))
        self.saved(named)
        await self.remove_unnamed()

    # --- whole groups -------------------------------------------------------------------------------------

    async def all_states(self, number: int) -> AsyncIterator[States]:
        """Every producer of a group, each once, as now or later; what is damaged is settled first. Raises
        `ProducersDamaged` when that takes too long."""
        if not self.active:
            yield numpy.frombuffer(self._states[number].image(), STATE)
            return
        files = await self._settled_files(number)
        try:
            async for rows in producer_files.merged(self._files, files, self.damaged.is_settled):
                rows["partial"] = 0
                yield rows[~self._of_deleted(rows)]
        finally:
            self._let_go(files)

    async def _settled_files(self, number: int) -> list[ProducerFile]:
        """The files of a group, with everything in them that memory has, and with no damage that is not settled; they
        stay until they are let go. Raises `ProducersDamaged` when that takes too long."""
        patience = self._clock.monotonic() + SETTLE_SECONDS_MAX
        while True:
            async with self.turn:
                await self._flush(number)
                files = list(self._of[number])
                for file in files:
                    self._read_by[file.name] = self._read_by.get(file.name, 0) + 1
            try:
                damaged = await damaged_pages(self._files, files, self.damaged.is_settled)
            except BaseException:
                self._let_go(files)
                raise
            if not damaged:
                return files
            self._let_go(files)
            error = ProducersDamaged(damaged)
            self._met(number, error)
            while True:
                await asyncio.sleep(SETTLE_LOOK_SECONDS)
                if self._clock.monotonic() > patience:
                    raise error
                if not self.damaged.asked(number):
                    break

    def _let_go(self, files: Sequence[ProducerFile]) -> None:
        for file in files:
            self._read_by[file.name] -= 1
            if not self._read_by[file.name]:
                del self._read_by[file.name]

    async def replace(self, number: int, image: bytes) -> None:
        """Let a group have these producers and no others; nobody else changes it meanwhile."""
        states = self._states[number]
        async with self.turn:
            states.discard_overlay()
            while len(states):
                states.expire(FOREVER_MS, STEP)
                await asyncio.sleep(0)
            rows = await asyncio.to_thread(lambda: sorted_states(numpy.frombuffer(image, STATE)))
            some_lost = not rows["count"].all()  # what is in a file alone is answered as lost
            if not self.active or (len(rows) <= self._memory_max and not some_lost):
                self._set(number, [])
                for first in range(0, len(rows), STEP):
                    states.load_image(rows[first : first + STEP].tobytes())
                    await asyncio.sleep(0)
                return
            file = await self._write(number, _in_pieces(rows))
            self._set(number, [file] if file is not None else [])

    # --- statistics ---------------------------------------------------------------------------------------

    def samples(self) -> Iterable[Sample]:
        yield Sample(
            "mainstem_producers", "gauge", "Idempotent producers, per queue, that are held in memory.",
            sum(map(len, self._states)))  # fmt: skip
        yield Sample(
            "mainstem_producers_filed", "gauge", "States of producers in files on disk 1.", self.filed)  # fmt: skip
        yield Sample(
            "mainstem_producers_forgotten_total", "counter",
            "Producers forgotten before their time, because there were more than storage.producers_max.",
            self.forgotten)  # fmt: skip
        yield from self.damaged.samples()


def has_expired(rows: States, expired: Expired) -> numpy.typing.NDArray[numpy.bool_]:
    newest = rows["batches"]["block_index"].max(axis=1)
    found: numpy.typing.NDArray[numpy.bool_] = (
        (rows["last_timestamp_ms"] < expired.before_ms) & (newest <= expired.up_to_index)
    )  # fmt: skip
    return found


async def _in_pieces(rows: States) -> AsyncIterator[States]:
    for first in range(0, len(rows), STEP):
        yield rows[first : first + STEP]
        await asyncio.sleep(0)
