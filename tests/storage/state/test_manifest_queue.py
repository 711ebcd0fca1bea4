"""Splits: what counts is decided in log order from the log alone, and written to the manifest in order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.simulated_loop import SimulatedLoop
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.storage.errors import StorageError
from mainstem.storage.journal.encoding.format import KIND_CONTROL, KIND_DATA, BlockHeader
from mainstem.storage.queue_store.changes.splits import SplitOutcome
from mainstem.storage.queue_store.manifest.database.manifest_database import WriteGroupSplit
from mainstem.storage.state.manifest_queue import RETRY_SECONDS, ManifestQueue, SplitImage


class Store:
    """The queue store as far as splits go: one position per group, and faults to come."""

    def __init__(self, positions: Sequence[int] = (0, 0)) -> None:
        self.positions = list(positions)
        self.recorded: list[tuple[int, int, int, int]] = []
        self.faults: list[Exception] = []
        self.bad_groups: set[int] = set()
        self.steps = 0
        """Durable ones."""
        self.splits = self.changes = self
        """It plays both parts of the store."""

    def split_position(self, group: int) -> int:
        return self.positions[group]

    async def record_all(self, splits: Sequence[WriteGroupSplit]) -> list[SplitOutcome | StorageError]:
        await asyncio.sleep(0.1)
        if self.faults:
            raise self.faults.pop()
        self.steps += 1
        return [self._record(split) for split in splits]

    def _record(self, split: WriteGroupSplit) -> SplitOutcome | StorageError:
        if split.group in self.bad_groups:
            return StorageError(f"the run of write group {split.group} is damaged")
        if split.upto <= self.positions[split.group]:
            return SplitOutcome.REPLAY
        if split.after != self.positions[split.group]:
            return SplitOutcome.GAP
        self.positions[split.group] = split.upto
        self.recorded.append((split.group, split.after, split.upto, split.applied_index))
        return SplitOutcome.RECORDED

    async def supersede(self, group: int, position: int, ranges: object, kept_upto: int) -> None:
        await asyncio.sleep(0.1)
        self.positions[group] = position


def queue(store: Store) -> ManifestQueue:
    return ManifestQueue(store, len(store.positions))  # type: ignore[arg-type]


class Log:
    """One group's blocks, applied to a queue one after the other; 'd' is data, 'c' control."""

    def __init__(self, manifest: ManifestQueue, group: int = 0) -> None:
        self.manifest = manifest
        self.group = group
        self.index = 0

    def block(self, kind: int) -> int:
        self.index += 1
        self.manifest.block_applied(BlockHeader(kind, self.group, 1, self.index, 8, 0, 0, 0, 0, 0, 0, 0))
        return self.index

    def blocks(self, kinds: str) -> None:
        for kind in kinds:
            self.block(KIND_DATA if kind == "d" else KIND_CONTROL)

    def decide(self, after: int, upto: int) -> str:
        return self.manifest.decide(self.group, after, upto, ()).split(":")[0]


def test_a_split_continues_replays_or_is_refused() -> None:
    log = Log(queue(Store()))
    log.blocks("ddd")
    assert log.decide(0, 2) == "committed"
    assert log.manifest.reached(0) == 2
    assert log.decide(0, 2) == "replayed"
    assert log.decide(1, 3) == "refused"
    assert log.decide(3, 3) == "refused"
    assert log.decide(2, 3) == "committed"
    assert log.manifest.reached(0) == log.index


def test_a_split_of_blocks_that_do_not_exist_is_refused() -> None:
    log = Log(queue(Store()))
    log.blocks("d")
    assert log.decide(0, 2) == "refused", "there is no block 2"
    assert log.decide(0, 1_000_000) == "refused"
    assert log.decide(0, 1) == "committed"


def test_blocks_without_records_are_never_left_to_split() -> None:
    log = Log(queue(Store()))
    log.blocks("ccdcdd")
    assert log.manifest.reached(0) == 2
    assert log.decide(2, 3) == "committed"
    assert log.manifest.reached(0) == 4, "block 4 is no data either, although data follows it"
    assert log.decide(5, 6) == "refused", "block 5 is data"
    assert log.decide(4, 6) == "committed"
    log.blocks("cc")
    assert log.manifest.reached(0) == log.index


@given(
    st.text("dc", min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8),
    st.integers(0, 40),
)
def test_a_restart_from_any_checkpoint_decides_and_stands_as_before(
    kinds: str, commits: list[tuple[int, int]], checkpoint_at: int
) -> None:
    """However far the manifest is ahead of it, replaying the rest of the log ends in the same state."""

    def play(manifest: ManifestQueue, first: int) -> list[SplitImage]:
        log = Log(manifest)
        log.index = first
        images = []
        remaining = list(commits)
        for place, kind in enumerate(kinds):
            if place >= first:
                log.blocks(kind)
                if kind == "c" and place % 3 == 0 and remaining:
                    log.decide(*remaining[place % len(remaining)])
            images.append(manifest.dump()[0])
        return images

    store = Store([0])
    live = queue(store)
    images = play(live, 0)
    store.positions = [images[-1].decided]
    from_manifest_alone = queue(store)
    assert play(from_manifest_alone, 0)[-1] == images[-1]
    checkpoint_at = min(checkpoint_at, len(images) - 1)
    restarted = queue(store)
    restarted.load([images[checkpoint_at]])
    assert play(restarted, checkpoint_at + 1)[-1] == images[-1]


def test_writes_follow_in_order_and_failures_are_tried_again() -> None:
    store = Store()
    store.faults = [StorageError("full")]
    manifest = queue(store)
    log, other = Log(manifest), Log(manifest, 1)

    async def story() -> None:
        task = asyncio.get_running_loop().create_task(manifest.run())
        await manifest.drained([0, 1])
        log.blocks("dddd")
        other.blocks("d")
        assert log.decide(0, 2) == other.decide(0, 1) == log.decide(2, 4) == "committed"
        assert manifest.written(0) == 0, "decided is not written"
        for _ in range(2):  # at once and again, as long as it fails
            with pytest.raises(StorageError, match="full"):
                await manifest.drained([0, 1])
        assert manifest.failure is not None
        await asyncio.sleep(RETRY_SECONDS + 1)
        await manifest.drained([0, 1])
        assert manifest.failure is None
        assert store.recorded == [(1, 0, 1, 1), (0, 0, 2, 4), (0, 2, 4, 4)]
        assert store.steps == 1, "all of it in one durable step"
        task.cancel()
        await asyncio.wait([task])

    run(story())


def test_a_manifest_that_lost_splits_is_reported_and_nobody_waits_for_ever() -> None:
    store = Store()
    manifest = queue(store)
    log = Log(manifest)

    async def story() -> None:
        task = asyncio.get_running_loop().create_task(manifest.run())
        log.blocks("dd")
        assert log.decide(0, 1) == "committed"
        await manifest.drained([0, 1])
        store.positions = [0, 0]
        assert log.decide(1, 2) == "committed"
        waiting = asyncio.gather(manifest.drained([0, 1]), manifest.drained([0, 1]), return_exceptions=True)
        assert [type(outcome) for outcome in await waiting] == [StorageError, StorageError]
        store.positions = [1, 0]
        await asyncio.sleep(RETRY_SECONDS + 1)
        await manifest.drained([0, 1])
        assert log.decide(2, 2) == "replayed"
        log.blocks("d")
        assert log.decide(2, log.index) == "committed"
        drained = asyncio.ensure_future(manifest.drained([0, 1]))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task, drained])
        assert isinstance(drained.exception(), StorageError), "closing answers those who wait"

    run(story())


def test_a_group_that_cannot_be_written_keeps_no_other_one_waiting() -> None:
    store = Store()
    store.bad_groups = {0}
    manifest = queue(store)
    log, other = Log(manifest), Log(manifest, 1)

    async def story() -> None:
        task = asyncio.get_running_loop().create_task(manifest.run())
        log.blocks("dd")
        other.blocks("dddd")
        assert log.decide(0, 1) == log.decide(1, 2) == other.decide(0, 1) == "committed"
        await manifest.drained([1])
        with pytest.raises(StorageError, match="write group 0 is damaged"):
            await manifest.drained([0, 1])
        await manifest.settled()
        assert (store.positions, manifest.failure) == ([0, 1], None), "the manifest itself is well"
        assert list(manifest.failures) == [0]
        for upto in range(2, 5):  # each wakes the writer; what failed is not tried any more often for that
            assert other.decide(upto - 1, upto) == "committed"
            await manifest.drained([1])
        (image, _other) = manifest.as_written(manifest.dump())
        assert image == SplitImage(0, 2, [(1, 2)]), "a checkpoint has nothing as split that the manifest has not"
        store.bad_groups = set()
        await asyncio.sleep(RETRY_SECONDS + 1)
        await manifest.drained([0])
        assert store.recorded[-2:] == [(0, 0, 1, 2), (0, 1, 2, 2)]
        assert not manifest.failures
        task.cancel()
        await asyncio.wait([task])

    run(story())


def test_splits_decided_before_a_snapshot_come_to_nothing() -> None:
    store = Store()
    manifest = queue(store)
    log = Log(manifest)

    async def story() -> None:
        task = asyncio.get_running_loop().create_task(manifest.run())
        log.blocks("dd")
        assert log.decide(0, 1) == "committed"
        forgetting = asyncio.ensure_future(manifest.forget(0))
        await asyncio.gather(forgetting, manifest.drained([0]))
        assert store.positions == [0, 0], "the group begins anew: what was decided of the old one is void"
        task.cancel()
        await asyncio.wait([task])

    run(story())


def run(story: Coroutine[Any, Any, None]) -> None:
    loop = SimulatedLoop()
    try:
        loop.run_until_complete(story)
    finally:
        loop.close()


def test_what_is_decided_and_not_written_is_not_in_the_runs_yet() -> None:
    """A snapshot is made of, and the journal pruned by, what the manifest has. Behind that lies what holds nothing."""

    async def story() -> None:
        manifest = queue(Store())
        log = Log(manifest)
        log.blocks("ddc")
        assert manifest.stored(0) == 0
        assert manifest.decide(0, 0, 2, []) == "committed"
        assert (manifest.reached(0), manifest.stored(0)) == (3, 0)
        writing = asyncio.ensure_future(manifest.run())
        await manifest.drained([0])
        assert (manifest.written(0), manifest.stored(0)) == (2, 3)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)

    asyncio.run(story())


def test_a_checkpoint_has_no_more_split_than_the_manifest_whatever_is_decided() -> None:
    """A split that is decided and lost with a crash was never confirmed, and is split again."""

    async def story() -> None:
        manifest = queue(Store())
        log = Log(manifest)
        log.blocks("ddcd")
        assert manifest.decide(0, 0, 2, []) == "committed"
        images = manifest.dump()
        assert images[0].decided == 2
        written = manifest.as_written(images)
        assert (written[0].decided, written[0].applied) == (0, 4)
        after = queue(Store())
        after.load(written)
        assert after.reached(0) == 0
        assert after.decide(0, 0, 2, []) == "committed"

    asyncio.run(story())


def test_behind_a_split_that_cannot_be_written_nothing_of_its_group_is() -> None:
    """The store answers for each split by itself; of one group they count in their order."""

    tried: list[list[int]] = []

    class Between(Store):
        async def record_all(self, splits: Sequence[WriteGroupSplit]) -> list[SplitOutcome | StorageError]:
            tried.append([split.upto for split in splits])
            damaged: list[SplitOutcome | StorageError] = [StorageError("damaged"), SplitOutcome.RECORDED]
            return damaged

    async def story() -> None:
        manifest = queue(Between())
        log = Log(manifest)
        log.blocks("dd")
        for upto in (1, 2):
            assert manifest.decide(0, upto - 1, upto, []) == "committed"
        writing = asyncio.ensure_future(manifest.run())
        await asyncio.sleep(1.5 * RETRY_SECONDS)
        assert list(manifest.failures) == [0]
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        assert tried == [[1, 2], [1, 2]], "both are written again"

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(story())


def test_what_was_decided_before_a_snapshot_or_a_departure_comes_to_nothing() -> None:
    async def story() -> None:
        store = Store()
        manifest = queue(store)
        log = Log(manifest)
        log.blocks("dd")
        assert manifest.decide(0, 0, 2, []) == "committed"
        await manifest.forget(0)  # by its position alone the split would go on from there
        writing = asyncio.ensure_future(manifest.run())
        await asyncio.wait_for(manifest.drained([0]), PATIENCE_SECONDS)
        assert store.recorded == []
        assert manifest.written(0) == 0
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)

    asyncio.run(story())
