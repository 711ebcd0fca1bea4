"""Files of a node's own disk 2 that are lost for good are given up: readers pass over what they had, and over no more,
behind restarts and crashes as well."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from tests.fakes.files import PowerLoss
from tests.storage.queue_store.runs import Batch, write_merged
from tests.storage.remote.tiered_node import as_batch, tier, with_bucket
from tests.storage.small_node import QUEUE, SmallNode, simulated, topic
from tests.storage.upkeep.test_given_up_files import records

from mainstem.model import Outcome
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.queue_store.reading.open_files import KnownFile
from mainstem.storage.store_files.store_file import StoreFile, path_of
from mainstem.storage.upkeep import lost_store_files
from mainstem.storage.upkeep.given_up_files import NotLost
from mainstem.storage.upkeep.lost_store_files import NAME
from mainstem.storage.upkeep.remote_files import TierFiles

OTHER = QUEUE + 1
BY = "an operator"


async def damage(node: SmallNode, name: str, how: str) -> None:
    path = path_of(name)
    content = bytes(node.disk2.content(path))
    if how == "missing":
        await node.disk2.remove(path)
    else:
        node.disk2.put(path, content[: len(content) // 2] if how == "cut" else content[:200] + b"x" + content[201:])


async def give_up(node: SmallNode, *names: str) -> None:
    found = [one for name in names for one in await node.storage.judge_lost(name, BY)]
    await node.storage.lost_files.give_up(found)


async def split_off(node: SmallNode, count: int, queue_id: int = QUEUE) -> str:
    """Publish so much, and split it into a file of its own."""
    known = set(node.storage.queue_store.manifest.files)
    await node.fill(count, queue_id)
    assert set(await node.split()) == {"committed"}
    (name,) = set(node.storage.queue_store.manifest.files) - known
    return name


async def merge(node: SmallNode, name: str) -> StoreFile:
    """Merge all runs into one file on disk 2."""
    log = node.storage.merge_log
    work = await log.work(lambda: True, (), drain=True)
    assert work.merge_id
    batches: list[Batch] = []
    for entry in work.inputs:
        index = await node.storage.store_work.stored.open_files.index(KnownFile(entry.file.name))
        for queue_id in index.queues()[0].tolist():
            offset = 0
            while (found := await node.storage.queue_store.history.read(queue_id, 0, offset, 1)) is not None:
                batches += [as_batch(queue_id, bytes(batch)) for batch in found.batches]
                offset = found.next_offset
    file = write_merged(node.disk2, name, work.group, dict.fromkeys(batches), level=work.level)
    assert await log.record(work.merge_id, [file.message()]) == "merged"
    return file


async def upload_merged(node: SmallNode, file: StoreFile, name: str) -> None:
    """Have a copy of a merged file count in the remote tier."""
    (entry,) = node.storage.queue_store.manifest.entries(file.name)
    (uploaded,) = await tier(node, [entry], prefix=name)
    assert uploaded.record_count == file.record_count


async def leave_the_journal(node: SmallNode) -> None:
    await split_off(node, 20, QUEUE + 2)
    await node.rounds()


def three_queues(node: SmallNode) -> None:
    node.topics = [topic(1, 3)]


def test_a_file_is_noted_that_has_no_records_but_stands_for_lost_ones(tmp_path: Path) -> None:
    """As one that was put in the place of blocks which could not be split, or one of which compaction left nothing."""

    async def story(node: SmallNode) -> None:
        name = await split_off(node, 5)
        await leave_the_journal(node)
        await damage(node, name, "missing")
        ((group, file),) = await node.storage.judge_lost(name, BY)
        await node.storage.lost_files.give_up([(group, msgspec.structs.replace(file, record_count=0, batch_bytes=0))])
        assert [it.file.name for it in node.storage.lost_files.given_up()] == [name]
        assert node.storage.lost_files.may_have_lost(group, QUEUE)
        assert await records(node, QUEUE) == ([], 5), "readers do not wait at its end"

    simulated(tmp_path, story, three_queues)


@pytest.mark.parametrize("how", ["missing", "cut", "rotten"])
@pytest.mark.parametrize("seed", range(3))
def test_readers_get_all_that_is_not_given_up_and_nothing_else(tmp_path: Path, how: str, seed: int) -> None:
    rng = random.Random(seed)

    async def story(node: SmallNode) -> None:
        has: dict[str, list[int]] = {}
        for _ in range(rng.randint(2, 5)):
            first = node.offsets().end
            name = await split_off(node, rng.randint(1, 8))
            has[name] = list(range(first, node.offsets().end))
        await leave_the_journal(node)
        lost = [name for name in has if rng.random() < 0.5] or [rng.choice(list(has))]
        for name in lost:
            await damage(node, name, how)
        await node.restart()
        assert (await node.read(has[lost[0]][0])).outcome is Outcome.STORAGE_FAILED
        end = node.offsets().end
        await give_up(node, *lost)
        kept = [offset for name, offsets in has.items() if name not in lost for offset in offsets]
        for again in range(3):
            assert await records(node, QUEUE) == (kept, end), again
            assert node.offsets().log_start == 0
            assert not set(lost) & set(node.storage.queue_store.manifest.files)
            assert [one.file.name for one in node.storage.lost_files.given_up()] == lost
            if again == 1:
                node.disk1.crash(keep_bytes=0)
            await node.restart()
        await node.fill(3)
        assert (await records(node, QUEUE))[0] == [*kept, *range(end, end + 3)], "no offset is given again"

    simulated(tmp_path, story, three_queues)


def test_a_queue_of_which_all_is_lost_is_read_to_its_end(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        name = await split_off(node, 5, OTHER)
        await leave_the_journal(node)
        await damage(node, name, "missing")
        await give_up(node, name)
        assert await records(node, OTHER) == ([], 5)
        await node.restart()
        assert await records(node, OTHER) == ([], 5)
        assert (await records(node, QUEUE + 2))[1] == 20

    simulated(tmp_path, story, three_queues)


def test_files_that_are_given_up_at_the_same_time_are_all_noted(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        names = [await split_off(node, 3, queue_id) for queue_id in (QUEUE, OTHER)]
        await leave_the_journal(node)
        for name in names:
            await damage(node, name, "missing")
        await asyncio.gather(*(give_up(node, name) for name in names))
        assert {one.file.name for one in node.storage.lost_files.given_up()} == set(names)
        await node.restart()
        for queue_id in (QUEUE, OTHER):
            assert await records(node, queue_id) == ([], 3)

    simulated(tmp_path, story, three_queues)


def test_what_is_whole_or_somebody_elses_or_needed_is_not_given_up(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        name = await split_off(node, 5)
        await leave_the_journal(node)
        storage = node.storage
        assert storage.lost_files.names(path_of(name)) == storage.lost_files.names(name) == name
        assert storage.lost_files.names("runs/another.run") is None
        with pytest.raises(NotLost, match="it is not lost, every byte of it was read"):
            await storage.judge_lost(name, BY)
        await damage(node, name, "rotten")
        with pytest.raises(NotLost, match=r"node 2 has write group 0, too.*mainstem cluster replace"):
            await storage.lost_files.judge(name, BY, lambda group: [2], lambda name: False)
        with pytest.raises(NotLost, match="under way needs it"):
            await storage.lost_files.judge(name, BY, lambda group: [], lambda name: True)
        assert name in storage.queue_store.manifest.files
        assert NAME not in node.disk1.paths()
        await give_up(node, name)
        with pytest.raises(NotLost, match="counts no more"):
            await storage.judge_lost(name, BY)

    simulated(tmp_path, story, three_queues)


def test_a_crash_anywhere_gives_up_all_or_nothing_and_can_be_done_again(tmp_path: Path) -> None:
    for after in range(1, 12):
        directory = tmp_path / str(after)
        directory.mkdir()

        async def story(node: SmallNode, after: int = after) -> None:
            name = await split_off(node, 5)
            await leave_the_journal(node)
            await damage(node, name, "missing")
            lost = await node.storage.judge_lost(name, BY)
            disk = node.disk1 if after % 2 else node.disk2
            disk.cut_power(after=after)
            with suppress(PowerLoss, OSError, StorageError):
                await node.storage.lost_files.give_up(lost)
            await node.crash()
            await node.start()
            if name in node.storage.queue_store.manifest.files:
                assert (await node.read(0)).outcome is Outcome.STORAGE_FAILED
                await give_up(node, name)
            assert await records(node, QUEUE) == ([], 5)
            assert len(node.storage.lost_files.given_up()) == 1

        simulated(directory, story, three_queues)


def test_of_a_file_that_the_remote_tier_has_only_a_copy_goes(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        for queue_id in (QUEUE, OTHER):
            await split_off(node, 5, queue_id)
        uploaded = await merge(node, "uploaded.pack")
        await upload_merged(node, uploaded, "tiered")
        await leave_the_journal(node)
        alone = await merge(node, "alone.pack")
        assert set(node.storage.queue_store.manifest.files) == {uploaded.name, alone.name}
        for file in (uploaded, alone):
            await damage(node, file.name, "missing")
        await node.restart()
        assert await records(node, QUEUE) == (list(range(5)), 5), "the tier stands in for it"
        ((_group, copy),) = await node.storage.judge_lost(uploaded.name, BY)
        assert (copy.record_count, copy.batch_bytes) == (0, 0)
        assert copy.fault.endswith("; the remote tier has all of its records")
        ((_group, lost),) = await node.storage.judge_lost(alone.name, BY)
        assert lost.record_count == alone.record_count
        await give_up(node, uploaded.name, alone.name)
        assert not node.storage.queue_store.manifest.files
        for _ in range(2):
            assert [one.file.name for one in node.storage.lost_files.given_up()] == [alone.name]
            for queue_id in (QUEUE, OTHER):
                assert await records(node, queue_id) == (list(range(5)), 5)
            await node.restart()

    def prepare(node: SmallNode) -> None:
        three_queues(node)
        with_bucket(node)

    simulated(tmp_path, story, prepare)


def test_notes_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        node.disk1.put(NAME, b"[{")
        with pytest.raises(FormatError, match=f"{NAME} cannot be read.*restore it"):
            await lost_store_files.LostStoreFiles.open(
                node.disk1, node.disk2, node.storage.queue_store, node.clock, TierFiles(node.storage.remote, None)
            )
        node.disk1.put(NAME, msgspec.json.encode([]))
        await node.restart()

    simulated(tmp_path, story)
