"""The scrubber looks for damage before a reader meets it: it reads every sealed journal segment and every run once per
interval.

Each file has a time at which it is due, spread over the interval by its name, so that the work of a day is the same on
every day and a node that restarts often does not begin with the same files each time. It reports a damaged block to
`damage` (`JournalDamage.met`), and a damaged run to the queue store, which notes it for `run_repair`. The scrubber
itself changes no file. It reads no faster than publishing allows, nor than configured, one file at a time.

It skips the open segment, whose blocks are checked when it is sealed and due; index files of segments, which are made
again from their segment when they fail their checksum; and dead blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mainstem.kernel import crc32c
from mainstem.model import Sample
from mainstem.ports import Clock
from mainstem.storage.cluster.snapshot_sending import ByteRate
from mainstem.storage.config import StorageConfig
from mainstem.storage.errors import FormatError, SegmentGone, StorageError
from mainstem.storage.groups.write_group import WriteGroup
from mainstem.storage.journal.format import sequence_of
from mainstem.storage.journal.journal import Journal, SegmentInfo
from mainstem.storage.journal.stored_block import StoredPlace, read_block
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.reading.pacing import Lane, Pacing
from mainstem.storage.repair.damage import JournalDamage

NAMES_SPREAD = 1 << 32
"""A name's checksum is a number below this: its share of the interval."""


class Scrubber:
    """Scrubs both disks of one node, and counts its findings."""

    def __init__(
        self,
        journal: Journal,
        groups: Sequence[WriteGroup],
        damage: JournalDamage,
        store: QueueStore,
        pacing: Pacing,
        clock: Clock,
        config: StorageConfig,
    ) -> None:
        self._journal = journal
        self._groups = groups
        self._damage = damage
        self._store = store
        self._pacing = pacing
        self._clock = clock
        self._interval = config.scrub_interval_seconds
        self._rate = ByteRate(clock, config.scrub_bytes_per_second)
        self._salt = b"%d" % clock.now_ms()
        self._due: dict[str, float] = {}
        """File → when it is to be read next, by monotonic time; as many as there are segments and runs."""
        self.read_bytes = {"journal": 0, "runs": 0}
        self.read_files = {"journal": 0, "runs": 0}
        self.findings = {"journal": 0, "runs": 0}

    async def round(self) -> None:
        """Read the files that are due, the longest overdue first. An unreadable file is a finding, no error; raises
        `StorageFailed` and OSError of other parts only."""
        if not self._interval:
            return
        for name in self._schedule():
            segment = next((one for one in self._journal.segments() if one.sealed and one.name == name), None)
            if segment is not None:
                await self._read_segment(segment)
            elif name in self._runs():
                await self._read_run(name)
            self._due[name] = self._clock.monotonic() + self._interval

    def _schedule(self) -> list[str]:
        """The files that are due. New files get their time, and removed ones are forgotten."""
        now = self._clock.monotonic()
        names = {segment.name for segment in self._journal.segments() if segment.sealed}
        names.update(self._runs())
        self._due = {name: due for name, due in self._due.items() if name in names}
        for name in names - self._due.keys():
            share = crc32c(name.encode(), crc32c(self._salt)) / NAMES_SPREAD
            self._due[name] = now + share * self._interval
        due = [name for name, at in self._due.items() if at <= now]
        return sorted(due, key=lambda name: (self._due[name], name))

    def _runs(self) -> set[str]:
        return {file.name for file, _groups in self._store.runs.in_order()}

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
            if name in self._runs():  # otherwise dropped meanwhile
                self._store.damaged.note(name, error)
                self.findings["runs"] += 1
            return
        if found.extents is None:
            self._store.damaged.note(name, FormatError(f"{name}: the file is missing, or its index cannot be read"))
        if found.extents is None or found.bad_rows:
            self.findings["runs"] += 1
        self.read_files["runs"] += 1

    async def _pace_run(self, size: int) -> None:
        await self._pace(size)
        self.read_bytes["runs"] += size

    # --- statistics ---------------------------------------------------------------------------------------

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`."""
        for name, text, values in (
            ("bytes", "Bytes read to look for rot, by what they are of", self.read_bytes),
            ("files", "Segments and runs read to their end to look for rot", self.read_files),
            ("findings", "Damaged blocks, and damaged or missing runs, found that way", self.findings),
        ):
            for what, value in values.items():
                yield Sample(f"mainstem_scrub_{name}_total", "counter", text, value, (("of", what),))
        overdue = self._clock.monotonic() - min(self._due.values(), default=self._clock.monotonic())
        yield Sample(
            "mainstem_scrub_overdue_seconds", "gauge",
            "How long the file that waits longest to be read for rot has been due; 0: none is", max(0.0, overdue),
        )  # fmt: skip
