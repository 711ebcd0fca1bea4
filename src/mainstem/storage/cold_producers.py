"""The producers of a node beyond its memory: what lies in files, how it gets there, and how it comes back.

Each write group holds the states of producers that changed lately; the rest lies in `producer_files`. Top to bottom as
a producer goes its way:

    flush    states that changed are written to a new file of their group: before each checkpoint, so that it need not
             hold them, and when memory holds too many
    evict    then those that nobody used since the last look may go from memory
    wait     a batch of one that has gone waits here while its state is read; then it is appended as if it had come now.
             Whoever waits is served in order of arrival, so that a producer's batches stay in theirs
    merge    files of about the same size become one; where all of a group's do, what has expired, or belongs to
             deleted topics, is left out, and what is beyond the bound

Beyond the bound the producers of a single batch go first, then others, the oldest first, and always those of the queues
that have the most: a client that invents producers pushes out its own, and those of its queues before any other's.

Files that no checkpoint names any more are removed when a checkpoint is saved. A level at which other programs may
have to read the checkpoint has no files, and all producers in memory, as those programs have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.kernel import ProducerStates
from mainstem.model import Outcome, Sample
from mainstem.ports import Clock, Files
from mainstem.storage import producer_files
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.producer_expiry import FOREVER_MS, Expired, ProducerExpiry
from mainstem.storage.producer_files import (
    DIRECTORY,
    STATE,
    ProducerFile,
    Reading,
    SavedFile,
    States,
    path_of,
    sorted_states,
)

log = logging.getLogger(__name__)

STEP = 4096
"""Producers looked at in one turn of the event loop: about a tenth of a millisecond."""

FILES_MIN = 6
"""So many files of a group are left alone; merging begins with the next one."""
FILES_MAX = 24
"""From here on all are merged, whatever their sizes: the kernel looks through 32 at the most."""

MERGE_GROWTH = 2
"""An older file is merged along while it has no more than this many times the producers of the newer ones together:
each is then written again about once per doubling."""

LOOK_SECONDS = 0.25
"""Between two looks whether memory holds too many."""

WAITING_MAX = 65_536
"""Producers read at a time and waiting: as many as memory holds by default in half of its groups. More are refused."""

Key = tuple[int, int, int]
"""Write group, queue id, producer id."""


class Waiting(NamedTuple):
    """An append that needs states read."""

    keys: frozenset[Key]
    go_on: Callable[[Mapping[Key, Outcome]], None]
    """Called when they are there, with those that could not be read, and why."""


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
        self._memory_max = max(1, memory_max // len(states))
        self._count_max = max(1, count_max // len(states))
        self._of: list[list[ProducerFile]] = [[] for _ in states]
        """Of each group, oldest first."""
        self._merged_whole_at = [clock.monotonic()] * len(states)
        self._next_number = 1
        self._turn = asyncio.Lock()
        """One change of the files at a time; who reads looks afterwards whether they have changed."""
        self._changes = [0] * len(states)
        self._kept: set[str] = set()
        """Files that the newest checkpoint names."""
        self._naming: set[str] = set()
        """Files that the checkpoint names which is being saved."""
        self._read_by: dict[str, int] = {}
        self._waiting: list[Waiting] = []
        self._wake = asyncio.Event()
        self._reads = False
        self.asked: list[Key] = []
        """The kernel notes here whom batches were refused for as cold; `ask` takes them over."""
        self.loaded = 0
        self.lost = 0
        """Producers asked for that damage has taken."""
        self.forgotten = 0
        """Pushed out by the bound."""
        for one in states:
            one.asked = self.asked

    @property
    def active(self) -> bool:
        """Producers are in files, or may be."""
        return self._is_allowed() or any(self._of)

    @property
    def filed(self) -> int:
        """States in files; a producer may have several."""
        return sum(file.states for files in self._of for file in files)

    # --- flush and evict ----------------------------------------------------------------------------------

    async def flush(self) -> dict[int, list[SavedFile]]:
        """Write what changed, in all groups; the files that count then, for a checkpoint. What changes meanwhile may be
        part of it or not: applying it again changes nothing."""
        for number in range(len(self._states)):
            async with self._turn:
                await self._flush(number)
        named = {number: [file.saved() for file in files] for number, files in enumerate(self._of)}
        self._naming = {file.name for files in named.values() for file in files}
        return named

    async def _flush(self, number: int) -> None:
        if len(self._of[number]) >= FILES_MAX:
            await self._merge(number)
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

    async def _write(self, number: int, pieces: AsyncIterator[States]) -> ProducerFile | None:
        name, self._next_number = self._next_number, self._next_number + 1
        return await producer_files.write(self._files, name, number, pieces)

    def _set(self, number: int, files: list[ProducerFile]) -> None:
        self._of[number] = files
        self._changes[number] += 1
        self._states[number].set_cold([file.names for file in files])

    async def keep_within(self) -> None:
        """Let go from memory what it holds too much, and merge files where there are many."""
        for number, states in enumerate(self._states):
            states.count_max = 2 * self._memory_max if self._is_allowed() else 0
            if not self.active:
                continue
            if len(states) > self._memory_max:
                async with self._turn:
                    await self._flush(number)
                    await self._evict(number)
            if self._merge_is_due(number):
                async with self._turn:
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

    def _merge_is_due(self, number: int) -> bool:
        return len(self._of[number]) > FILES_MIN or self._whole_is_due(number)

    def _whole_is_due(self, number: int) -> bool:
        """Everything is to be looked at: for what has expired, or because it is too much."""
        files = self._of[number]
        age = self._clock.monotonic() - self._merged_whole_at[number]
        return bool(files) and (
            len(files) >= FILES_MAX
            or age > self._expiry.seconds / 4
            or sum(file.states for file in files) > self._count_max * 5 // 4
        )

    async def _merge(self, number: int) -> None:
        files = self._of[number]
        first, count = len(files) - 1, files[-1].states
        while first > 0 and files[first - 1].states <= MERGE_GROWTH * count:
            first -= 1
            count += files[first].states
        sources = files if self._whole_is_due(number) else files[min(first, len(files) - 2) :]
        whole = len(sources) == len(files)
        lost: list[str] = []
        pieces = producer_files.merged(self._files, sources, lost)
        if whole:
            limits = await self._limits(sources) if sum(file.states for file in sources) > self._count_max else None
            pieces = self._kept_of(number, pieces, limits)
        made = await self._write(number, pieces)
        for message in lost:
            log.error("%s; producers that were in it are forgotten", message)
        self.lost += len(lost) * producer_files.ROWS_PER_PAGE
        self._set(number, files[: len(files) - len(sources)] + ([made] if made is not None else []))
        if whole:
            self._merged_whole_at[number] = self._clock.monotonic()
        await self._remove(file.name for file in sources)

    async def _kept_of(
        self, number: int, pieces: AsyncIterator[States], limits: Limits | None
    ) -> AsyncIterator[States]:
        """Without what has expired or was deleted, and within the limits."""
        expired = self._expiry.expired(number)
        async for rows in pieces:
            keep = ~has_expired(rows, expired) & ~self._of_deleted(rows)
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

    async def _limits(self, sources: Sequence[ProducerFile]) -> Limits:
        queues, times = [], []
        async for rows in producer_files.merged(self._files, sources, []):
            queues.append(rows["queue_id"].copy())
            times.append(value_of(rows))
        return await asyncio.to_thread(
            Limits, numpy.concatenate(queues), numpy.concatenate(times), self._count_max
        )

    # --- wait ---------------------------------------------------------------------------------------------

    def ask(self, go_on: Callable[[Mapping[Key, Outcome]], None]) -> None:
        """Read the producers that the kernel has just asked for, and go on then."""
        keys = frozenset(self.asked)
        self.asked.clear()
        if not self._reads:
            go_on(dict.fromkeys(keys, Outcome.STORAGE_FAILED))
            return
        if sum(len(one.keys) for one in self._waiting) + len(keys) > WAITING_MAX:
            go_on(dict.fromkeys(keys, Outcome.STORAGE_BUSY))
            return
        self._waiting.append(Waiting(keys, go_on))
        self._wake.set()

    async def read(self) -> None:
        """Read who is waited for, until cancelled."""
        self._reads = True
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    await self._read_waiting()
        finally:
            self._reads = False
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                one.go_on(dict.fromkeys(one.keys, Outcome.STORAGE_FAILED))

    async def _read_waiting(self) -> None:
        keys = sorted({key for one in self._waiting for key in one.keys})
        found: dict[Key, bytes] = {}
        failed: dict[Key, Outcome] = {}
        changes = list(self._changes)
        for number in sorted({number for number, *_ in keys}):
            await self._read_group(number, [key for key in keys if key[0] == number], found, failed)
        if any(changes[number] != self._changes[number] for number, *_ in keys):
            return  # files came or went: they are read again
        for key in keys:
            if key not in failed:
                number, queue_id, producer_id = key
                self._states[number].warm(queue_id, producer_id, found.get(key, b""))
        self.loaded += len(found)
        for states in self._states:
            states.settled = True
        try:
            while self._waiting and self._waiting[0].keys <= set(keys):
                one = self._waiting.pop(0)
                one.go_on({key: failed[key] for key in one.keys if key in failed})
        finally:
            for states in self._states:
                states.settled = False

    async def _read_group(
        self, number: int, keys: Sequence[Key], found: dict[Key, bytes], failed: dict[Key, Outcome]
    ) -> None:
        expired = self._expiry.expired(number)
        for file in list(self._of[number]):
            reading = Reading(file, self._files)
            try:
                for key in keys:
                    place = file.place_of(*key[1:])
                    if place < 0:
                        continue
                    try:
                        row = await _row_of(reading, place, key)
                    except FormatError as error:
                        log.error("%s; producer %d of queue %#x is answered that it is unknown", error, *key[:0:-1])
                        self.lost += 1
                        failed[key] = Outcome.UNKNOWN_PRODUCER
                        continue
                    if not has_expired(row.reshape(1), expired)[0]:
                        found[key] = found.get(key, b"") + row.tobytes()
            except OSError as error:
                log.warning("%s cannot be read: %s; producers are asked to try again", path_of(file.name), error)
                failed.update(dict.fromkeys(keys, Outcome.STORAGE_BUSY))
            finally:
                await reading.close()

    # --- upkeep -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look after memory and files, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.keep_within()
            except (StorageError, OSError) as error:
                log.error("producers stay in memory, as they cannot be written: %s", error)

    def saved(self, named: Mapping[int, Sequence[SavedFile]]) -> None:
        """A checkpoint that names these files is on the disk."""
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
        async with self._turn:
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
                lost: list[str] = []
                async for rows in producer_files.merged(self._files, of_group, lost):
                    self._states[number].load_image(rows.tobytes())
                for message in lost:
                    log.error("%s; producers that were in it are forgotten", message)
                self._states[number].changed(True, len(self._states[number]))
        self.saved(named)
        await self.remove_unnamed()

    # --- whole groups -------------------------------------------------------------------------------------

    async def all_states(self, number: int) -> AsyncIterator[States]:
        """Every producer of a group, each once, as now or later."""
        if not self.active:
            yield numpy.frombuffer(self._states[number].image(), STATE)
            return
        async with self._turn:
            await self._flush(number)
            files = list(self._of[number])
            for file in files:
                self._read_by[file.name] = self._read_by.get(file.name, 0) + 1
        lost: list[str] = []
        try:
            async for rows in producer_files.merged(self._files, files, lost):
                rows["partial"] = 0
                yield rows[~self._of_deleted(rows)]
        finally:
            for file in files:
                self._read_by[file.name] -= 1
                if not self._read_by[file.name]:
                    del self._read_by[file.name]
        for message in lost:
            log.error("%s; a snapshot is made without the producers that were in it", message)

    async def replace(self, number: int, image: bytes) -> None:
        """Let a group have these producers and no others; nobody else changes it meanwhile."""
        states = self._states[number]
        async with self._turn:
            states.discard_overlay()
            while len(states):
                states.expire(FOREVER_MS, STEP)
                await asyncio.sleep(0)
            rows = await asyncio.to_thread(lambda: sorted_states(numpy.frombuffer(image, STATE)))
            if not self.active or len(rows) <= self._memory_max:
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
            "mainstem_producers_read_total", "counter", "Producers read back from files.", self.loaded)  # fmt: skip
        yield Sample(
            "mainstem_producers_lost_total", "counter", "Producers that a damaged file has lost.",
            self.lost)  # fmt: skip
        yield Sample(
            "mainstem_producers_forgotten_total", "counter",
            "Producers forgotten before their time, because there were more than storage.producers_max.",
            self.forgotten)  # fmt: skip


def has_expired(rows: States, expired: Expired) -> numpy.typing.NDArray[numpy.bool_]:
    newest = rows["batches"]["block_index"].max(axis=1)
    found: numpy.typing.NDArray[numpy.bool_] = (
        (rows["last_timestamp_ms"] < expired.before_ms) & (newest <= expired.up_to_index)
    )  # fmt: skip
    return found


async def _row_of(reading: Reading, place: int, key: Key) -> numpy.void:
    """Raises `FormatError`."""
    rows = await reading.rows(place, place + 1)
    row: numpy.void = rows[0]
    if (int(row["queue_id"]), int(row["producer_id"])) != key[1:]:
        raise FormatError(f"{path_of(reading.file.name)}: row {place} is not of the producer that its name says")
    return row


async def _in_pieces(rows: States) -> AsyncIterator[States]:
    for first in range(0, len(rows), STEP):
        yield rows[first : first + STEP]
        await asyncio.sleep(0)


# --- the bound --------------------------------------------------------------------------------------------

Values = numpy.typing.NDArray[numpy.int64]


def value_of(rows: States) -> Values:
    """What speaks for keeping a producer: that it came back, then when it was last seen. Some bits of its id tell those
    of the same time apart, or none of them could be left out."""
    times: Values = numpy.clip(rows["last_timestamp_ms"], 0, (1 << 45) - 1)
    came_back = (rows["count"] > 1).astype(numpy.int64)
    values: Values = (came_back << 61) + (times << 16) + (rows["producer_id"] & 0xFFFF)
    return values


class Limits:
    """Which of too many producers are kept: in each queue the same number at most, those that are worth most."""

    def __init__(self, queue_ids: numpy.typing.NDArray[numpy.uint64], values: Values, count_max: int) -> None:
        """Of all producers, sorted by queue."""
        self._queues, firsts, counts = numpy.unique(queue_ids, return_index=True, return_counts=True)
        share = fair_share(counts, count_max)
        self._least = numpy.full(len(self._queues), numpy.iinfo(numpy.int64).min)
        for place in numpy.flatnonzero(counts > share).tolist():
            of_queue = values[firsts[place] : firsts[place] + counts[place]]
            cut = counts[place] - share
            self._least[place] = numpy.partition(of_queue, cut)[cut] if share else numpy.iinfo(numpy.int64).max

    def keep(self, rows: States) -> numpy.typing.NDArray[numpy.bool_]:
        places = numpy.searchsorted(self._queues, rows["queue_id"])
        kept: numpy.typing.NDArray[numpy.bool_] = value_of(rows) >= self._least[places]
        return kept


def fair_share(counts: numpy.typing.NDArray[numpy.int64], total_max: int) -> int:
    """The largest number that each may have so that all have no more than `total_max` together."""
    low, high = 0, int(counts.max(initial=0))
    while low < high:
        middle = (low + high + 1) // 2
        if int(numpy.minimum(counts, middle).sum()) <= total_max:
            low = middle
        else:
            high = middle - 1
    return low
