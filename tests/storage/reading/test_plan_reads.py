"""Fetches of many queues from the disks: what comes back is what reads of the single queues bring, mostly together."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.kernel.fetch.fetch_world import number_of
from tests.simulation.merger import Mergers
from tests.storage.reading.plan_reader import (
    AHEAD_CHUNKS,
    CHUNK_BYTES,
    CODES,
    DISK_BYTES,
    QUEUES,
    Merging,
    Reader,
    prepare,
    publish,
    read_so_far,
)
from tests.storage.small_node import QUEUE, SmallNode, simulated

from mainstem import kernel
from mainstem.model import Outcome, Sample, Tier
from mainstem.storage.extents import extent_pages
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.queue_store.reading.file_search import ExtentPlace, Spans
from mainstem.storage.queue_store.reading.near_files import NearFile, NearFiles
from mainstem.storage.reading import plan_reads
from mainstem.storage.reading.pacing import TURNS_MIN
from mainstem.storage.store_files.store_file import FileKind, kind_of


async def alone(node: SmallNode, partition: int) -> list[bytes]:
    """A queue read by itself."""
    batches: list[bytes] = []
    while (part := await node.read(len(batches), QUEUE + partition)).batches:
        batches += map(bytes, part.batches)
    return batches


@pytest.mark.parametrize("bytes_max", [5_000, 60_000, 1 << 20])
@pytest.mark.parametrize("home", ["journal", "runs", "both"])
def test_fetches_of_many_queues_bring_what_reads_of_each_do(tmp_path: Path, home: str, bytes_max: int) -> None:
    async def story(node: SmallNode) -> None:
        await publish(node, 20)
        if home != "journal":
            await node.split()
        await publish(node, 20, [0, 1, 2, 3, 5, 7, 11])
        if home == "runs":
            await node.split()
        await publish(node, 1, [4])
        await node.rounds(3)
        reader = Reader(node, bytes_max=bytes_max)
        await reader.read_all(partition_bytes=min(bytes_max, 30_000))
        for partition in range(QUEUES):
            assert reader.found[partition] == await alone(node, partition), partition
            assert len(reader.found[partition]) == node.offsets(QUEUE + partition).high_watermark
        served = node.storage.read_path.served
        if bytes_max > 5_000:
            assert node.storage.messages.plan_reads.together > QUEUES
        assert served[Tier.JOURNAL] > 0
        assert home == "journal" or served[Tier.QUEUE_STORE] + served[Tier.READ_CACHE] > 0

    simulated(tmp_path, story, prepare)


def prepare_merges(node: SmallNode) -> None:
    prepare(node)
    node.topics[0] = dataclasses.replace(
        node.topics[0], settings=dataclasses.replace(node.topics[0].settings, segment_bytes=9000)
    )


async def split_and_merge(node: SmallNode) -> None:
    """Large queues fill segments, small ones lie in packed files, and what is newer in runs."""
    mergers = Mergers(Merging(node.storage, node.storage, node.disk2, str(node.manifest_path)), random.Random(1))
    mergers.lines = MergeLines(9_000, 30_000, 40_000, 60_000, 50_000)

    async def publish_all() -> None:
        await publish(node, 6, range(6))
        await publish(node, 6, range(6, QUEUES), size=100)
        await node.split()

    for _ in range(4):
        await publish_all()
    while await mergers.merge(well_behaved=True, drain=True):
        pass
    await publish_all()
    await publish(node, 150, [0])  # so that the journal's segments before can go
    await node.split()
    await node.rounds(6)


@pytest.mark.parametrize("bytes_max", [20_000, 1 << 20])
def test_fetches_of_many_queues_read_merged_files_and_runs(tmp_path: Path, bytes_max: int) -> None:
    async def story(node: SmallNode) -> None:
        await split_and_merge(node)
        near = node.storage.queue_store.near
        kinds = {kind_of(name) for name in node.storage.queue_store.manifest.files}
        assert kinds == set(FileKind)
        around = near.around
        read: set[FileKind] = set()

        async def watched(queue_id: int, group: int, offset: int, *, few: bool = False) -> list[NearFile]:
            found = await around(queue_id, group, offset, few=few)
            read.update(kind_of(one.source.name) for one in found)
            return found

        near.around = watched  # type: ignore[method-assign]
        reader = Reader(node, bytes_max=bytes_max)
        await reader.read_all(partition_bytes=min(bytes_max, 30_000))
        for partition in range(QUEUES):
            assert reader.found[partition] == await alone(node, partition), partition
            assert len(reader.found[partition]) == node.offsets(QUEUE + partition).high_watermark
        assert read == kinds
        assert node.storage.messages.plan_reads.together > 3 * QUEUES

    simulated(tmp_path, story, prepare_merges)


async def assert_near_is_as_if_never_asked_before(node: SmallNode, reads: Sequence[tuple[int, int]]) -> None:
    """`reads`: partitions and offsets, in the order in which the store's own are asked for."""
    store = node.storage.queue_store
    for partition, offset in reads:
        place = QUEUE + partition, node.storage.read_path.placement.history(QUEUE + partition)[0].group, offset
        found, fresh = [await one.around(*place) for one in (store.near, NearFiles(store.stored, 0))]
        assert [(file.source.name, file.groups) for file in found] == [
            (file.source.name, file.groups) for file in fresh
        ], place
        assert [file.extents for file in found] == [file.extents for file in fresh]


def test_the_files_around_a_reader_are_those_of_the_offset_wherever_it_was_before(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        for seed in range(2):
            await split_and_merge(node)  # with new files, the second time
            reads = [
                (partition, offset)
                for partition in range(QUEUES)
                for offset in range(node.offsets(QUEUE + partition).high_watermark)
            ]
            await assert_near_is_as_if_never_asked_before(node, reads)
            random.Random(seed).shuffle(reads)
            await assert_near_is_as_if_never_asked_before(node, reads)

    simulated(tmp_path, story, prepare_merges)


def test_a_reader_that_goes_on_is_looked_for_once_whatever_was_split_since(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await split_and_merge(node)
        store = node.storage.queue_store
        group = node.storage.read_path.placement.history(QUEUE)[0].group
        find = store.stored.search.find
        looked = 0

        async def watched(queue_id: int, spans: Spans, offset: int) -> ExtentPlace | None:
            nonlocal looked
            looked += 1
            return await find(queue_id, spans, offset)

        store.stored.search.find = watched  # type: ignore[method-assign]
        firsts, spans = [], {id(store.manifest.spans(group)): store.manifest.spans(group)}
        for offset in range(node.offsets(QUEUE).high_watermark):
            if offset % 50 == 25:
                await publish(node, 1, [0])
                await node.split()
                spans[id(store.manifest.spans(group))] = store.manifest.spans(group)
            firsts += [file.source.name for file in await store.near.around(QUEUE, group, offset)][:1]
        assert len(firsts) > 100
        assert len(set(firsts)) > 2
        assert len(spans) > 2
        assert looked == 1

    simulated(tmp_path, story, prepare_merges)


@pytest.mark.parametrize("publishing", [False, True], ids=["idle", "publishing"])
def test_a_reader_that_goes_on_in_a_file_is_answered_within_the_call(tmp_path: Path, publishing: bool) -> None:
    """Batches in the read cache take no task, except beside publishing, where reads wait for their turn."""

    async def story(node: SmallNode) -> None:
        await split_and_merge(node)
        pacing, queue = node.storage.pacing, QUEUE + 1
        at_once = from_disk = 0
        reader = Reader(node, [1])
        while True:
            for _ in range(TURNS_MIN if publishing else 0):
                pacing.committed(0.001)
            assert pacing.idle != publishing
            plan = reader.plan(partition_bytes=3_000)
            node.storage.messages.read_at_once(plan)
            if plan.settled and plan.bytes:
                at_once += 1
            elif plan.pending() is not None:
                from_disk += 1
            if not await reader.fetch(partition_bytes=3_000):
                break
        assert reader.found[1] == await alone(node, 1)
        assert len(reader.found[1]) == node.offsets(queue).high_watermark
        assert from_disk > 0, "the first read of each file is looked for"
        assert at_once == 0 if publishing else at_once > from_disk

    simulated(tmp_path, story, prepare_merges)


def test_rot_of_one_batch_fails_its_queue_alone(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await publish(node, 40)
        await node.rounds(1)
        index = await node.storage.journal.index(node.segments()[0])
        first, _end = index.queue_rows(QUEUE + 5)
        position = int(index.rows["position"][first + 1])
        (path,) = [path for path in node.disk1.paths() if path.endswith(f"{node.segments()[0]:020d}.wal")]
        node.disk1.flip(path, 8 * (position + 100))
        reader = Reader(node)
        await reader.read_all()
        assert [len(batches) for batches in reader.found.values()] == [
            1 if queue == 5 else 40 for queue in range(QUEUES)
        ]
        assert (await node.read(1, QUEUE + 5)).outcome is Outcome.STORAGE_FAILED

    simulated(tmp_path, story, prepare)


def test_segments_that_are_recycled_under_a_fetch_are_found_in_the_queue_store(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await publish(node, 40)
        await node.rounds(1)
        reader = Reader(node)
        plan = reader.plan()
        reading = asyncio.ensure_future(node.storage.messages.read(plan, 1 << 20))
        await node.split()
        await node.rounds(3)
        await reading
        assert plan.settled
        assert plan.errors(CODES) == {}
        assert plan.bytes > 0
        await reader.read_all()
        assert {len(batches) for batches in reader.found.values()} == {40}

    simulated(tmp_path, story, prepare)


def test_a_plan_that_a_later_round_took_over_is_let_go(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await publish(node, 40)
        await node.rounds(1)
        plan = Reader(node).plan()
        reading = asyncio.ensure_future(node.storage.messages.read(plan, 1 << 20))
        await asyncio.sleep(0)
        plan.begin(lambda key: kernel.PlannedTopic(number_of(key), QUEUES), 1 << 20)
        await reading
        assert plan.bytes == 0
        assert not plan.settled

    simulated(tmp_path, story, prepare)


def test_readers_far_apart_are_served_all_the_same(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await publish(node, 60)
        await node.rounds(1)
        reader = Reader(node)
        for partition in reader.offsets:
            reader.offsets[partition] = 5 * (partition * 7 % QUEUES)
        begun = dict(reader.offsets)
        await reader.read_all(partition_bytes=5_000)
        for partition, offset in begun.items():
            assert reader.found[partition] == (await alone(node, partition))[offset:]

    simulated(tmp_path, story, prepare)


def test_what_is_cached_of_the_segment_being_written_to_lies_before_its_end(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        reader = Reader(node, range(2))
        for _ in range(24):
            await publish(node, 2, range(2), size=4000)
            for partition in range(2):
                await alone(node, partition)  # often enough for chunks to be read whole
            await reader.read_all(partition_bytes=3 * 4000)
        assert len(node.segments()) == 2
        assert node.storage.queue_store.cache.bytes_held > 0
        assert {len(batches) for batches in reader.found.values()} == {48}

    simulated(tmp_path, story, prepare)


def test_a_segment_without_an_index_is_read_together_as_well(tmp_path: Path) -> None:
    """Again after a restart, when no batch of it is in memory, and after as much more was written."""

    def larger(node: SmallNode) -> None:
        prepare(node)
        node.journal_config = msgspec.structs.replace(node.journal_config, segment_bytes=8 << 20)
        node.config = msgspec.structs.replace(node.config, checkpoint_seconds=1e6)

    async def story(node: SmallNode) -> None:
        reader, restarted = Reader(node), Reader(node)
        for number in range(2):
            before = node.storage.messages.plan_reads.together
            await publish(node, 60)
            await reader.read_all()
            assert node.storage.messages.plan_reads.together > before + QUEUES, number
        assert not [segment for segment in node.storage.journal.segments() if segment.index_ready]
        await node.restart()
        await restarted.read_all()
        assert node.storage.messages.plan_reads.together > QUEUES
        assert node.storage.queue_store.cache.bytes_held > 0
        for partition in range(QUEUES):
            assert reader.found[partition] == restarted.found[partition] == await alone(node, partition)
            assert len(reader.found[partition]) == 120

    simulated(tmp_path, story, larger)


def test_more_small_segments_than_are_looked_at_together(tmp_path: Path) -> None:
    def tiny(node: SmallNode) -> None:
        prepare(node)
        node.journal_config = msgspec.structs.replace(node.journal_config, segment_bytes=16 << 10)

    async def story(node: SmallNode) -> None:
        await publish(node, 60)
        assert len(node.segments()) > kernel.PICK_SOURCES_MAX
        reader = Reader(node)
        await reader.read_all()
        assert node.storage.messages.plan_reads.together
        for partition in range(QUEUES):
            assert reader.found[partition] == await alone(node, partition)
            assert len(reader.found[partition]) == 60

    simulated(tmp_path, story, tiny)


def test_segments_that_are_indexed_and_recycled_under_readers_of_memorys_rows(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        reader = Reader(node, bytes_max=100_000)
        for _ in range(6):
            await publish(node, 20)
            for _ in range(20):
                await reader.fetch(partition_bytes=8_000)
                await asyncio.sleep(0.3)  # maintenance goes round now and then
        await node.split()
        await node.rounds(3)
        late = Reader(node, bytes_max=100_000)
        await late.read_all(partition_bytes=8_000)
        assert {len(batches) for batches in reader.found.values()} == {120}
        assert reader.found == late.found

    simulated(tmp_path, story, prepare)


def test_fetches_of_many_queues_that_follow_each_other_are_read_ahead_of(tmp_path: Path) -> None:
    def larger(node: SmallNode) -> None:
        prepare(node)
        node.journal_config = msgspec.structs.replace(node.journal_config, segment_bytes=8 << 20)

    async def story(node: SmallNode) -> None:
        await publish(node, 60)
        reader = Reader(node, bytes_max=4 * CHUNK_BYTES)
        await reader.fetch(4 * CHUNK_BYTES // QUEUES)
        await reader.fetch(4 * CHUNK_BYTES // QUEUES)
        await asyncio.sleep(1)
        ahead = {sample.name: sample.value for sample in node.storage.queue_store.cache.samples()}
        assert ahead["mainstem_read_cache_ahead_chunks_total"] > 4
        await reader.read_all()
        assert {len(batches) for batches in reader.found.values()} == {60}

    simulated(tmp_path, story, larger)


async def stored(node: SmallNode, rounds: int) -> None:
    """Batches that the queue store alone has."""
    await publish(node, rounds)
    await node.split()
    await publish(node, rounds, [0])
    await node.split()
    await node.rounds(3)


def test_a_full_response_looks_into_no_file_for_the_partitions_behind_it(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await stored(node, 60)
        sizes = [len((await node.read(number, QUEUE + 1)).batches[0]) for number in range(20)]
        await node.storage.queue_store.cache.close()  # nothing of that is in memory any more
        reader = Reader(node, range(1, QUEUES), bytes_max=sum(sizes) + 1_500)
        before = read_so_far(node, DISK_BYTES)
        assert await reader.fetch() == sum(sizes)
        assert not any(reader.found[partition] for partition in range(2, QUEUES))
        assert 0 < read_so_far(node, DISK_BYTES) - before <= 2 * CHUNK_BYTES
        await reader.read_all()
        assert {len(batches) for batches in reader.found.values()} == {60}

    simulated(tmp_path, story, prepare)


def test_a_full_response_asks_no_index_for_the_partitions_behind_it(tmp_path: Path) -> None:
    def without_indexes(node: SmallNode) -> None:
        prepare(node)
        node.store_config = msgspec.structs.replace(node.store_config, index_cache_bytes=0)

    async def story(node: SmallNode) -> None:
        for queues in ([1], [*range(2, QUEUES)]):
            await publish(node, 60, queues)
            await node.split()
        await publish(node, 60, [0])
        await node.split()
        await node.rounds(3)
        files = node.storage.queue_store.stored.open_files
        sizes = [len((await node.read(number, QUEUE + 1)).batches[0]) for number in range(20)]
        loads = []
        for partitions in ([1], range(1, QUEUES)):
            reader = Reader(node, partitions, bytes_max=sum(sizes) + 300)
            before = files.index_loads
            assert await reader.fetch() == sum(sizes)
            loads.append(files.index_loads - before)
        assert loads[0] == loads[1] > 0
        await reader.read_all()
        assert {len(batches) for batches in reader.found.values()} == {60}

    simulated(tmp_path, story, without_indexes)


@pytest.mark.parametrize("disk", ["journal", "queue_store"])
def test_fetches_of_few_queues_read_pages_of_large_indexes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: str
) -> None:
    monkeypatch.setattr(extent_pages, "PAGED_BYTES_MIN", 0)

    def without_indexes(node: SmallNode) -> None:
        prepare(node)
        node.store_config = msgspec.structs.replace(node.store_config, index_cache_bytes=0)
        node.journal_config = msgspec.structs.replace(node.journal_config, index_cache_bytes=0)

    async def story(node: SmallNode) -> None:
        if disk == "queue_store":
            await stored(node, 60)
        else:
            await publish(node, 60)
            await publish(node, 150, [0])  # so that the others' batches are in sealed segments, and not in memory
            await node.rounds(3)
        journal, files = node.storage.journal, node.storage.queue_store.stored.open_files

        def loads_so_far() -> float:
            if disk == "queue_store":
                return files.index_loads
            name = "mainstem_journal_index_loads_total"
            return next(one.value for one in journal.samples() if isinstance(one, Sample) and one.name == name)

        await Reader(node, [1]).read_all()
        loads = loads_so_far()
        for partition in (2, 3, 4):
            reader = Reader(node, [partition])
            await reader.read_all()
            assert len(reader.found[partition]) == 60
        assert loads_so_far() == loads
        monkeypatch.setattr(plan_reads, "TOGETHER_MIN", 0)
        await Reader(node, [5]).read_all()
        assert loads_so_far() > loads, f"it is not the {disk} that is read"

    simulated(tmp_path, story, without_indexes)


def test_who_goes_on_in_a_file_is_read_ahead_of_and_who_comes_once_is_not(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await stored(node, 150)
        reader = Reader(node, [3], bytes_max=2 * CHUNK_BYTES)
        await reader.fetch()
        await asyncio.sleep(1)
        assert read_so_far(node, AHEAD_CHUNKS) == 0
        await reader.fetch()
        await asyncio.sleep(1)
        assert read_so_far(node, AHEAD_CHUNKS) > 0
        await reader.read_all()
        assert len(reader.found[3]) == 150

    simulated(tmp_path, story, prepare)
