"""The journal lets go of what is split only when a manifest that lost this knowledge would be found out; and a node at
rest comes to rest: what is split leaves although nobody writes any more, and nothing is written for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from tests.storage.small_node import SmallNode, simulated

from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.manifest.store_mark import MARK_NAME

BATCHES = 40
"""Some segments full."""

ROUNDS = 6


def checkpoints_every_second(node: SmallNode) -> None:
    node.config = msgspec.structs.replace(node.config, checkpoint_seconds=1.0)


class _Manifest(NamedTuple):
    """The bytes of a manifest: what sqlite has in its file, and what in the log that it writes ahead."""

    file: bytes
    log: bytes

    @classmethod
    def of(cls, path: Path) -> _Manifest:
        return cls(path.read_bytes(), Path(f"{path}-wal").read_bytes())

    def put(self, path: Path) -> None:
        path.write_bytes(self.file)
        Path(f"{path}-wal").write_bytes(self.log)


async def end_of_manifest(node: SmallNode, cut: bool) -> None:
    """Split everything, have the node prune, close it, and have it find a manifest whose last change is there, or is
    cut off."""
    before = _Manifest.of(node.manifest_path)
    assert await node.split() == ["committed"]
    await node.rounds(ROUNDS)
    found = _Manifest.of(node.manifest_path)
    assert len(found.log) > len(before.log), "the change is in the log that sqlite writes ahead"
    await node.storage.close()
    node.manifest_path = node.manifest_path.with_name("found.sqlite")
    (found._replace(log=found.log[: len(before.log)]) if cut else found).put(node.manifest_path)


def failing_marks(node: SmallNode, count: int) -> None:
    """The next writes of the store's mark fail."""
    for _ in range(count):
        node.disk2.fail("write", path=MARK_NAME)


@pytest.mark.parametrize("cut", [True, False])
def test_a_split_whose_mark_cannot_be_written_stays_in_the_journal(tmp_path: Path, cut: bool) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(BATCHES)
        segments = node.segments()
        failing_marks(node, 100)
        await end_of_manifest(node, cut)
        assert node.segments() == segments
        assert node.storage.pruning.pruned_segments == 0
        node.disk2.crash(keep_all=True)  # with it, the faults are gone
        await node.start()
        assert await node.read_offsets() == list(range(BATCHES))
        await node.rounds(ROUNDS)
        assert await node.split() == (["committed"] if cut else [])
        await node.rounds(ROUNDS)
        assert node.storage.pruning.pruned_segments
        assert await node.read_offsets() == list(range(BATCHES))

    simulated(tmp_path, story, checkpoints_every_second)


def test_pruning_goes_on_when_the_mark_can_be_written_again(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(BATCHES)
        failing_marks(node, 2)
        assert await node.split() == ["committed"]
        await node.rounds(ROUNDS)
        assert node.storage.pruning.pruned_segments
        assert await node.read_offsets() == list(range(BATCHES))

    simulated(tmp_path, story, checkpoints_every_second)


def test_a_manifest_without_a_split_that_was_pruned_is_refused(tmp_path: Path) -> None:
    """The mark missed the change at first, and was written again before anything was recycled."""

    async def story(node: SmallNode) -> None:
        await node.fill(BATCHES)
        failing_marks(node, 2)
        path = node.manifest_path
        await end_of_manifest(node, cut=True)
        assert node.storage.pruning.pruned_segments
        with pytest.raises(StorageError, match="it is an old copy"):
            await node.start()
        node.manifest_path = path
        await node.start()

    simulated(tmp_path, story, checkpoints_every_second)


def test_a_mark_that_lags_at_a_start_is_written_before_anything_is_recycled(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(BATCHES)
        old = node.disk2.content(MARK_NAME)
        assert await node.split() == ["committed"]
        await node.storage.close()
        node.disk2.put(MARK_NAME, old)  # the power went between the manifest's change and the mark's
        await node.start()
        recycled = node.storage.journal.recycle
        marks: list[bytes] = []

        async def recycle(before: int) -> list[int]:
            marks.append(node.disk2.content(MARK_NAME))
            return await recycled(before)

        node.storage.journal.recycle = recycle  # type: ignore[method-assign]
        await node.rounds(ROUNDS)
        assert marks
        assert old not in marks

    simulated(tmp_path, story, checkpoints_every_second)


def test_the_last_segment_leaves_too_and_the_journal_comes_to_rest(tmp_path: Path) -> None:
    def prepare(node: SmallNode) -> None:
        node.journal_config = msgspec.structs.replace(node.journal_config, segment_age_seconds=2.0)
        node.config = msgspec.structs.replace(node.config, prune_seconds=0.5, checkpoint_seconds=0.5)

    async def story(node: SmallNode) -> None:
        await node.fill(5)
        for done in await node.slices():
            assert set(await node.storage.split_log.record(done.ranges, done.files)) <= {"committed", "replayed"}
        await asyncio.sleep(20)
        journal, journal_map = node.storage.journal, node.storage.state.journal_map
        assert not any(journal_map.holds_data(segment.sequence) for segment in journal.segments())
        assert await node.read_offsets() == [0, 1, 2, 3, 4]
        end = journal.end
        await asyncio.sleep(60)
        assert journal.end == end, "no block begets another"

    simulated(tmp_path, story, prepare)
