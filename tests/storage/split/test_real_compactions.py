"""Compactions of real files, without Spark: what is split, merged and compacted at random reads as a model of it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy
import pytest
from tests.fakes.splitting.latest_records import empty_markers, latest_records
from tests.simulation.find import at_length
from tests.storage.queue_store.runs import Batch, write
from tests.storage.queue_store.test_store import read_all
from tests.storage.split.test_real_merges import QUEUES, RealStore

from mainstem.model import Topic, TopicSettings
from mainstem.protocol.records import Compression, NewRecord, StoredBatch, build_batch, read_batch_header, read_records
from mainstem.rpc.messages.compact import CompactedFile, CompactionWork
from mainstem.rpc.messages.split import EarlierSplitter
from mainstem.storage.agreed_clock import AgreedClock
from mainstem.storage.compacting.compact_files import compact_file, scan_file
from mainstem.storage.compacting.compact_plan import QUEUE_ROW, QueueRows
from mainstem.storage.compacting.decided import decided
from mainstem.storage.compacting.ended_markers import TransactionColumns, scan_markers
from mainstem.storage.compacting.pass_places import KeyColumns, checked
from mainstem.storage.merging.merge_inputs import InputDamaged, InputFile
from mainstem.storage.queue_store.changes.compactions import PARTS_BYTES_MAX, PASSED_BYTES_MAX
from mainstem.storage.queue_store.changes.merges import LOOK_SECONDS_MAX
from mainstem.storage.split.compaction_log import NEVER_MS, WAIT_MS_MIN, LocalCompactionLog, rules_of_topics
from mainstem.storage.split.earlier_splitters import has_joined
from mainstem.storage.store_files.run_writer import RunWriter
from mainstem.storage.store_files.store_file import StoreFile, index_path_of, path_of

RETENTION_MS = 60_000


class Told(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class CompactStore(RealStore):
    """Has queues of records with few keys, and compacts as a splitter does, with the aggregation done here."""

    def __init__(self, root: Path, seed: int, lag_ms: int = 0, *, internal: bool = False) -> None:
        super().__init__(root, seed)
        self.records: dict[int, list[Told]] = {queue_id: [] for queue_id in range(QUEUES)}
        self.lag_ms = lag_ms
        self.internal = internal
        self.parts_bytes_max, self.passed_bytes_max = PARTS_BYTES_MAX, PASSED_BYTES_MAX
        self.compactions: LocalCompactionLog
        self.passes = 0
        self.joins = True
        """Whether it knows queue segments of one file."""

    async def open(self) -> None:
        await super().open()
        self.store.compactions.parts_bytes_max = self.parts_bytes_max
        self.store.compactions.passed_bytes_max = self.passed_bytes_max
        settings = TopicSettings(
            cleanup_policy=frozenset({"compact"}),
            min_compaction_lag_ms=self.lag_ms,
            delete_retention_ms=RETENTION_MS,
        )
        topic = Topic(
            name="orders", number=0, topic_id=uuid.UUID(int=1), partitions=QUEUES, settings=settings,
            internal=self.internal,
        )  # fmt: skip
        self.compactions = LocalCompactionLog(
            self.store, 2, self.bounds_in, lambda: [topic], lambda: True, AgreedClock(self.clock),
            returned=self.were_twice,
        )  # fmt: skip

    def were_twice(self) -> Sequence[int]:
        """The queues that were in a write group twice."""
        return ()

    async def split(self) -> None:
        batches = []
        for _ in range(self.choice.randint(5, 60)):
            queue_id = min(self.choice.randrange(QUEUES), self.choice.randrange(QUEUES))
            batches.append(self._batch(queue_id))
            self.logs[queue_id].append(batches[-1])
            if self.choice.random() < 0.1:
                self.clock.advance(1.0)
        name = f"{self.slices}.run"
        summary = await asyncio.to_thread(write, RunWriter(name, self.target(f"runs/{name}")), batches)
        run = StoreFile(retention_class="compact", **summary._asdict())
        for group in (0, 1):
            await self.store.splits.record(group, self.slices, self.slices + 1, [run], applied_index=self.slices)
        self.slices += 1

    def _batch(self, queue_id: int) -> Batch:
        told = self.records[queue_id]
        base = told[-1].offset + 1 if told else 0
        made = []
        for offset in range(base, base + self.choice.randint(1, 5)):
            key = None if self.choice.random() < 0.05 else b"key-%d" % self.choice.randrange(12)
            value = None if self.choice.random() < 0.3 else self.choice.randbytes(self.choice.choice([0, 5, 200, 3000]))
            made.append(Told(offset, self.clock.now_ms() - self.choice.randint(0, 3), key, value))
        told += made
        codec = self.choice.choice([Compression.NONE, Compression.NONE, Compression.GZIP, Compression.LZ4])
        batch = build_batch([NewRecord(one.timestamp, one.key, one.value) for one in made], compression=codec)
        data = base.to_bytes(8, "big") + batch.data[8:]
        header = batch.header
        return Batch(queue_id, base, made[-1].offset, header.max_timestamp, header.leader_epoch, data)

    async def compact(self, *, drain: bool, spoil: bool = False, covers: bool = True) -> bool:
        """One pass. False: there is none. It is refused if its outputs are spoiled, or leave batches of an internal
        topic out."""
        offered = await self.compactions.work(lambda: True, drain=drain, joins=self.joins)
        work = offered.work
        if not work.pass_id:
            assert not work.more
            return False
        assert offered.queues is not None
        queues = numpy.frombuffer(offered.queues.tobytes(), QUEUE_ROW)
        files = await asyncio.to_thread(self._compacted, work, queues, work.covered if covers else ())
        if spoil:
            files = [*files[:-1], msgspec.structs.replace(files[-1], outputs=())]
        outcome = await self.compactions.record(work.pass_id, files)
        if spoil or not covers:
            assert outcome.startswith("refused: "), outcome
            return True
        assert outcome == "compacted"
        assert await self.compactions.record(work.pass_id, files) == "compacted", "the answer may have been lost"
        self.passes += 1
        return True

    def _compacted(self, work: CompactionWork, queues: QueueRows, covered: Sequence[int]) -> list[CompactedFile]:
        key = self.choice.randbytes(16)
        queues, aborted, has_transactions = decided([self.input(entry.name) for entry in work.inputs], queues)
        found: list[KeyColumns] = []
        transactions: list[TransactionColumns] = []
        for number, entry in enumerate(work.inputs):
            found += scan_file(self.input(entry.name), number, queues, key, work.began_ms, aborted=aborted)
            if has_transactions:
                transactions += scan_markers(self.input(entry.name), number, queues, work.began_ms)
        staying = latest_records(found, len(work.inputs), empty_markers(transactions))
        made = []
        for number, entry in enumerate(work.inputs):
            checked(staying[number], number)
            files = compact_file(
                StoreFile.of(entry), self.input(entry.name), queues, staying[number], self.target, covered=covered
            )
            made.append(CompactedFile(entry.name, tuple(file.message() for file in files)))
        return made

    def input(self, name: str) -> InputFile:
        return InputFile(name, str(self.root / path_of(name)), str(self.root / index_path_of(name)))

    async def read(self, queue_id: int) -> list[Told]:
        told = []
        next_offset = 0
        for data in await read_all(self.store, queue_id, queue_id % 2, 0, 20_000):
            header = read_batch_header(data)
            assert not self.internal or header.base_offset == next_offset, "a machine would take it for lost"
            next_offset = header.next_offset
            for record in read_records(StoredBatch(data, read_batch_header(data))):
                told.append(Told(record.offset, record.timestamp, record.key, record.value))
        return told

    async def check(self) -> None:
        """The invariants at any time: nothing is made up, moved or repeated; of each key the latest record is there, or
        nothing of it if that is a tombstone; and records without a key stay."""
        for queue_id, all_records in self.records.items():
            found = await self.read(queue_id)
            offsets = [one.offset for one in found]
            assert offsets == sorted(set(offsets))
            assert set(found) <= set(all_records)
            assert {one for one in all_records if one.key is None} <= set(found)
            newest = {one.key: one for one in all_records if one.key is not None}
            for key, one in newest.items():
                of_key = [other for other in found if other.key == key]
                assert of_key[-1:] == [one] or (one.value is None and not of_key), f"{key!r} of queue {queue_id}"

    async def settle(self) -> None:
        while await self.merge(drain=True):
            pass
        for _ in range(20):
            if not await self.compact(drain=True):
                return
        raise AssertionError("compaction does not come to rest")


AT_LENGTH = [at_length(seed, seed > 8) for seed in (3, 4, 5, 6, 7, 9)]


@pytest.mark.parametrize(("seed", "internal"), [(0, False), (1, False), (2, False), (8, True), *AT_LENGTH])
def test_at_random_of_each_key_the_latest_record_stays(tmp_path: Path, seed: int, internal: bool) -> None:
    """Two of the stores look at a few queues at a time."""

    async def story(real: CompactStore) -> None:
        await real.open()
        for _ in range(10):
            for _ in range(real.choice.randint(1, 3)):
                await real.split()
            for _ in range(real.choice.randint(0, 3)):
                if not await real.merge(drain=real.choice.random() < 0.5):
                    break
            while real.choice.random() < 0.6:
                if not await real.compact(drain=real.choice.random() < 0.5, spoil=real.choice.random() < 0.2):
                    break
            await real.check()
            real.clock.advance(real.choice.choice([0, 1, RETENTION_MS / 2000, RETENTION_MS / 500]))
            if real.choice.random() < 0.3:
                await real.store.close()
                await real.open()
        await real.settle()
        await real.check()
        for queue_id, all_records in real.records.items():
            newest = {one.key: one for one in all_records if one.key is not None}
            expected = [one for one in all_records if one.key is None or newest[one.key] is one]
            found = await real.read(queue_id)
            assert [one for one in found if one.value is not None] == [one for one in expected if one.value is not None]
            assert set(found) <= set(expected)
        real.clock.advance(RETENTION_MS / 1000 + 1)
        await real.settle()
        real.clock.advance(RETENTION_MS / 1000 + 1)
        await real.settle()
        await real.check()
        for queue_id in real.records:
            found = await real.read(queue_id)
            last = real.logs[queue_id][-1].base_offset if real.logs[queue_id] else 0
            assert not [one for one in found if one.value is None and one.key is not None and one.offset < last]
        for name in real.store.manifest.files:
            examined = await real.store.mending.examine(name)
            assert examined.extents is not None
            assert examined.bad_rows == []
        assert real.passes
        await real.store.close()
        await real.files.close()

    real = CompactStore(tmp_path, seed, internal=internal)
    if seed in (1, 9):
        real.parts_bytes_max = 12_000
    asyncio.run(story(real))


async def compacted(real: CompactStore) -> tuple[int, int, list[list[Told]]]:
    """The most bytes that were remembered, the passes, and what is left of the queues."""
    await real.open()
    held = 0
    for _ in range(4):
        for _ in range(2):
            await real.split()
        while await real.merge(drain=True):
            pass
        for _ in range(2):  # a pass of each write group
            await real.compact(drain=True)
            held = max(held, real.store.compactions.held_bytes)
    await real.settle()
    held = max(held, real.store.compactions.held_bytes)
    await real.check()
    found = [await real.read(queue_id) for queue_id in real.records]
    await real.store.close()
    await real.files.close()
    return held, real.passes, found


@pytest.mark.parametrize("seed", [3, 7])
def test_queues_that_have_no_room_beside_each_other_are_compacted_one_after_the_other(
    tmp_path: Path, seed: int
) -> None:
    roomy, narrow = tmp_path / "roomy", tmp_path / "narrow"
    roomy.mkdir()
    narrow.mkdir()
    with_room, without = CompactStore(roomy, seed), CompactStore(narrow, seed)
    without.parts_bytes_max = 1
    _held, passes, found = asyncio.run(compacted(with_room))
    held_without, passes_without, found_without = asyncio.run(compacted(without))
    newest = [{one.key: one for one in told if one.key is not None} for told in with_room.records.values()]
    for one, other, latest in zip(found, found_without, newest, strict=True):
        for record in {*one} ^ {*other}:
            assert record.key is not None
            assert record.value is None, "which tombstones are gone goes by when the pass was"
            assert latest[record.key] == record
    assert passes_without > passes > 2
    assert held_without > 0


@pytest.mark.parametrize("parts_bytes_max", [PARTS_BYTES_MAX, 1], ids=["all queues", "one queue after the other"])
def test_a_look_that_takes_long_goes_on_at_the_next_question(tmp_path: Path, parts_bytes_max: int) -> None:
    async def story(real: CompactStore) -> None:
        await real.open()
        for _ in range(6):
            await real.split()
            while await real.merge(drain=True):
                pass
        open_files = real.store.stored.open_files
        index, reads = open_files.index, 0

        async def slow(known: object, *, keep: bool = True) -> object:
            nonlocal reads
            reads += 1
            real.clock.advance(LOOK_SECONDS_MAX)
            return await index(known, keep=keep)  # type: ignore[arg-type]

        open_files.index = slow  # type: ignore[method-assign,assignment]
        questions = 1
        while (offered := await real.compactions.work(lambda: True, drain=True)).work.more:
            assert not offered.work.pass_id
            questions += 1
            assert questions < 50
        assert offered.work.pass_id
        files = [file for _, _, file in real.store.manifest.spans(offered.work.group).described()]
        assert reads == len(files) > 3, "each once"
        assert questions in (reads, reads + 1), "one at each question"
        await real.store.close()
        await real.files.close()

    real = CompactStore(tmp_path, 5)
    real.parts_bytes_max = parts_bytes_max
    asyncio.run(story(real))


def test_the_queues_of_passes_are_forgotten_where_they_have_no_room_and_compacted_once_more(tmp_path: Path) -> None:
    async def story(real: CompactStore) -> None:
        await real.open()
        for _ in range(4):
            await real.split()
            while await real.merge(drain=True):
                pass
        for _ in range(12):
            assert await real.compact(drain=True), "of all files but one it is forgotten which queues were in a pass"
            assert real.store.compactions.held_bytes < 2 * 1_500, "the sums and the queues of one file each"
        await real.check()
        await real.store.close()
        await real.files.close()

    real = CompactStore(tmp_path, 3)
    real.parts_bytes_max = real.passed_bytes_max = 1
    asyncio.run(story(real))


def test_of_an_internal_topic_no_batch_is_left_out(tmp_path: Path) -> None:
    async def story(real: CompactStore) -> None:
        await real.open()
        for _ in range(3):
            await real.split()
        while await real.merge(drain=True):
            pass
        before = sum(file.batch_bytes for file in real.store.manifest.files.values())
        offered = await real.compactions.work(lambda: True, drain=True, covers=False)
        assert not offered.work.pass_id, "it is not given to one who does not know of that"
        files = set(real.store.manifest.files)
        assert await real.compact(drain=True, covers=False)
        assert set(real.store.manifest.files) == files, "what leaves batches out is refused"
        await real.settle()
        await real.check()
        assert sum(file.batch_bytes for file in real.store.manifest.files.values()) < before / 2
        await real.store.close()
        await real.files.close()

    asyncio.run(story(CompactStore(tmp_path, 1, internal=True)))


def test_segments_of_one_file_are_compacted_by_those_who_know_them(tmp_path: Path) -> None:
    async def story(real: CompactStore) -> None:
        await real.open()
        while not has_joined(real.store.manifest.files.values()):
            assert real.slices < 100
            await real.split()
            while await real.merge(drain=True, joined=True):
                pass

        async def compact_other_files() -> None:
            while await real.compact(drain=True):
                assert has_joined(real.store.manifest.files.values())

        real.joins = False
        with pytest.raises(EarlierSplitter, match=r"to compact \(write groups .*Upgrade it"):
            await compact_other_files()
        assert not real.store.merges.is_busy(), "nothing is held for it"
        offered = await real.compactions.work(lambda: True, drain=True)
        assert has_joined(map(StoreFile.of, offered.work.inputs))
        await real.store.close()
        await real.files.close()

    asyncio.run(story(CompactStore(tmp_path, 1)))


@pytest.mark.parametrize("parts_bytes_max", [PARTS_BYTES_MAX, 1], ids=["all queues", "one queue after the other"])
def test_a_tombstone_stays_until_its_time_is_over(tmp_path: Path, parts_bytes_max: int) -> None:
    async def story(real: CompactStore) -> None:
        await real.open()
        for _ in range(3):
            await real.split()
        for _ in range(2):
            await real.settle()
            for queue_id, all_records in real.records.items():
                newest = {one.key: one for one in all_records if one.key is not None}
                assert await real.read(queue_id) == [
                    one for one in all_records if one.key is None or newest[one.key] is one
                ]
            real.clock.advance(RETENTION_MS / 1000 - 1)
        passes = real.passes
        real.clock.advance(2)
        await real.settle()
        assert real.passes > passes, "nothing is dirty, and the time of tombstones is over"
        gone = 0
        for queue_id, all_records in real.records.items():
            newest = {one.key: one for one in all_records if one.key is not None}
            found = await real.read(queue_id)
            for one in newest.values():
                stays = one.value is not None or one.offset >= real.logs[queue_id][-1].base_offset
                assert (one in found) == stays
                gone += not stays
        assert gone > 5
        await real.store.close()
        await real.files.close()

    real = CompactStore(tmp_path, 9)
    real.parts_bytes_max = parts_bytes_max
    asyncio.run(story(real))


def test_what_is_younger_than_the_lag_stays(tmp_path: Path) -> None:
    async def story(real: CompactStore) -> None:
        await real.open()
        await real.split()
        while await real.merge(drain=True):
            pass
        assert not await real.compact(drain=True)
        real.clock.advance(3601)
        before = {queue_id: len(told) for queue_id, told in real.records.items()}
        await real.split()
        await real.split()
        await real.settle()
        await real.check()
        for queue_id, all_records in real.records.items():
            old, young = all_records[: before[queue_id]], all_records[before[queue_id] :]
            found = await real.read(queue_id)
            assert [one for one in found if one.offset >= before[queue_id]] == young
            newest = {one.key: one for one in old if one.key is not None}
            kept = [one for one in old if one.key is None or newest[one.key] is one]
            assert [one for one in found if one.offset < before[queue_id]] == kept
        assert real.passes
        await real.store.close()
        await real.files.close()

    asyncio.run(story(CompactStore(tmp_path, 3, lag_ms=3_600_000)))


def test_topics_say_how_long_little_dirt_waits_and_internal_ones_have_no_say() -> None:
    topics = {
        number: TopicSettings(cleanup_policy=frozenset({"compact"}), segment_ms=segment_ms)
        for number, segment_ms in enumerate((1, 3 * WAIT_MS_MIN, 1))
    }
    queue_ids = numpy.array([3 << 32, 2 << 32, 1 << 32, 5, (1 << 32) + 1], numpy.uint64)
    found = rules_of_topics(topics, {2})(queue_ids)
    assert found.compacted.tolist() == [False, True, True, True, True]
    assert found.wait_ms.tolist() == [NEVER_MS, NEVER_MS, 3 * WAIT_MS_MIN, WAIT_MS_MIN, 3 * WAIT_MS_MIN]


def test_nothing_is_given_while_a_file_is_damaged_and_damage_is_named(tmp_path: Path) -> None:
    async def story(real: CompactStore) -> None:
        await real.open()
        await real.split()
        while await real.merge(drain=True):
            pass
        name = next(iter(real.store.manifest.files))
        path = real.root / path_of(name)
        content = bytearray(path.read_bytes())
        content[100] ^= 1
        path.write_bytes(content)
        offered = await real.compactions.work(lambda: True, drain=True)
        assert offered.queues is not None
        number = [entry.name for entry in offered.work.inputs].index(name)
        with pytest.raises(InputDamaged, match="fails its CRC"):
            list(scan_file(real.input(name), number, offered.queues, bytes(16), 0))
        real.log.damaged(offered.work.pass_id, name, "its CRC")
        group = offered.work.group
        offered = await real.compactions.work(lambda: True, drain=True)
        assert offered.work.group != group
        await real.store.close()
        await real.files.close()

    asyncio.run(story(CompactStore(tmp_path, 5)))
