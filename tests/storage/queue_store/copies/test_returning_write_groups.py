"""Write groups that leave a node and come back to it, with retention in between; nodes that hold few of the groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import numpy
import pytest
from tests.storage.queue_store.runs import make_batch, write_run
from tests.storage.queue_store.test_store import GONE, Bench, log_starts, read_all

from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.queue_store.changes.file_retention import EverIn
from mainstem.storage.queue_store.changes.splits import SplitOutcome
from mainstem.storage.store_files.store_file import StoreFile

HERE, AWAY = 0, 1
"""Two write groups: queues 1 and 2 are theirs."""


def ever_in(queue_ids: QueueIds, groups: Collection[int]) -> numpy.ndarray:
    return numpy.isin(queue_ids.astype(numpy.int64) - 1, list(groups))


async def shared_run(bench: Bench) -> StoreFile:
    run = write_run(bench.files, "shared.run", [make_batch(1, 0), *(make_batch(2, offset) for offset in range(3))])
    for group in (HERE, AWAY):
        await bench.store.splits.record(group, 0, 5, [run], applied_index=5)
    return run


class Sender:
    """Another node that has the run."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.content = bench.files.content(f"runs/{name}")
        self.asked = 0

    async def fetch(self, name: str) -> AsyncIterator[bytes]:
        self.asked += 1
        yield self.content


@pytest.mark.parametrize("restarted", [False, True])
def test_a_snapshot_brings_back_what_retention_dropped(tmp_path: Path, restarted: bool) -> None:
    async def scenario(bench: Bench) -> None:
        run = await shared_run(bench)
        sender = Sender(bench, run.name)
        await bench.store.changes.supersede(AWAY, 0, [])  # the group leaves the node
        dropped = await bench.store.retention.retain(log_starts({}), ever_in=ever_in)
        assert [file.name for file in dropped] == [run.name]
        if restarted:
            await bench.restart()
        bench.store.orphans.hold(run.name)
        assert await bench.store.copies.copy(run, sender.fetch), "what was dropped is fetched again"
        await bench.store.changes.supersede(AWAY, 9, [(0, 5, run)])
        bench.store.orphans.let_go(run.name)
        for _ in range(2):
            assert [entry[2].name for entry in bench.store.manifest.spans(AWAY).described()] == [run.name]
            found = await read_all(bench.store, 2, AWAY, 0, 1000)
            assert found == [make_batch(2, offset).data for offset in range(3)], "a hole in the group's history"
            await bench.store.retention.retain(log_starts({1: GONE, 2: 0}), ever_in=ever_in)
            await bench.restart()
        assert sender.asked == 1

    Bench(tmp_path).run(scenario)


def test_a_group_that_comes_back_while_retention_looks_keeps_its_runs(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        run = await shared_run(bench)

        async def meanwhile() -> None:
            await bench.store.changes.supersede(AWAY, 9, [(0, 5, run)])

        assert await bench.store.retention.retain(log_starts({}), meanwhile, ever_in) == [], (
            "it was gone when it was looked at"
        )
        assert bench.runs() == {run.name}
        assert await bench.store.retention.retain(log_starts({2: 0}), ever_in=ever_in) == []
        assert len(await read_all(bench.store, 2, AWAY, 0, 1000)) == 3

    Bench(tmp_path).run(scenario)


def test_extents_of_groups_that_are_not_here_keep_no_run(tmp_path: Path) -> None:
    """A run that was copied for one group: of the others in it nobody ever says here that they are dead."""

    async def scenario(bench: Bench) -> None:
        run = write_run(bench.files, "copied.run", [make_batch(1, 0), make_batch(2, 0)])
        await bench.store.changes.supersede(HERE, 5, [(0, 5, run)])
        only_here_is_dead = log_starts({1: 1, 2: 0})
        assert await bench.store.retention.retain(log_starts({1: 0, 2: 0}), ever_in=ever_in) == []
        dropped = await bench.store.retention.retain(only_here_is_dead, ever_in=ever_in)
        assert [file.name for file in dropped] == [run.name]
        assert bench.runs() == set()

    Bench(tmp_path).run(scenario)


def test_what_was_dropped_for_some_groups_is_missed_by_a_split_of_another(tmp_path: Path) -> None:
    """A split that comes after all is refused, and its blocks are split again: they are still in the journal."""

    async def scenario(bench: Bench) -> None:
        run = write_run(bench.files, "shared.run", [make_batch(1, 0), make_batch(2, 0)])
        await bench.store.splits.record(HERE, 0, 5, [run], applied_index=5)
        await bench.store.retention.retain(log_starts({1: 1, 2: 0}), ever_in=ever_in)
        with pytest.raises(StorageError, match=r"shared\.run"):
            await bench.store.splits.verify([run])
        with pytest.raises(StorageError, match=r"shared\.run"):
            await bench.store.splits.record(AWAY, 0, 5, [run], applied_index=5)
        assert bench.store.splits.split_position(AWAY) == 0
        again = write_run(bench.files, "again.run", [make_batch(2, 0)])
        assert await bench.store.splits.record(AWAY, 0, 5, [again], applied_index=5) is SplitOutcome.RECORDED

    Bench(tmp_path).run(scenario)


def test_a_split_for_another_group_saves_a_run_that_was_found_dead(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        run = write_run(bench.files, "shared.run", [make_batch(1, 0), make_batch(2, 0)])
        await bench.store.splits.record(HERE, 0, 5, [run], applied_index=5)

        async def meanwhile() -> None:
            await bench.store.splits.record(AWAY, 0, 5, [run], applied_index=5)

        assert await bench.store.retention.retain(log_starts({1: 1, 2: 0}), meanwhile, ever_in) == []
        assert len(await read_all(bench.store, 2, AWAY, 0, 1000)) == 1

    Bench(tmp_path).run(scenario)


def test_a_run_that_is_being_dropped_is_not_verified(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        run = write_run(bench.files, "shared.run", [make_batch(1, 0), make_batch(2, 0)])
        await bench.store.splits.record(HERE, 0, 5, [run], applied_index=5)
        refused = 0
        dropping = asyncio.ensure_future(bench.store.retention.retain(log_starts({1: 1, 2: 0}), ever_in=ever_in))
        while not dropping.done():
            bench.store.orphans.hold(run.name)
            try:
                await bench.store.splits.verify([run])
            except StorageError:
                refused += 1
            bench.store.orphans.let_go(run.name)
            await asyncio.sleep(0)
        assert refused, "between the decision to drop it and its end"
        assert [file.name for file in await dropping] == [run.name]

    Bench(tmp_path).run(scenario)


def test_every_group_counts_in_a_run_without_a_placement(tmp_path: Path) -> None:
    everything: EverIn | None = None

    async def scenario(bench: Bench) -> None:
        await shared_run(bench)
        assert await bench.store.retention.retain(log_starts({1: 1, 2: 0}), ever_in=everything) == []

    Bench(tmp_path).run(scenario)
