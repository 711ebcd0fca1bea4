"""Merged files as readers, copies and retention see them: packed files and queue segments in the place of runs."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.queue_store.runs import Batch, indexes_in_pages, make_batch, store_paths, write_merged, write_run
from tests.storage.queue_store.test_store import Bench, log_starts, read_all

from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.store_files.store_file import StoreFile, path_of, paths_of, segment_name

QUEUES = 7


def groups_at(queue_ids: QueueIds, offsets: numpy.ndarray) -> numpy.ndarray:
    return (queue_ids % numpy.uint64(2)).astype(numpy.int64)


class Merges:
    """Makes runs and merges them, over a store of two write groups; knows what each file holds."""

    def __init__(self, bench: Bench, choice: random.Random) -> None:
        self.bench = bench
        self.choice = choice
        self.logs: dict[int, list[Batch]] = {queue_id: [] for queue_id in range(QUEUES)}
        self.held: dict[str, list[Batch]] = {}
        self.slices = 0
        self.merges = 0

    async def split(self, *queue_ids: int) -> None:
        """One more slice, of random queues or of these: runs of two retention classes, which count for both write
        groups."""
        parts: dict[str, list[Batch]] = {"forever": [], "internal": []}
        for queue_id in queue_ids or [self.choice.randrange(QUEUES) for _ in range(self.choice.randint(0, 12))]:
            log = self.logs[queue_id]
            batch = make_batch(
                queue_id,
                log[-1].last_offset + 1 if log else self.choice.randint(0, 3),
                records=self.choice.randint(1, 3),
                size=self.choice.choice([61, 100, 5000, 30_000]),
            )
            log.append(batch)
            parts["internal" if queue_id < 2 else "forever"].append(batch)
        runs = []
        for name, batches in parts.items():
            if batches:
                run = write_run(self.bench.files, f"{self.slices}-{name}.run", batches, name)
                self.held[run.name] = batches
                runs.append(run)
        for group in (0, 1):
            await self.bench.store.splits.record(group, self.slices, self.slices + 1, runs, applied_index=self.slices)
        self.slices += 1

    def chosen(self, group: int) -> list[FileRange]:
        spans = self.bench.store.manifest.spans(group)
        if not spans:
            return []
        first = self.choice.randrange(len(spans))
        return [entry for span in spans[first : first + self.choice.randint(1, 4)] for entry in span]

    def merged(self, group: int, inputs: Sequence[FileRange]) -> list[StoreFile]:
        """The files that a merge makes of them: packed files that are cut anywhere, also within a queue, and
        segments."""
        batches = sorted(batch for entry in inputs for batch in self.held[entry.name] if batch.queue_id % 2 == group)
        self.merges += 1
        parts: list[list[Batch]] = []
        for batch in batches:
            if not parts or self.choice.random() < 0.2:
                parts.append([])
            parts[-1].append(batch)
        files = []
        for number, part in enumerate(parts):
            name = f"{self.merges}-{number}.pack"
            if part[0].queue_id == part[-1].queue_id and self.choice.random() < 0.7:
                name = segment_name("orders", part[0].queue_id, f"m{self.merges}", part[0].base_offset)
            files.append(write_merged(self.bench.files, name, group, part, level=2 if "/" in name else 1))
            self.held[name] = part
        return files

    async def rewrite(self, group: int) -> set[Batch]:
        """Write some merged files again, at once, without some batches: those."""
        manifest = self.bench.store.manifest
        there = [entry for entry in manifest.ranges(group) if manifest.files[entry.name].is_merged]
        left_out: set[Batch] = set()
        outputs: dict[FileRange, list[StoreFile]] = {}
        for entry in self.choice.sample(there, self.choice.randint(0, len(there))):
            old = manifest.files[entry.name]
            kept = [batch for batch in self.held[entry.name] if self.choice.random() < 0.6]
            left_out |= set(self.held[entry.name]) - set(kept)
            self.merges += 1
            name = f"{self.merges}.pack"
            if "/" in entry.name and kept:
                name = segment_name("orders", old.first_queue, f"m{self.merges}", kept[0].base_offset)
            outputs[entry] = [write_merged(self.bench.files, name, group, kept, level=old.level)] if kept else []
            self.held[name] = kept
        if outputs:
            await self.bench.store.changes.rewrite(group, outputs, self.bench.store.being_copied.is_kept)
        return left_out

    async def merge(self, group: int) -> None:
        inputs = self.chosen(group)
        if inputs:
            await self.bench.store.changes.merge(group, inputs, self.merged(group, inputs))

    def named(self) -> set[str]:
        return {path for name in self.bench.store.manifest.files for path in paths_of(name)}


@pytest.mark.parametrize("paged", [False, True])
@given(seed=st.integers(0, 2**32))
def test_f_each_reader_sees_each_batch_once_however_files_are_merged_meanwhile(paged: bool, seed: int) -> None:
    choice = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory, indexes_in_pages(2) if paged else nullcontext():
        config = QueueStoreConfig(
            read_cache_bytes=choice.choice([0, 20_000, 1 << 20]),
            read_chunk_bytes=4096,
            index_cache_bytes=choice.choice([0, 1 << 20]),
            open_files_max=choice.choice([1, 2, 100]),
        )

        async def scenario(bench: Bench) -> None:
            merges = Merges(bench, choice)
            for _ in range(choice.randint(1, 8)):
                await merges.split()
                if choice.random() < 0.5:
                    await merges.merge(choice.randrange(2))
            if choice.random() < 0.3:
                await bench.restart()
            found: dict[int, list[bytes]] = {queue_id: [] for queue_id in merges.logs}

            async def reader(queue_id: int) -> None:
                offset = 0
                while (stored := await bench.store.history.read(queue_id, queue_id % 2, offset, bytes_max)) is not None:
                    found[queue_id] += map(bytes, stored.batches)
                    offset = stored.next_offset
                    for _ in range(choice.randint(0, 5)):
                        await asyncio.sleep(0)

            bytes_max = choice.choice([1, 700, 70_000])
            async with asyncio.TaskGroup() as readers:
                for queue_id in merges.logs:
                    readers.create_task(reader(queue_id))
                for _ in range(choice.randint(0, 8)):
                    for _ in range(choice.randint(0, 20)):
                        await asyncio.sleep(0)
                    await merges.merge(choice.randrange(2))
            for queue_id, log in merges.logs.items():
                assert found[queue_id] == [batch.data for batch in log]
                for offset in choice.choices(range(40), k=3):
                    expected = [batch for batch in log if batch.last_offset >= offset]
                    data = [batch.data for batch in expected]
                    assert await read_all(bench.store, queue_id, queue_id % 2, offset, bytes_max) == data
                    extents = [extent async for extent in bench.store.history.extents(queue_id, queue_id % 2, offset)]
                    assert [extent[1] for extent in extents][-1:] == [batch.last_offset for batch in expected][-1:]
                    assert all(one[1] + 1 == other[0] for one, other in pairwise(extents))
                held = await bench.store.stored.files_of(queue_id, queue_id % 2)
                assert sum(file.queue_bytes for file in held) == sum(len(batch.data) for batch in log)
            rows = [part async for part in bench.store.stored.all_rows(groups_at)]
            total = sum(int(part["length"].sum()) for part in rows)
            assert total == sum(len(batch.data) for log in merges.logs.values() for batch in log)
            assert store_paths(bench.files) == merges.named()

        Bench(directory, config).run(scenario)


@pytest.mark.parametrize("paged", [False, True])
@given(seed=st.integers(0, 2**32))
def test_f_each_reader_sees_each_batch_once_that_stays_however_files_are_rewritten_meanwhile(
    paged: bool, seed: int
) -> None:
    choice = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory, indexes_in_pages(2) if paged else nullcontext():

        async def scenario(bench: Bench) -> None:
            merges = Merges(bench, choice)
            for _ in range(choice.randint(1, 8)):
                await merges.split()
                if choice.random() < 0.6:
                    await merges.merge(choice.randrange(2))
            found: dict[int, list[bytes]] = {queue_id: [] for queue_id in merges.logs}

            async def reader(queue_id: int) -> None:
                offset = 0
                while (stored := await bench.store.history.read(queue_id, queue_id % 2, offset, bytes_max)) is not None:
                    found[queue_id] += map(bytes, stored.batches)
                    assert stored.next_offset > offset
                    offset = stored.next_offset
                    for _ in range(choice.randint(0, 5)):
                        await asyncio.sleep(0)

            bytes_max = choice.choice([1, 700, 70_000])
            left_out: set[Batch] = set()
            async with asyncio.TaskGroup() as readers:
                for queue_id in merges.logs:
                    readers.create_task(reader(queue_id))
                for _ in range(choice.randint(1, 8)):
                    for _ in range(choice.randint(0, 20)):
                        await asyncio.sleep(0)
                    if choice.random() < 0.7:
                        left_out |= await merges.rewrite(choice.randrange(2))
                    else:
                        await merges.merge(choice.randrange(2))
            if choice.random() < 0.5:
                await bench.restart()
            for queue_id, log in merges.logs.items():
                stays = [batch for batch in log if batch not in left_out]
                gone = {batch.data for batch in log if batch in left_out}
                order = {batch.data: at for at, batch in enumerate(log)}
                assert [data for data in found[queue_id] if data not in gone] == [batch.data for batch in stays]
                places = [order[data] for data in found[queue_id]]
                assert places == sorted(set(places)), "what goes is seen once at the most, in its place"
                for offset in choice.choices(range(40), k=3):
                    expected = [batch.data for batch in stays if batch.last_offset >= offset]
                    assert await read_all(bench.store, queue_id, queue_id % 2, offset, bytes_max) == expected
            assert store_paths(bench.files) == merges.named()

        Bench(directory).run(scenario)


def test_a_rewriting_is_refused_when_an_input_does_not_count_any_more(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        batches = [make_batch(2, number) for number in range(5)]
        store = bench.store
        await store.splits.record(0, 0, 1, [write_run(bench.files, "a.run", batches)], applied_index=1)
        nothing: dict[FileRange, list[StoreFile]] = {}
        whole: dict[FileRange, list[StoreFile]] = {store.manifest.ranges(0)[0]: []}
        for wrong in (whole, nothing):
            with pytest.raises(StorageError, match=r"no merged file|nothing is rewritten"):
                await store.changes.rewrite(0, wrong)
        await store.changes.merge(0, store.manifest.ranges(0), [write_merged(bench.files, "a.pack", 0, batches)])
        (entry,) = store.manifest.ranges(0)
        fewer = write_merged(bench.files, "b.pack", 0, batches[2:])
        await bench.files.remove(path_of("b.pack"))
        with pytest.raises((StorageError, OSError)):
            await store.changes.rewrite(0, {entry: [fewer]})
        assert await read_all(store, 2, 0, 0, 1000) == [batch.data for batch in batches]
        fewer = write_merged(bench.files, "c.pack", 0, batches[2:])
        await store.changes.rewrite(0, {entry: [fewer]})
        assert await read_all(store, 2, 0, 0, 1000) == [batch.data for batch in batches[2:]]
        again = write_merged(bench.files, "d.pack", 0, batches[3:])
        with pytest.raises(StorageError, match="no merged file that counts"):
            await store.changes.rewrite(0, {entry: [again]})
        with pytest.raises(StorageError, match="no new file"):
            await store.changes.rewrite(0, {store.manifest.ranges(0)[0]: [fewer]})

    Bench(tmp_path).run(scenario)


def test_a_merge_is_refused_when_an_input_does_not_count_any_more(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        merges = Merges(bench, random.Random(1))
        for _ in range(6):
            await merges.split(0, 3, 2, 1)
        spans = bench.store.manifest.spans(0)
        assert all(len(span) == 2 for span in spans)
        inputs = [entry for span in spans[:3] for entry in span]
        outputs = merges.merged(0, inputs)
        again = merges.merged(0, inputs)
        before = bench.store.manifest.spans(0)
        for wrong in ([], inputs[1:], inputs[:-1], [*inputs, spans[3].runs[0]][1:]):
            with pytest.raises(StorageError, match=r"does not count|left out|merge of nothing"):
                await bench.store.changes.merge(0, wrong, outputs)
        with pytest.raises(StorageError, match="no new file of write group 1"):
            await bench.store.changes.merge(1, bench.store.manifest.ranges(1), outputs)
        with pytest.raises(StorageError, match="keys overlap"):
            await bench.store.changes.merge(0, inputs, [*outputs, again[0]])
        assert bench.store.manifest.spans(0) is before
        await bench.store.changes.merge(0, inputs, outputs)
        with pytest.raises(StorageError, match="does not count"):
            await bench.store.changes.merge(0, inputs, again)

    Bench(tmp_path).run(scenario)


def test_a_run_stays_for_the_write_groups_that_still_need_it(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        merges = Merges(bench, random.Random(2))
        for _ in range(3):
            await merges.split()
        runs = {path for path in bench.files.paths() if path.startswith("runs/")}
        await bench.store.changes.merge(0, inputs := bench.store.manifest.ranges(0), merges.merged(0, inputs))
        assert runs <= set(bench.files.paths())
        await bench.store.changes.merge(1, inputs := bench.store.manifest.ranges(1), merges.merged(1, inputs))
        assert not [path for path in bench.files.paths() if path.startswith("runs/")]
        assert store_paths(bench.files) == merges.named()

    Bench(tmp_path).run(scenario)


def test_files_that_are_copied_stay_until_the_copy_is_over(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        merges = Merges(bench, random.Random(3))
        for _ in range(3):
            await merges.split()
        store = bench.store
        with store.being_copied.kept(0):
            for group in (1, 0):
                await store.changes.merge(
                    group,
                    inputs := store.manifest.ranges(group),
                    merges.merged(group, inputs),
                    store.being_copied.is_kept,
                )
            for entry in inputs:
                if entry.name in store.stored.lingering:
                    pieces = [piece async for piece in store.copies.pieces(entry.name, 1000)]
                    assert b"".join(pieces) == bench.files.content(path_of(entry.name))
            assert store.stored.lingering
            bench.clock.advance(10_000)
            await store.retention.retain(log_starts(dict.fromkeys(range(QUEUES), 0)))
            assert [path for path in bench.files.paths() if path.startswith("runs/")]
        await store.retention.retain(log_starts(dict.fromkeys(range(QUEUES), 0)))
        assert not [path for path in bench.files.paths() if path.startswith("runs/")]

    Bench(tmp_path).run(scenario)


def test_what_a_merge_left_behind_goes_after_its_grace_and_nothing_else(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        merges = Merges(bench, random.Random(4))
        for _ in range(3):
            await merges.split()
        lost = merges.merged(0, bench.store.manifest.ranges(0))
        await bench.store.changes.merge(0, inputs := bench.store.manifest.ranges(0), merges.merged(0, inputs))
        held = write_merged(bench.files, segment_name("held", 0, "x", 5), 0, [make_batch(2, 5)])
        bench.files.put("queues/orders/0/z/00000000000000000000.log.tmp-1", b"begun")
        bench.files.put("packed/z.pack.tmp-1", b"begun")
        bench.files.put("queues/notes.txt", b"an operator's")
        bench.store.orphans.hold(held.name)
        everything = log_starts(dict.fromkeys(range(QUEUES), 0))
        await bench.store.retention.retain(everything)
        assert {path for file in lost for path in paths_of(file.name)} <= set(bench.files.paths())
        for _ in range(3):
            bench.clock.advance(bench.config.orphan_grace_seconds)
            await bench.store.retention.retain(everything)
        left = store_paths(bench.files)
        assert left == merges.named() | set(paths_of(held.name)) | {"queues/notes.txt"}

    Bench(tmp_path).run(scenario)


def test_a_dead_segment_goes_with_all_that_lies_beside_it(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        batches = [make_batch(2, number) for number in range(5)]
        await bench.store.splits.record(0, 0, 1, [write_run(bench.files, "a.run", batches)], applied_index=1)
        segment = write_merged(bench.files, segment_name("orders", 2, "m", 0), 0, batches, level=2)
        await bench.store.changes.merge(0, bench.store.manifest.ranges(0), [segment])
        assert await read_all(bench.store, 2, 0, 0, 1000) == [batch.data for batch in batches]
        assert [file.name for file in await bench.store.retention.retain(log_starts({2: 4}))] == []
        assert [file.name for file in await bench.store.retention.retain(log_starts({2: 5}))] == [segment.name]
        assert store_paths(bench.files) == set()

    Bench(tmp_path).run(scenario)


@pytest.mark.parametrize("name", ["a.pack", segment_name("orders", 2, "m", 0)])
def test_a_merged_file_is_copied_whole_with_what_lies_beside_it(tmp_path: Path, name: str) -> None:
    batches = [make_batch(2, number, size=3000) for number in range(50)]

    async def scenario(bench: Bench) -> None:
        (tmp_path / "other").mkdir()
        other = Bench(tmp_path / "other")
        await other.start()
        await bench.store.splits.record(0, 0, 1, [write_run(bench.files, "a.run", batches)], applied_index=1)
        file = write_merged(bench.files, name, 0, batches, level=2)
        await bench.store.changes.merge(0, bench.store.manifest.ranges(0), [file])
        await bench.files.remove(path_of(name).removesuffix(".log") + ".timeindex")  # no reader here needs it

        def fetch(part: str) -> AsyncIterator[bytes]:
            return bench.store.copies.pieces(part, 4096)

        async def torn(part: str) -> AsyncIterator[bytes]:
            async for piece in fetch(part):
                yield bytes(len(piece)) if part.endswith(".extents") else piece[:-1]

        with pytest.raises(StorageError):
            await other.store.copies.copy(file, torn)
        assert await other.store.copies.copy(file, fetch)
        assert not await other.store.copies.copy(file, fetch)
        await other.store.changes.supersede(0, 1, [(0, 1, file)])
        assert await read_all(other.store, 2, 0, 0, 10_000) == [batch.data for batch in batches]
        copied = store_paths(other.files)
        assert copied == set(paths_of(name))
        await other.store.close()

    Bench(tmp_path).run(scenario)


@pytest.mark.parametrize("name", ["a.pack", segment_name("orders", 2, "m", 0)])
def test_damage_of_a_merged_file_is_found_and_an_extent_is_mended_in_place(tmp_path: Path, name: str) -> None:
    batches = [make_batch(2, number, size=3000) for number in range(50)]

    async def scenario(bench: Bench) -> None:
        store = bench.store
        await store.splits.record(0, 0, 1, [write_run(bench.files, "a.run", batches)], applied_index=1)
        file = write_merged(bench.files, name, 0, batches, level=2)
        await store.changes.merge(0, store.manifest.ranges(0), [file])
        whole = bench.files.content(path_of(name))
        bench.files.flip(path_of(name), 100_000 * 8)
        with pytest.raises(StorageError):
            await read_all(store, 2, 0, 0, 10_000)
        found = await store.mending.examine(name)
        assert found.extents is not None
        (row,) = found.bad_rows
        extent = found.extents.rows[row]
        position, length = int(extent["position"]), int(extent["length"])
        await store.mending.patch(name, extent, whole[position : position + length])
        await store.mending.whole_again(name, "here")
        assert bench.files.content(path_of(name)) == whole
        assert await read_all(store, 2, 0, 0, 10_000) == [batch.data for batch in batches]
        for path in paths_of(name)[1:2]:
            bench.files.flip(path, 100 * 8)
            await store.stored.renewed(name, "it is not")
            assert (await store.mending.examine(name)).extents is None

    Bench(tmp_path).run(scenario)


@pytest.mark.parametrize("seed", range(8))
def test_a_lost_merged_file_is_made_anew_from_what_others_have(tmp_path: Path, seed: int) -> None:
    """As runs in its place, among the merged files of its span; the span is merged again like any other."""

    async def scenario(bench: Bench) -> None:
        merges = Merges(bench, random.Random(seed))
        for _ in range(6):
            await merges.split()
        manifest, mending = bench.store.manifest, bench.store.mending
        inputs = manifest.ranges(0)[: merges.choice.randint(2, 6)]
        spans = {(entry.after, entry.upto) for entry in inputs}
        inputs = [entry for entry in manifest.ranges(0) if (entry.after, entry.upto) in spans]
        await bench.store.changes.merge(0, inputs, merges.merged(0, inputs))
        lost = merges.choice.choice([file for file in manifest.files.values() if file.is_merged])
        for path in paths_of(lost.name):
            await bench.files.remove(path)
        everything = [
            (queue_id, log[0].base_offset, log[-1].last_offset + 1) for queue_id, log in merges.logs.items() if log
        ]
        of_group = [stretch for stretch in everything if stretch[0] % 2 == 0]
        found = await mending.lost(lost.name, 0, of_group, [])
        held = merges.held[lost.name]
        missing = {(queue_id, offset) for queue_id, first, end in found for offset in range(first, end)}
        assert missing == {
            (batch.queue_id, offset) for batch in held for offset in range(batch.base_offset, batch.last_offset + 1)
        }
        half = len(held) // 2
        parts = [part for part in (held[:half], held[half:]) if part]
        made = [await mending.write(lost, [(batch.queue_id, batch.data) for batch in part]) for part in parts]
        merges.held.update({file.name: part for file, part in zip(made, parts, strict=True)})
        await mending.replace(lost.name, {0: made})
        for again in range(3):
            for queue_id, log in merges.logs.items():
                data = [batch.data for batch in log]
                assert await read_all(bench.store, queue_id, queue_id % 2, 0, 700) == data
            if again == 0:
                await bench.restart()
                assert bench.store.manifest.blocks_of(made[0].name, 0) == (inputs[0].after, inputs[-1].upto)
            if again == 1:
                inputs = bench.store.manifest.ranges(0)
                await bench.store.changes.merge(0, inputs, merges.merged(0, inputs))

    Bench(tmp_path).run(scenario)


@pytest.mark.parametrize("seed", range(8))
def test_who_lists_all_extents_misses_none_while_files_are_merged(tmp_path: Path, seed: int) -> None:
    """Those of each queue come oldest first; some may come twice, in a file that others were merged into meanwhile."""

    async def scenario(bench: Bench) -> None:
        choice = random.Random(seed)
        merges = Merges(bench, choice)
        for _ in range(8):
            await merges.split()
        next_offsets = {queue_id: log[0].base_offset for queue_id, log in merges.logs.items() if log}
        async for rows in bench.store.stored.all_rows(groups_at):
            for row in rows:
                queue_id, first, last = int(row["queue_id"]), int(row["base_offset"]), int(row["last_offset"])
                assert first <= next_offsets[queue_id], f"offsets of queue {queue_id} before {first} are left out"
                next_offsets[queue_id] = max(next_offsets[queue_id], last + 1)
            if choice.random() < 0.5:
                await merges.merge(choice.randrange(2))
        assert next_offsets == {queue_id: log[-1].last_offset + 1 for queue_id, log in merges.logs.items() if log}

    Bench(tmp_path).run(scenario)
