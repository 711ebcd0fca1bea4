"""The scrubber looks for damage before a reader meets it: it reads every sealed journal segment, every run, and the
manifest's copy once per interval.

It goes through the files in passes, each in the order of their names' checksums, so that the work of a day is the same
on every day, and a new file is read within an interval. A file is due when as large a part of the interval has gone by
since the pass began as of all checksums lies before its own. How far it has come is on disk (`scrub_record`): a node
that restarts often goes on where it was, and catches up on what fell due while it was down. It reports a damaged block
to `journal_damage` (`JournalDamage.met`), and a damaged run to the queue store, which notes it for `file_repair`; where
the manifest's copy is damaged, the next image takes its place (`manifest_copy`). The scrubber itself changes no file.
It reads no faster than publishing allows, nor than configured, one file at a time.

It skips the open segment, whose blocks are checked when it is sealed and due; index files of segments, which are made
again from their segment when they fail their checksum; and dead blocks.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from mainstem.kernel import crc32c
from mainstem.model import Sample
from mainstem.ports import Clock, Files
from mainstem.storage.cluster.snapshot_sending import ByteRate
from mainstem.storage.config import StorageConfig
from mainstem.storage.errors import FormatError, SegmentGone, StorageError
from mainstem.storage.journal.encoding.format import sequence_of
from mainstem.storage.journal.journal import Journal, SegmentInfo
from mainstem.storage.journal.stored_block import StoredPlace, read_block
from mainstem.storage.queue_store.manifest.manifest_rows import COPY_DIRECTORY
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.reading.pacing import Lane, Pacing
from mainstem.storage.repair.journal_damage import JournalDamage
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.upkeep import scrub_record
from mainstem.storage.upkeep.scrub_record import FULL, ScrubRecord
from mainstem.storage.write_groups.write_group import WriteGroup

log = logging.getLogger(__name__)

SAVE_SECONDS = 60.0
"""The least time between two writes of how far it has come, within a pass: what a crash makes it read again."""

NAMES_PER_TURN = 1_000
"""Files whose places are looked at in one turn of the event loop: some milliseconds."""


class Scrubber:
    """Scrubs both disks of one node, and counts its findings."""

    def __init__(
        self,
        files: Files,
        journal: Journal,
        groups: Sequence[WriteGroup],
        damage: JournalDamage,
        store: QueueStore,
        pacing: Pacing,
        clock: Clock,
        config: StorageConfig,
    ) -> None:
        self._files = files
        """Disk 1, which has the record."""
        self._journal = journal
        self._groups = groups
        self._damage = damage
        self._store = store
        self._pacing = pacing
        self._clock = clock
        self._interval = config.scrub_interval_seconds
        self._rate = ByteRate(clock, config.scrub_bytes_per_second)
        self._record: ScrubRecord | None = None
        """None: no round has begun yet."""
        self._saved = -math.inf
        """Monotonic time of the last write of the record."""
        self.read_bytes = {"journal": 0, "runs": 0, "copy": 0}
        self.read_files = {"journal": 0, "runs": 0, "copy": 0}
        self.findings = {"journal": 0, "runs": 0, "copy": 0}

    async def round(self) -> None:
        """Read the files that are due, in the order of the pass. An unreadable file is a finding, no error; raises
        `StorageFailed` and OSError of other parts only."""
        if not self._interval:
            return
        record = self._record or await scrub_record.load(self._files)
        now_ms = self._clock.now_ms()
        if record is None:
            record = ScrubRecord(now_ms, now_ms)
            await self._save(record)
        if record.began_ms > now_ms:  # the clock was set back
            record = record._replace(began_ms=now_ms - int(record.position / FULL * self._interval * 1000))
        self._record = record
        target = self._target(record)
        due = await self._due(record.position, target)
        for number, (_at, name) in enumerate(due, 1):
            segment = next((one for one in self._journal.segments() if one.sealed and one.name == name), None)
            if segment is not None:
                await self._read_segment(segment)
            elif name in self._store_files:
                await self._read_run(name)
            elif name == COPY_DIRECTORY:
                await self._read_copy()
            record = record._replace(position=due[number][0] if number < len(due) else target)
            self._record = record
            if self._clock.monotonic() - self._saved >= SAVE_SECONDS:
                await self._save(record)
        self._record = record._replace(position=target)
        if target == FULL:
            await self._pass_ended(record)

    async def _pass_ended(self, record: ScrubRecord) -> None:
        now_ms = self._clock.now_ms()
        self._record = ScrubRecord(record.salt, now_ms, 0, record.began_ms, now_ms)
        await self._save(self._record)

    async def _save(self, record: ScrubRecord) -> None:
        self._saved = self._clock.monotonic()
        try:
            await scrub_record.save(self._files, record)
        except OSError as error:  # a start then goes on from an older record
            log.warning("%s cannot be written: %s", scrub_record.NAME, error)

    def _target(self, record: ScrubRecord) -> int:
        """The position up to which files are due."""
        gone = (self._clock.now_ms() - record.began_ms) / 1000 / self._interval
        return max(record.position, min(FULL, int(gone * FULL)))

    def _place(self, name: str) -> int:
        """The place of a file in the order of a pass."""
        assert self._record is not None
        return crc32c(name.encode(), crc32c(b"%d" % self._record.salt))

    async def _due(self, first: int, end: int) -> list[tuple[int, str]]:
        """The files with places from `first` on, before `end`, in the order of their places."""
        segments = [segment.name for segment in self._journal.segments() if segment.sealed]
        due: list[tuple[int, str]] = []
        for number, name in enumerate(chain(segments, self._store_files, [COPY_DIRECTORY]), 1):
            if first <= (at := self._place(name)) < end:
                due.append((at, name))
            if number % NAMES_PER_TURN == 0:
                await asyncio.sleep(0)
        return sorted(due)

    @property
    def _store_files(self) -> Mapping[str, StoreFile]:
        return self._store.manifest.files

    async def _pace(self, size: int) -> None:
        await self._pacing.take(Lane.SCRUB, size)
        await self._rate.take(size)

    # --- disk 1 -------------------------------------------------------------------------------------------

    async def _read_segment(self, segment: SegmentInfo) -> None:
        for place in sorted(self._places(segment), key=lambda place: place.position):
            await self._pace(place.length)
            if self._groups[place.group].blocks.position_of(place.index) != place.position:
                continue  # pruned, or written again elsewhere
            if self._damage.waits_for(place.group, place.index):
                continue
            self.read_bytes["journal"] += place.length
            try:
                await read_block(self._journal, place)
            except SegmentGone:
                return
            except (StorageError, OSError):  # the repair examines it once more, and reports it
                self.findings["journal"] += 1
                await self._damage.met(place.position)
        self.read_files["journal"] += 1

    def _places(self, segment: SegmentInfo) -> Iterator[StoredPlace]:
        """The blocks of all logs that lie in a segment."""
        for group in self._groups:
            blocks = group.blocks
            for index in blocks.indexes_between(segment.first, segment.end):
                position = blocks.position_of(index)
                assert sequence_of(position) == segment.sequence, (group.group, index, position)
                yield StoredPlace(group.group, blocks.term(index), index, position, blocks.length_of(index))

    # --- disk 2 -------------------------------------------------------------------------------------------

    async def _read_run(self, name: str) -> None:
        if name in self._store.damaged:
            return  # being mended
        try:
            found = await self._store.mending.examine(name, self._pace_run)
        except (StorageError, OSError) as error:
            if name in self._store_files:  # otherwise dropped meanwhile
                self._store.damaged.note(name, error)
                self.findings["runs"] += 1
            return
        if found.extents is None:
            self._store.damaged.note(name, FormatError(f"{name}: the file is missing, or its index cannot be read"))
        if found.extents is None or found.bad_rows:
            self.findings["runs"] += 1
        self.read_files["runs"] += 1

    async def _read_copy(self) -> None:
        """As one file: it is small beside all others."""
        try:
            found = await self._store.copy.look_for_rot(self._pace_copy)
        except OSError as error:
            log.error("the manifest's copy on disk 2 cannot be read: %s", error)
            self.findings["copy"] += 1
            return
        for rot in found:
            log.error("the manifest's copy on disk 2 is damaged, and is written anew: %s", rot)
        self.findings["copy"] += len(found)
        self.read_files["copy"] += 1

    async def _pace_copy(self, size: int) -> None:
        await self._pace(size)
        self.read_bytes["copy"] += size

    async def _pace_run(self, size: int) -> None:
        await self._pace(size)
        self.read_bytes["runs"] += size

    # --- statistics ---------------------------------------------------------------------------------------

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`."""
        for name, text, values in (
            ("bytes", "Bytes read to look for rot, by what they are of", self.read_bytes),
            ("files", "Segments, runs and copies of the manifest read to their end to look for rot", self.read_files),
            (
                "findings",
                "Damaged blocks, damaged or missing runs, and files of the manifest's copy, found that way",
                self.findings,
            ),
        ):
            for what, value in values.items():
                yield Sample(f"mainstem_scrub_{name}_total", "counter", text, value, (("of", what),))
        record = self._record or ScrubRecord(0, self._clock.now_ms())
        part = record.position / FULL
        behind = (self._clock.now_ms() - record.began_ms) / 1000 - part * self._interval
        gauges: tuple[tuple[str, str, float], ...] = (
            ("overdue_seconds", "How long what is to be read next for rot has been due", max(0.0, behind)),
            ("position", "How much of the present pass over all files is done, from 0 to 1", part),
            (
                "last_pass_seconds", "When the last pass over all files ended, in seconds since 1970; 0: none has",
                record.last_ended_ms / 1000,
            ),
        )  # fmt: skip
        yield from (Sample(f"mainstem_scrub_{name}", "gauge", text, value) for name, text, value in gauges)
