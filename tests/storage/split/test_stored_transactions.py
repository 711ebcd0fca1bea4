"""Transactions in files: what a reader of committed messages is told stays right while runs are split, merged and
compacted at random, against a model of the log and a client that does as Kafka's do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy
import pytest
from tests.simulation.find import at_length
from tests.storage.queue_store.runs import Batch, write
from tests.storage.queue_store.test_store import read_all
from tests.storage.split import test_real_compactions
from tests.storage.split.test_real_compactions import RETENTION_MS, CompactStore, Told
from tests.storage.split.test_real_merges import QUEUES

from mainstem.kernel.batch_header import CONTROL_BIT, TRANSACTIONAL_BIT
from mainstem.model import AbortedRange
from mainstem.protocol.records import (
    Compression,
    ControlType,
    NewBatch,
    NewRecord,
    StoredBatch,
    build_batch,
    build_control_batch,
    read_batch_header,
    read_control,
    read_records,
)
from mainstem.storage.compacting import compact_files, ended_markers
from mainstem.storage.compacting.pass_places import GOES_BIT
from mainstem.storage.extents.aborted import AbortedRows, no_rows
from mainstem.storage.extents.extent_format import ABORTED_VERSION
from mainstem.storage.journal.encoding.format import DIRECTORY_ROW
from mainstem.storage.journal.encoding.transaction_rows import marker_row, section_rows
from mainstem.storage.merging import merge_files
from mainstem.storage.queue_store.reading.file_search import FileSearch
from mainstem.storage.queue_store.reading.file_transactions import FileTransactions
from mainstem.storage.store_files.run_writer import RunWriter
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.store_files.transaction_scan import TransactionScan

PRODUCERS = range(50, 54)


class Ended(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    committed: bool


class Transactions:
    """One queue, as the log knows it."""

    def __init__(self) -> None:
        self.end = 0
        self.open: dict[int, int] = {}
        """Producer → first offset."""
        self.ended: list[Ended] = []
        self.owner: dict[int, int | None] = {}
        """Offset → the producer whose transaction it is part of."""

    @property
    def last_stable(self) -> int:
        return min(self.open.values(), default=self.end)

    def is_committed(self, offset: int) -> bool:
        producer_id = self.owner[offset]
        return producer_id is None or any(
            one.committed
            for one in self.ended
            if one.producer_id == producer_id and one.first_offset <= offset <= one.last_offset
        )


class TransactionalStore(CompactStore):
    def __init__(self, root: Path, seed: int, *, compacts: bool) -> None:
        super().__init__(root, seed)
        self.compacts = compacts
        self.transactions = {queue_id: Transactions() for queue_id in range(QUEUES)}
        self.emptied_ms: dict[tuple[int, int], int] = {}
        """When the batches of the transaction that a marker ends were seen to be gone, by queue and offset."""
        self.markers_gone = 0
        self.told_at_once = 0
        """Reads of transactions of which it was known what was aborted among them."""

    async def split(self) -> None:
        made = [self._step(self.choice.randrange(QUEUES)) for _ in range(self.choice.randint(5, 50))]
        made.sort(key=lambda one: one[0][:2])
        batches = [batch for batch, _row in made]
        directory = numpy.array([row for _batch, row in made], DIRECTORY_ROW)
        for batch in batches:
            self.logs[batch.queue_id].append(batch)
        self.clock.advance(self.choice.choice([0.0, 1.0]))
        name = f"{self.slices}.run"
        writer = RunWriter(name, self.target(f"runs/{name}"), ABORTED_VERSION)
        summary = await asyncio.to_thread(write, writer, batches, 64, section_rows(directory))
        run = StoreFile(retention_class="compact" if self.compacts else "default", **summary._asdict())
        for group in (0, 1):
            await self.store.splits.record(group, self.slices, self.slices + 1, [run], applied_index=self.slices)
        self.slices += 1

    def _step(self, queue_id: int) -> tuple[Batch, Any]:
        """A batch of a producer within or outside of a transaction, or a marker, and its row in a block's directory."""
        known = self.transactions[queue_id]
        producer_id = self.choice.choice([None, *PRODUCERS])
        if producer_id in known.open and self.choice.random() < 0.5:
            assert producer_id is not None
            return self._marker(queue_id, producer_id)
        return self._data(queue_id, producer_id)

    def _data(self, queue_id: int, producer_id: int | None) -> tuple[Batch, Any]:
        known = self.transactions[queue_id]
        base = known.end
        told = []
        for offset in range(base, base + self.choice.randint(1, 3)):
            key = None if self.choice.random() < 0.1 else b"key-%d" % self.choice.randrange(8)
            value = None if self.choice.random() < 0.3 else self.choice.randbytes(self.choice.choice([0, 200, 3000]))
            told.append(Told(offset, self.clock.now_ms(), key, value))
            known.owner[offset] = producer_id
        self.records[queue_id] += told
        if producer_id is not None:
            known.open.setdefault(producer_id, base)
        batch = build_batch(
            [NewRecord(one.timestamp, one.key, one.value) for one in told],
            compression=self.choice.choice([Compression.NONE, Compression.NONE, Compression.GZIP]),
            producer_id=-1 if producer_id is None else producer_id,
            producer_epoch=-1 if producer_id is None else 0,
            base_sequence=-1 if producer_id is None else 0,
            transactional=producer_id is not None,
        )
        known.end = base + len(told)
        return self._described(queue_id, base, batch), self._row(queue_id, base, batch)

    def _marker(self, queue_id: int, producer_id: int) -> tuple[Batch, Any]:
        known = self.transactions[queue_id]
        offset, first, committed = known.end, known.open.pop(producer_id), self.choice.random() < 0.5
        known.ended.append(Ended(producer_id, first, offset, committed))
        known.end = offset + 1
        batch = build_control_batch(
            ControlType.COMMIT if committed else ControlType.ABORT,
            timestamp=self.clock.now_ms(), producer_id=producer_id, producer_epoch=0, coordinator_epoch=3,
        )  # fmt: skip
        row = self._row(queue_id, offset, batch)
        said = marker_row(offset, first, known.last_stable, committed=committed, coordinator_epoch=3)
        row["attributes"], row["base_sequence"], row["record_count"] = said
        return self._described(queue_id, offset, batch), row

    def _described(self, queue_id: int, base: int, batch: NewBatch) -> Batch:
        header, data = batch.header, base.to_bytes(8, "big") + bytes(batch.data)[8:]
        last = base + header.last_offset_delta
        return Batch(queue_id, base, last, header.max_timestamp, header.leader_epoch, data)

    def _row(self, queue_id: int, base: int, batch: NewBatch) -> Any:
        row = numpy.zeros(1, DIRECTORY_ROW)[0]
        row["queue_id"], row["base_offset"], row["producer_id"] = queue_id, base, batch.header.producer_id
        row["attributes"], row["record_count"] = batch.header.attributes, batch.header.record_count
        return row

    async def compact(self, *, drain: bool, spoil: bool = False, covers: bool = True) -> bool:
        began_ms = self.clock.now_ms()
        for place in await self.empty_markers():
            self.emptied_ms.setdefault(place, began_ms)
        found = await super().compact(drain=drain, spoil=spoil, covers=covers)
        await self.check_markers()
        return found

    async def stored(self, queue_id: int) -> list[tuple[int, int]]:
        """First and last offset of each batch of a queue."""
        batches = await read_all(self.store, queue_id, queue_id % 2, 0, 20_000)
        headers = [read_batch_header(data) for data in batches]
        return [(header.base_offset, header.last_offset) for header in headers]

    async def empty_markers(self) -> list[tuple[int, int]]:
        """The markers of transactions of which no batch is left."""
        found = []
        for queue_id, known in self.transactions.items():
            batches = await self.stored(queue_id)
            for one in known.ended:
                left = [
                    first
                    for first, _last in batches
                    if one.first_offset <= first < one.last_offset and known.owner.get(first) == one.producer_id
                ]
                if not left:
                    found.append((queue_id, one.last_offset))
        return found

    async def check_markers(self) -> None:
        """A marker goes when its transaction has left nothing, and its time is over."""
        gone = 0
        for queue_id, known in self.transactions.items():
            there = {first for first, _last in await self.stored(queue_id)}
            upto = max(there, default=-1)
            for marker in (one.last_offset for one in known.ended):
                if marker > upto or marker in there:
                    continue
                gone += 1
                emptied_ms = self.emptied_ms.get((queue_id, marker))
                assert emptied_ms is not None, f"E: marker {marker} of queue {queue_id} is gone before its batches"
                too_early = self.clock.now_ms() < emptied_ms + RETENTION_MS
                assert not too_early, f"E: marker {marker} of queue {queue_id} is gone before its time"
        self.markers_gone = gone

    async def visible(self, queue_id: int, start: int, end: int, bytes_max: int) -> list[Told]:
        """The messages that a reader of committed ones gets of these offsets, answer by answer, each filtered as
        Kafka's clients filter it: by the aborted transactions that are told with it."""
        found: list[Told] = []
        offset = start
        while offset < end:
            slice_ = await self.store.history.read(queue_id, queue_id % 2, offset, bytes_max)
            if slice_ is None:
                break
            upto = min(slice_.next_offset, end)
            aborted = await self.aborted(queue_id, offset, upto)
            found += filtered([bytes(batch) for batch in slice_.batches], aborted, offset, upto)
            offset = slice_.next_offset
        return found

    async def aborted(self, queue_id: int, offset: int, upto: int) -> list[AbortedRange]:
        """As a reader is told: at once, if the last search for the queue has found it out."""
        transactions = self.store.transactions
        known = transactions.told_at_once(queue_id, queue_id % 2, offset, upto)
        told = await transactions.ended(queue_id, queue_id % 2, offset, upto)
        if not await transactions.has_some(queue_id, queue_id % 2, offset, upto):
            assert await transactions.told(queue_id, queue_id % 2, offset, upto) is None
            return [] if known is None else known.aborted
        assert await transactions.told(queue_id, queue_id % 2, offset, upto) == told
        if known is not None:
            self.told_at_once += 1
            assert known.aborted == told.aborted, f"E: queue {queue_id} from {offset} to {upto}"
            assert told.are_all or self.compacts
        return told.aborted

    async def check(self) -> None:
        for queue_id, known in self.transactions.items():
            end = known.last_stable
            start = self.choice.choice([0, self.choice.randrange(end + 1)])
            found = await self.visible(queue_id, start, end, self.choice.choice([1, 500, 20_000]))
            committed = [
                one for one in self.records[queue_id] if start <= one.offset < end and known.is_committed(one.offset)
            ]
            if not self.compacts:
                assert found == committed, f"E: queue {queue_id} from {start} to {end}"
                continue
            assert set(found) <= set(committed), f"E: aborted or open messages of queue {queue_id} are read"
            assert [one.offset for one in found] == sorted({one.offset for one in found})
            keyless = {one for one in committed if one.key is None}
            assert keyless <= set(found), f"E: committed messages without keys of queue {queue_id}"
            for key, newest in {one.key: one for one in committed if one.key is not None}.items():
                of_key = [one for one in found if one.key == key]
                gone = newest.value is None and not of_key
                assert of_key[-1:] == [newest] or gone, f"E: the latest committed {key!r} of queue {queue_id}"


def filtered(batches: list[bytes], aborted: list[AbortedRange], start: int, end: int) -> list[Told]:
    """As a client reads an answer: a producer's batches are left out from its aborted transaction's first offset on, up
    to an abort marker of that producer."""
    waiting = sorted(aborted, key=lambda one: one.first_offset)
    dead: set[int] = set()
    found = []
    for data in batches:
        batch = StoredBatch(data, read_batch_header(data))
        header = batch.header
        while waiting and waiting[0].first_offset <= header.last_offset:
            dead.add(waiting.pop(0).producer_id)
        if header.attributes & CONTROL_BIT:
            (record,) = read_records(batch)
            if read_control(record).type is ControlType.ABORT:
                dead.discard(header.producer_id)
            continue
        if header.attributes & TRANSACTIONAL_BIT and header.producer_id in dead:
            continue
        found += [
            Told(record.offset, record.timestamp, record.key, record.value)
            for record in read_records(batch)
            if start <= record.offset < end
        ]
    return found


async def story(real: TransactionalStore, rounds: int = 10) -> None:
    await real.open()
    try:
        for _ in range(rounds):
            for _ in range(real.choice.randint(1, 3)):
                await real.split()
            for _ in range(real.choice.randint(0, 3)):
                if not await real.merge(drain=real.choice.random() < 0.5):
                    break
            while real.compacts and real.choice.random() < 0.6:
                if not await real.compact(drain=real.choice.random() < 0.5):
                    break
            await real.check()
            if real.compacts:
                real.clock.advance(real.choice.choice([0, RETENTION_MS / 2000, RETENTION_MS / 500]))
            if real.choice.random() < 0.3:
                await real.store.close()
                await real.open()
        if real.compacts:
            for _ in range(3):  # gone, told a time, and over
                await real.split()
                await real.settle()
                real.clock.advance(RETENTION_MS / 1000 + 1)
            await real.split()
            await real.settle()
            assert real.passes
            assert real.markers_gone, "no marker ever goes"
        await real.check()
        for name in real.store.manifest.files:
            examined = await real.store.mending.examine(name)
            assert examined.extents is not None
            assert examined.bad_rows == []
    finally:
        await real.store.close()
        await real.files.close()


@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("seed", [0, 1, *(at_length(seed) for seed in range(2, 9))])
def test_committed_readers_see_committed_messages_alone(tmp_path: Path, seed: int, compacts: bool) -> None:
    real = TransactionalStore(tmp_path, seed, compacts=compacts)
    asyncio.run(story(real))
    assert real.told_at_once


class OneQueue(TransactionalStore):
    """All batches are of queue 0."""

    def _step(self, queue_id: int) -> tuple[Batch, Any]:
        return super()._step(0)


RUNS = 12


def test_a_reader_of_run_after_run_is_told_from_memory(tmp_path: Path) -> None:
    """The search at the end of one run remembers all of the next, and of those behind it, once
    their indexes are in memory. So there are fewer searches than runs, of readers that stop several times in each."""
    real = OneQueue(tmp_path, 1, compacts=False)

    async def searches() -> tuple[int, int]:
        """Of a reader that goes on until files do not know what is open; what it is told at once is what a search would
        say. Returns how often it is told anything, and how often after a search."""
        transactions, count = real.store.transactions, 0
        for number in range(real.transactions[0].end):
            first = 2 * number
            at_once = transactions.told_at_once(0, 0, first, first + 2)
            searched = await FileTransactions(real.store.stored).ended(0, 0, first, first + 2)
            if not searched.are_all:
                return number, count
            if at_once is None:
                count += 1
                assert await transactions.told(0, 0, first, first + 2) == searched
            else:
                assert at_once == searched
        raise AssertionError("the last transactions of the log are open, and files cannot know")

    async def story() -> None:
        await real.open()
        try:
            for _ in range(RUNS):
                await real.split()
            reads, cold = await searches()
            assert reads > 10 * RUNS
            assert cold <= RUNS, "the reader searches more than once for each run"
            assert await searches() == (reads, 2), "two searches find as much as is remembered of a queue"
        finally:
            await real.store.close()
            await real.files.close()

    asyncio.run(story())


def test_files_beside_each_other_are_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that fills several merged files of one span; planted: a search remembers what the next span says, though
    the queue goes on in another file of the same one."""

    def play(name: str) -> None:
        for seed in range(4):
            root = tmp_path / f"{name}-{seed}"
            root.mkdir()
            asyncio.run(story(OneQueue(root, seed, compacts=False)))

    play("sound")
    monkeypatch.setattr(FileSearch, "_others_with", lambda *_args: False)
    with pytest.raises(AssertionError, match="E: queue"):
        play("planted")


def _dropped_at_a_merge() -> tuple[ModuleType, str, Any]:
    """A merge leaves the index of aborted transactions out."""

    def none(*_arguments: Any) -> AbortedRows:
        return no_rows()

    return merge_files, "aborted_of", none


def _dropped_at_a_compaction() -> tuple[ModuleType, str, Any]:
    def none(*_arguments: Any) -> AbortedRows:
        return no_rows()

    return compact_files, "read_aborted", none


def _counted_although_aborted() -> tuple[ModuleType, str, Any]:
    """A record of an aborted transaction is taken for the latest of its key."""

    def none(_aborted: Any, _content: Any, batches: Any, _queue_ids: Any) -> Any:
        return numpy.zeros(len(batches), numpy.bool_)

    return compact_files, "aborted_batches_of", none


def _kept_without_its_marker() -> tuple[type, str, Any]:
    """A marker goes, and its row in the index of aborted transactions stays."""

    def all_rows(_markers: Any, aborted: AbortedRows) -> AbortedRows:
        return aborted

    return ended_markers.EmptyMarkers, "_without_those_that_go", all_rows


def _alone_in_its_file() -> tuple[ModuleType, str, Any]:
    """A marker is taken for empty although batches of its transaction are left."""
    scan = ended_markers.scan_markers

    def markers_alone(*arguments: Any) -> Any:
        for columns in scan(*arguments):
            chosen = columns.place & GOES_BIT != 0
            yield ended_markers.TransactionColumns(*(column[chosen] for column in columns))

    return test_real_compactions, "scan_markers", markers_alone


def _gone_at_once() -> tuple[ModuleType, str, Any]:
    """A marker goes in the pass that finds it empty."""
    scan = ended_markers.scan_markers

    def over(*arguments: Any) -> Any:
        for columns in scan(*arguments):
            places = columns.place | numpy.where(columns.place & GOES_BIT != 0, ended_markers.OVER_BIT, 0)
            yield columns._replace(place=places)

    return test_real_compactions, "scan_markers", over


def _known_of_other_files() -> tuple[type, str, Any]:
    """Findings of a search count on after the files have changed."""
    known = FileTransactions.told_at_once

    def told_at_once(self: FileTransactions, queue_id: int, group: int, *offsets: int) -> Any:
        before = self._known.get((group, queue_id))
        if before is not None:
            self._known.put((group, queue_id), before._replace(files=self._manifest.spans(group), end=1 << 60))
        return known(self, queue_id, group, *offsets)

    return FileTransactions, "told_at_once", told_at_once


def _known_of_the_last_file_alone() -> tuple[type, str, Any]:
    """A search that went through several files remembers what the last one says, as if that were all."""
    know = FileTransactions._know  # noqa: SLF001

    def last_alone(self: FileTransactions, look: Any, place: Any, since: int, passed: Any, rows: Any) -> None:
        know(self, look, place, since, [], rows)

    return FileTransactions, "_know", last_alone


PLANTS = {
    _known_of_other_files: "E: queue",
    _known_of_the_last_file_alone: "E: queue",
    _dropped_at_a_merge: "E: ",
    _dropped_at_a_compaction: "E: ",
    _counted_although_aborted: "E: ",
    _kept_without_its_marker: "E: (the latest )?committed",
    _alone_in_its_file: "is gone before its batches",
    _gone_at_once: "is gone before its time",
}


@pytest.mark.parametrize("planted", PLANTS)
def test_planted_bugs_are_found(tmp_path: Path, planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*planted())
    compacts = planted is not _dropped_at_a_merge

    def play() -> None:
        for seed in range(4):
            root = tmp_path / str(seed)
            root.mkdir()
            asyncio.run(story(TransactionalStore(root, seed, compacts=compacts)))

    with pytest.raises(AssertionError, match=PLANTS[planted]):
        play()


def test_a_scan_of_batches_finds_what_the_log_says(tmp_path: Path) -> None:
    """As exports and remade indexes find it, without the log."""

    async def told(real: TransactionalStore) -> None:
        await real.open()
        for _ in range(6):
            await real.split()
        for queue_id, known in real.transactions.items():
            scan = TransactionScan(queue_id, from_first=True, where="here")
            for data in await read_all(real.store, queue_id, queue_id % 2, 0, 5_000):
                header = read_batch_header(data)
                fields = (0, len(data), header.base_offset, header.last_offset, 0, header.record_count, 0)
                scan.add(data, numpy.array([fields], numpy.int64))
            rows = [row[1:4] for row in scan.rows().tolist() if row[1] >= 0]
            assert rows == [one[:3] for one in known.ended if not one.committed]
            assert scan.open_first_offset() == min(known.open.values(), default=None)
        await real.store.close()
        await real.files.close()

    asyncio.run(told(TransactionalStore(tmp_path, 5, compacts=False)))
