"""Whole passes over real files, merged before and between: what goes in a pass, and when, against a model of the log.

Queues of compacted topics and of others share files. No node and no Spark is in this: the aggregation is done here.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.splitting.latest_records import latest_records
from tests.storage.compacting.histories import NOW
from tests.storage.queue_store.merges import MergeStore, PlainTarget
from tests.storage.queue_store.runs import Batch

from mainstem.kernel.batch_header import DELETE_HORIZON_BIT
from mainstem.protocol.records import (
    Compression,
    NewBatch,
    NewRecord,
    Record,
    build_batch,
    read_records,
    stamp_log_append_time,
    stored_batches,
)
from mainstem.storage.compacting.compact_check import PassSums, compare
from mainstem.storage.compacting.compact_files import compact_file, scan_file
from mainstem.storage.compacting.compact_plan import CompactFile, PassPlan, Rules, parts_of, plan
from mainstem.storage.compacting.pass_places import KeyColumns, Staying, checked
from mainstem.storage.extents.extent_format import EXTENT_ROW
from mainstem.storage.extents.extent_index import ExtentIndex, QueueIds
from mainstem.storage.merging.merge_inputs import index_pieces
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.merging.merge_measure import TopicFacts
from mainstem.storage.store_files.segment_writer import OFFSETS_MAX
from mainstem.storage.store_files.store_file import JOINED_SUFFIX, NEVER_COMPACTED, NO_HORIZON, StoreFile

COMPACTED, OTHER = 0, 1
"""Topics. The queues of a topic are told apart by their partition, from the first bit on."""
QUEUES = [COMPACTED << 32, COMPACTED << 32 | 1, COMPACTED << 32 | 2, OTHER << 32, OTHER << 32 | 1]

KEYS = [b"", b"a", b"b", b"c", b"d", b"a longer key than the others"]

LAG_MS = 5_000
RETENTION_MS = 20_000
SMALL = MergeLines(packed_bytes=600, level_one_bytes=4_000, wait_bytes_max=8_000, task_bytes=3_000)


class Stored(NamedTuple):
    record: Record
    marked: bool
    """Its batch has a delete horizon."""
    first_offset: int
    """Of its batch."""

    @property
    def tombstone(self) -> bool:
        return self.record.key is not None and self.record.value is None


class World:
    def __init__(self, root: Path, lag_ms: int) -> None:
        self.store = MergeStore(root)
        self.store.facts = {
            COMPACTED: TopicFacts("orders", "compact", 700),
            OTHER: TopicFacts("clicks", "forever", 1 << 30),
        }
        self.root = root
        self.lag_ms = lag_ms
        self.segment_bytes_max = OFFSETS_MAX
        self.joins: Callable[[], bool] = lambda: False
        """Whether the next work writes queue segments as one file each."""
        self.now = NOW
        self.runs = 0
        self.pending: list[Batch] = []
        self.spans: list[list[StoreFile]] = []
        self.log: dict[int, list[Record]] = {queue: [] for queue in QUEUES}
        """The records produced."""
        self.timestamps: dict[tuple[int, int], int] = {}
        """The largest timestamp of the batch that each record was produced in."""
        self.seen: dict[tuple[int, int], int] = {}
        """When a pass first had a tombstone."""

    # --- steps ----------------------------------------------------------------------------------------------

    def produce(self, choice: random.Random) -> None:
        """A batch of some queue."""
        queue = choice.choice(QUEUES)
        log = self.log[queue]
        records = [self._record(choice) for _ in range(choice.randint(1, 6))]
        data = bytearray(build_batch(records, compression=choice.choice(list(Compression))).data)
        if choice.random() < 0.2:
            stamp_log_append_time(data, self.now)
        base = (log[-1].offset + 1 if log else 0) + choice.choice([0, 0, 2])
        batch = NewBatch.parse(data).stored(base, 3)
        header = batch.header
        self.pending.append(
            Batch(queue, base, header.last_offset, header.max_timestamp, header.leader_epoch, bytes(batch.data))
        )
        for record in read_records(batch):
            log.append(record)
            self.timestamps[queue, record.offset] = header.max_timestamp

    def _record(self, choice: random.Random) -> NewRecord:
        key = None if choice.random() < 0.1 else choice.choice(KEYS)
        value = None if choice.random() < 0.3 else choice.randbytes(choice.choice([0, 3, 90]))
        headers = (("header", choice.choice([None, b"", b"h"])),) * choice.choice([0, 0, 2])
        return NewRecord(self.now - choice.randint(0, 50), key, value, headers)

    def merge(self, spans: int) -> None:
        """The records produced become a span, together with the last spans so far, as many as said."""
        first = max(len(self.spans) - spans, 0)
        files = [file for span in self.spans[first:] for file in span]
        inputs = [self.store.input(file.name) for file in files]
        clean = min((file.clean_ms for file in files), default=NEVER_COMPACTED)
        if self.pending:
            inputs.append(self.store.run(self.runs, self.pending))
            self.runs, self.pending = self.runs + 1, []
            clean = NEVER_COMPACTED
        del self.spans[first:]
        if not inputs:
            return
        horizon = min((file.horizon_ms for file in files if file.horizon_ms != NO_HORIZON), default=NO_HORIZON)
        made = self.store.merge(inputs, SMALL, level=1, joined=self.joins())
        self.spans.append([msgspec.structs.replace(file, clean_ms=clean, horizon_ms=horizon) for file in made])

    def compact(self, *, drain: bool) -> PassPlan | None:
        places = [(span, number) for span, files in enumerate(self.spans) for number in range(len(files))]
        files = [self.spans[span][number] for span, number in places]
        found = plan([self._known(file) for file in files], self.rules_of, self.now, drain=drain)
        if found is None:
            return None
        chosen = [files[one.number] for one in found.inputs]
        staying = self._staying(chosen, found)
        before, after = PassSums(found.queues), PassSums(found.queues)
        made: dict[str, list[StoreFile]] = {}
        for number, (file, one) in enumerate(zip(chosen, found.inputs, strict=True)):
            checked(staying[number], number)
            outputs = compact_file(
                file,
                self.store.input(file.name),
                found.queues,
                staying[number],
                lambda path: PlainTarget(self.root / path),
                joined=self.joins(),
                segment_bytes_max=self.segment_bytes_max,
            )
            if file.name.endswith(JOINED_SUFFIX):
                assert all(output.name.endswith(JOINED_SUFFIX) for output in outputs)
            made[file.name] = [self._described(file, output, is_whole=one.is_whole) for output in outputs]
            before.add(self.index(file))
            for output in outputs:
                after.add(self.index(output))
        compare(before, after)
        self.spans = [[output for file in files for output in made.get(file.name, [file])] for files in self.spans]
        return found

    def _described(self, old: StoreFile, output: StoreFile, *, is_whole: bool) -> StoreFile:
        """As a node does: queues that were not in the pass have the tombstones they had."""
        if is_whole:
            return msgspec.structs.replace(output, clean_ms=self.now)
        horizons = [one for one in (output.horizon_ms, old.horizon_ms) if one != NO_HORIZON]
        return msgspec.structs.replace(output, clean_ms=old.clean_ms, horizon_ms=min(horizons, default=NO_HORIZON))

    def _staying(self, files: Sequence[StoreFile], found: PassPlan) -> list[Staying]:
        """Spark's result: of each key the record with the largest place, unless that may go."""
        columns: list[KeyColumns] = []
        for number, file in enumerate(files):
            columns += scan_file(self.store.input(file.name), number, found.queues, bytes(range(16)), self.now)
        return latest_records(columns, len(files))

    def _known(self, file: StoreFile) -> CompactFile:
        parts = parts_of(self.index(file))
        compacted = self.rules_of(parts.queue_ids).compacted
        return CompactFile(parts.of(compacted), file.batch_bytes, file.clean_ms, file.horizon_ms)

    def index(self, file: StoreFile) -> ExtentIndex:
        rows = numpy.concatenate([numpy.empty(0, EXTENT_ROW), *index_pieces(self.store.input(file.name))])
        return ExtentIndex(rows, file.name)

    def rules_of(self, queue_ids: QueueIds) -> Rules:
        count = len(queue_ids)
        return Rules(
            (queue_ids >> numpy.uint64(32)) == COMPACTED,
            numpy.full(count, 0.5),
            numpy.full(count, self.lag_ms, numpy.int64),
            numpy.full(count, 1 << 62, numpy.int64),
            numpy.full(count, RETENTION_MS, numpy.int64),
            numpy.full(count, 1 << 62, numpy.int64),
        )

    # --- what is there --------------------------------------------------------------------------------------

    def batches(self) -> dict[int, list[bytes]]:
        """Of each queue, all in merged files, each of which is checked against its indexes."""
        found = self.store.read(file for files in self.spans for file in files)
        return {queue: found.get(queue, []) for queue in QUEUES}

    def records(self) -> dict[int, list[Stored]]:
        return {queue: list(_decoded(batches)) for queue, batches in self.batches().items()}


def _decoded(batches: Iterable[bytes]) -> Iterable[Stored]:
    for data in batches:
        for batch in stored_batches(data):
            for record in read_records(batch):
                marked = bool(batch.header.attributes & DELETE_HORIZON_BIT)
                yield Stored(record, marked, batch.header.base_offset)


def check_pass(world: World, found: PassPlan, before: dict[int, list[Stored]]) -> None:
    """A pass took away only what it might; and it took all that it should."""
    after = world.records()
    rows = {int(row["queue_id"]): row for row in found.queues}
    for queue in QUEUES:
        offsets = {one.record.offset for one in after[queue]}
        gone = [one for one in before[queue] if one.record.offset not in offsets]
        if queue not in rows:
            assert not gone
            continue
        end, last = int(rows[queue]["end"]), int(rows[queue]["last"])
        below = [one for one in before[queue] if one.record.offset < end]
        assert below
        if world.lag_ms:
            assert all(world.timestamps[queue, one.record.offset] <= world.now - world.lag_ms for one in below)
        newest = {one.record.key: one.record.offset for one in below if one.record.key is not None}
        for one in gone:
            key, offset = one.record.key, one.record.offset
            assert key is not None
            assert offset < end
            assert offset != last
            if newest[key] == offset:
                assert one.tombstone
                assert world.now >= world.seen[queue, offset] + RETENTION_MS, "a tombstone went too early"
        left = [one for one in after[queue] if one.record.offset < end]
        keys = [one.record.key for one in left if one.record.key is not None]
        assert len(keys) == len(set(keys)), "an older record of a key is left"
        for one in left:
            if one.tombstone:
                assert one.marked
                world.seen.setdefault((queue, one.record.offset), world.now)


def check_log(world: World) -> None:
    """A reader of all of a queue ends with the same value of each key as one that has read it from the beginning."""
    for queue, stored in world.records().items():
        log = {record.offset: record for record in world.log[queue]}
        offsets = [one.record.offset for one in stored]
        assert offsets == sorted(set(offsets))
        assert all(log[one.record.offset] == one.record for one in stored)
        first_unmerged = min((batch.base_offset for batch in world.pending if batch.queue_id == queue), default=1 << 62)
        expected = {record.key: record.value for record in world.log[queue] if record.offset < first_unmerged}
        values = {one.record.key: one.record.value for one in stored}
        live = {key: value for key, value in expected.items() if key is not None and value is not None}
        assert {key: value for key, value in values.items() if key is not None and value is not None} == live
        keyless = [record for record in world.log[queue] if record.key is None and record.offset < first_unmerged]
        assert [one.record for one in stored if one.record.key is None] == keyless
        if queue >> 32 == OTHER:
            assert len(stored) == sum(offset < first_unmerged for offset in log)


@given(seed=st.integers(0, 2**32), lag_ms=st.sampled_from([0, LAG_MS]), joined=st.sampled_from([0.0, 0.5, 1.0]))
@example(22370, 5_000, 0.0)  # another queue's pass writes a file again that has tombstones
@settings(max_examples=examples(40), deadline=None)
def test_passes_take_what_they_may_and_nothing_else(seed: int, lag_ms: int, joined: float) -> None:
    """`joined`: the share of the work that writes segments as one file each."""
    choice, forms = random.Random(seed), random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory), lag_ms)
        world.joins = lambda: forms.random() < joined
        for _ in range(choice.randint(1, 12)):
            for _ in range(choice.randint(0, 12)):
                world.produce(choice)
            if choice.random() < 0.8:
                world.merge(choice.choice([0, 0, 1, 2, 9]))
            for _ in range(choice.randint(0, 2)):
                world.now += choice.choice([1, LAG_MS, RETENTION_MS - 1, RETENTION_MS])
                step(world, drain=choice.random() < 0.5)
        world.merge(0)
        for _ in range(2):
            world.now += 2 * RETENTION_MS
            step(world, drain=True)
        for queue, stored in world.records().items():
            if queue >> 32 == COMPACTED and stored:
                assert not [one for one in stored if one.tombstone and one.record.offset < stored[-1].first_offset]


def step(world: World, *, drain: bool) -> None:
    """A pass, if one is worth it, and what must hold after it."""
    before, bytes_before = world.records(), world.batches()
    found = world.compact(drain=drain)
    if found is not None:
        check_pass(world, found, before)
        bytes_after = world.batches()
        assert all(bytes_after[queue] == bytes_before[queue] for queue in QUEUES if queue >> 32 == OTHER)
    check_log(world)


def test_a_segment_without_room_for_horizons_goes_on_in_another(tmp_path: Path) -> None:
    world = World(tmp_path, 0)
    world.store.facts[COMPACTED] = TopicFacts("orders", "compact", 12 << 20)
    queue, choice = QUEUES[0], random.Random(1)
    for number in range(200):
        records = [
            NewRecord(NOW, b"value-%d" % number, choice.randbytes(100_000)),
            NewRecord(NOW, b"gone-%d" % number, None),
        ]
        batch = build_batch(records).stored(2 * number, 3)
        world.pending.append(Batch(queue, 2 * number, 2 * number + 1, NOW, 3, bytes(batch.data)))
    world.merge(0)
    [segment] = world.spans[0]
    before = [one.record for one in world.records()[queue]]
    world.segment_bytes_max = segment.batch_bytes
    assert world.compact(drain=True) is not None
    files = world.spans[0]
    assert len(files) == 2
    assert sum(file.batch_bytes for file in files) > segment.batch_bytes
    assert all(file.batch_bytes <= segment.batch_bytes for file in files)
    assert [file.horizon_ms for file in files] == [world.now + RETENTION_MS] * 2
    assert [one.record for one in world.records()[queue]] == before
    world.now += RETENTION_MS
    assert world.compact(drain=True) is not None
    left = [one.record for one in world.records()[queue]]
    assert left == [one for one in before if one.value is not None or one is before[-1]]


def test_a_pass_joins_no_extents_of_another_queue_over_what_that_had_elsewhere(tmp_path: Path) -> None:
    """The other queue was elsewhere between two stays in this write group. Its reader takes an extent as a whole."""
    world = World(tmp_path, 0)
    world.store.facts[OTHER] = TopicFacts("clicks", "compact", 700)
    compacted, other = QUEUES[0], QUEUES[-1]
    for queue, offsets in ((compacted, range(6)), (other, [0, 1, 2, 7, 8])):
        for offset in offsets:
            batch = build_batch([NewRecord(NOW, b"key", b"value-%d" % offset)]).stored(offset, 3)
            world.pending.append(Batch(queue, offset, offset, NOW, 3, bytes(batch.data)))
    world.merge(0)
    [file] = world.spans[0]
    assert world.compact(drain=True) is not None
    [after] = world.spans[0]
    assert after.name != file.name
    assert [one.record.offset for one in world.records()[compacted]] == [5]
    rows = [row for row in world.index(after).rows if row["queue_id"] == other]
    assert [(int(row["base_offset"]), int(row["last_offset"])) for row in rows] == [(0, 2), (7, 8)]
