"""The split part is what disk 2 has, for a checkpoint on disk 1 as well; and a node alone that has lost disk 1 goes on
behind what disk 2 has of its queues, if all of that can be read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.fakes.files import SimulatedFiles
from tests.storage.small_node import QUEUE, SmallNode, new_batch, simulated

from mainstem.model import Outcome
from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.manifest.database.manifest_database import WriteGroupSplit
from mainstem.storage.store_files.store_file import RUNS_DIRECTORY


async def split_twice(node: SmallNode) -> list[str]:
    """Two runs, each with five batches of a queue; their paths, oldest first."""
    paths: list[str] = []
    for _ in range(2):
        await node.fill(5)
        assert set(await node.split()) == {"committed"}
        await node.storage.checkpointer.save()
        paths += sorted(
            path for path in node.disk2.paths() if path.startswith(f"{RUNS_DIRECTORY}/") and path not in paths
        )
    assert len(paths) == 2
    return paths


def test_it_goes_on_behind_the_last_offset_there_is(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await split_twice(node)
        await node.storage.close()
        node.disk1 = SimulatedFiles(5)
        await node.start()
        (result,) = await node.append(new_batch(QUEUE))
        assert (result.outcome, result.base_offset) == (Outcome.OK, 10)
        assert await node.read_offsets() == list(range(11))

    simulated(tmp_path, story)


@pytest.mark.parametrize("which", [0, 1])
def test_a_run_that_cannot_be_read_keeps_offsets_from_being_given_out_twice(tmp_path: Path, which: int) -> None:
    """If the newest is damaged, nobody knows how far the queue went; it is named, and counts when it is put right."""

    async def story(node: SmallNode) -> None:
        path = (await split_twice(node))[which]
        await node.storage.close()
        node.disk1 = SimulatedFiles(5)
        whole = node.disk2.content(path)
        node.disk2.flip(path, 8 * (len(whole) - 70))
        with pytest.raises(StorageError, match=path.removeprefix(f"{RUNS_DIRECTORY}/")):
            await node.start()
        node.disk2.put(path, whole)
        await node.start()
        (result,) = await node.append(new_batch(QUEUE))
        assert (result.outcome, result.base_offset) == (Outcome.OK, 10)

    simulated(tmp_path, story)


def test_a_split_that_never_reached_the_manifest_is_made_again_behind_a_checkpoint_that_was_saved_since(
    tmp_path: Path,
) -> None:
    """The checkpoint says what is split as far as the manifest has it; else nobody would split these blocks again."""

    async def story(node: SmallNode) -> None:
        async def refused(commits: Sequence[WriteGroupSplit]) -> list[StorageError]:
            return [StorageError("as the test says") for _ in commits]

        node.storage.queue_store.splits.record_all = refused  # type: ignore[method-assign, assignment]
        await node.fill(5)
        splitting = asyncio.ensure_future(node.split())
        await asyncio.wait([splitting], timeout=1)
        await node.storage.checkpointer.save()
        await node.crash()
        await node.start()
        assert set(await node.split()) == {"committed"}
        assert await node.read_offsets() == list(range(5))

    simulated(tmp_path, story)
