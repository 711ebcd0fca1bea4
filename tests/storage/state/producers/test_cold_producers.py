"""Idempotent producers beyond memory, on a whole storage role: known again after they have gone, whatever happens to
the node and to its files; and nobody is pushed out by those whom a client invents."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
from tests.harness.patience import PATIENCE_SECONDS
from tests.storage.small_node import QUEUE, SmallNode, new_batch, simulated, topic

from mainstem.model import AppendResult, FeatureLevel, Outcome
from mainstem.storage.errors import FormatError
from mainstem.storage.state.producers import awaited_producers
from mainstem.storage.state.producers.cold_producers import FILES_MIN
from mainstem.storage.state.producers.producer_files import DIRECTORY, PAGE_BYTES, ROWS_PER_PAGE, Pieces, pieces_of
from mainstem.storage.state.producers.producer_limits import ProducerLimits, fair_share, value_of
from mainstem.storage.state.producers.producer_rows import STATE, Name, known_at, lost_row

FEW = 4


def few(node: SmallNode) -> None:
    node.config = msgspec.structs.replace(node.config, producers_in_memory=FEW)


def told(directory: Path, story: Callable[[SmallNode], Awaitable[None]]) -> None:
    simulated(directory, story, few)


def sent(producer_id: int, sequence: int = 0, queue_id: int = QUEUE) -> Any:
    return new_batch(queue_id, 10, producer=(producer_id, 0, sequence))


async def fill(node: SmallNode, count: int, sequence: int = 0, queue_id: int = QUEUE) -> list[int]:
    """A batch of each of so many producers; their offsets."""
    offsets = []
    for producer_id in range(count):
        (result,) = await node.append(sent(producer_id, sequence, queue_id))
        while result.outcome is Outcome.STORAGE_BUSY:  # unknown, and memory is full
            await asyncio.sleep(0.3)
            (result,) = await node.append(sent(producer_id, sequence, queue_id))
        assert result.outcome is Outcome.OK, result
        offsets.append(result.base_offset)
    return offsets


async def settle(node: SmallNode) -> None:
    """Until memory holds no more than it is to."""
    await asyncio.sleep(1)
    assert len(node.storage.groups[0].producers) <= FEW


def files_of(node: SmallNode) -> list[str]:
    return [path for path in node.disk1.paths() if path.startswith(f"{DIRECTORY}/")]


def test_whoever_has_gone_from_memory_is_known_again(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        offsets = await fill(node, 60)
        await settle(node)
        for producer_id, offset in enumerate(offsets):
            (again,) = await node.append(sent(producer_id))
            assert (again.outcome, again.base_offset) == (Outcome.OK, offset), "a duplicate"
        assert node.offsets().high_watermark == 60
        assert await fill(node, 60, 1) == list(range(60, 120))
        assert await node.read_offsets() == list(range(120))

    told(tmp_path, story)


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_a_cold_producers_batches_keep_their_order(tmp_path: Path, acks: int) -> None:
    async def story(node: SmallNode) -> None:
        await fill(node, 60)
        await settle(node)
        pending = [node.storage.messages.append([sent(3, sequence)], acks) for sequence in range(1, 4)]
        await asyncio.sleep(0)
        pending += [node.storage.messages.append([sent(3, sequence)], acks) for sequence in range(4, 6)]
        found = [(await one)[0] for one in pending]
        assert [result.outcome for result in found] == [Outcome.OK] * 5
        assert [result.base_offset for result in found] == [60, 61, 62, 63, 64]

    told(tmp_path, story)


def test_the_rest_of_a_request_does_not_depend_on_it(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await fill(node, 60)
        await settle(node)
        results = await node.append(new_batch(QUEUE + 1), sent(3), sent(3, 1), sent(3, 7), sent(99), new_batch(QUEUE))
        assert [(result.outcome, result.base_offset) for result in results] == [
            (Outcome.OK, 0),
            (Outcome.OK, 3),
            (Outcome.OK, 62),
            (Outcome.SKIPPED_SEQUENCE, -1),
            (Outcome.OK, 60),
            (Outcome.OK, 61),
        ]

    told(tmp_path, story)


@pytest.mark.parametrize("saved", [True, False], ids=["behind a checkpoint", "without one"])
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "crashed"])
def test_they_are_known_after_a_start(tmp_path: Path, saved: bool, clean: bool) -> None:
    async def story(node: SmallNode) -> None:
        offsets = await fill(node, 60)
        await settle(node)
        if saved:
            await node.storage.checkpointer.save()
            offsets = (await fill(node, 30, 1)) + offsets[30:]
            await settle(node)
        if clean:
            await node.restart()
        else:
            await node.crash()
            await node.start()
        for producer_id, offset in enumerate(offsets):
            (again,) = await node.append(sent(producer_id, int(saved and producer_id < 30)))
            assert (again.outcome, again.base_offset) == (Outcome.OK, offset), producer_id

    told(tmp_path, story)


@pytest.mark.parametrize("after", range(1, 150, 11))
def test_a_crash_at_any_change_of_the_disk_forgets_nobody(tmp_path: Path, after: int) -> None:
    """While states are written, files merged, and checkpoints saved."""
    known: dict[int, tuple[int, int]] = {}

    async def busy(node: SmallNode) -> None:
        for sequence in range(1, 5):
            for producer_id in range(20):
                (result,) = await node.append(sent(producer_id, sequence))
                if result.outcome is not Outcome.OK:
                    return
                known[producer_id] = sequence, result.base_offset
            await node.storage.producers.keep_within()
            await node.storage.checkpointer.save()

    async def story(node: SmallNode) -> None:
        known.update((producer_id, (0, offset)) for producer_id, offset in enumerate(await fill(node, 20)))
        node.disk1.cut_power(after=after)
        work = asyncio.ensure_future(busy(node))
        await asyncio.wait([work], timeout=PATIENCE_SECONDS)
        await node.crash()
        await node.start()
        for producer_id, (sequence, offset) in known.items():
            (again,) = await node.append(sent(producer_id, sequence))
            assert (again.outcome, again.base_offset) == (Outcome.OK, offset), (producer_id, sequence)

    told(tmp_path, story)


def test_what_no_checkpoint_names_is_removed(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        for sequence in range(12):
            await fill(node, 20, sequence)
            await node.storage.producers.keep_within()
            await node.storage.checkpointer.save()
            assert len(files_of(node)) <= FILES_MIN + 1
        node.disk1.put(f"{DIRECTORY}/00000000000000000001.producers", b"of a crash")
        node.disk1.put(f"{DIRECTORY}/00000000000000000002.producers.tmp", b"of a crash")
        named = files_of(node)
        await node.restart()
        assert set(files_of(node)) < set(named)

    told(tmp_path, story)


async def merge(node: SmallNode) -> None:
    """All files into one."""
    node.storage.producers.merged_whole_at[0] = -1e9
    await node.storage.producers.keep_within()


def test_files_that_a_checkpoint_names_stay_until_another_one_is_saved(tmp_path: Path) -> None:
    """A crash in the meantime starts from that checkpoint, whether it was just being saved or long ago."""

    async def story(node: SmallNode) -> None:
        producers = node.storage.producers
        await fill(node, 30)
        await settle(node)
        named = await producers.flush()
        first = set(files_of(node))
        await merge(node)
        assert first < set(files_of(node)), "while it is being saved"
        producers.saved(named)
        await producers.remove_unnamed()
        assert first < set(files_of(node))
        named = await producers.flush()
        producers.saved(named)
        second = set(files_of(node)) - first
        await fill(node, 30, 1)
        await settle(node)
        await merge(node)
        assert second < set(files_of(node)), "once it is saved"
        await producers.remove_unnamed()
        assert second < set(files_of(node))
        assert not first & set(files_of(node))
        await node.storage.checkpointer.save()
        assert not second & set(files_of(node))

    told(tmp_path, story)


def test_files_that_a_snapshot_is_made_of_stay_until_it_is_made(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        producers = node.storage.producers
        await fill(node, 3 * ROWS_PER_PAGE)
        await settle(node)
        found: list[int] = []
        async for rows in producers.all_states(0):
            found += rows["producer_id"].tolist()
            before = set(files_of(node))
            await merge(node)
            await node.storage.checkpointer.save()
            assert before <= set(files_of(node))
        assert sorted(found) == list(range(3 * ROWS_PER_PAGE))
        await producers.remove_unnamed()
        assert len(files_of(node)) == 1

    told(tmp_path, story)


def test_whoever_is_asked_for_while_others_are_read_waits_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything there is to be read is there when the first goes on; of the second nothing was."""

    async def story(node: SmallNode) -> None:
        waiting, offsets = node.storage.awaited_producers, await fill(node, 60)
        await settle(node)
        later: list[asyncio.Future[list[AppendResult]]] = []

        async def and_asked_for_another(files: Any, sources: Any, names: Collection[Name]) -> Pieces:
            if not later:
                later.append(asyncio.ensure_future(node.append(sent(7))))
                await asyncio.sleep(0)
                assert waiting.waiting == 2
                assert list(names) == [(QUEUE, 3)]
            return await pieces_of(files, sources, names)

        monkeypatch.setattr(awaited_producers, "pieces_of", and_asked_for_another)
        assert (await node.append(sent(3)))[0].base_offset == offsets[3]
        assert (await later[0])[0].base_offset == offsets[7]
        assert node.offsets().high_watermark == 60

    told(tmp_path, story)


def test_whoever_was_read_from_files_that_are_others_by_now_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that came to it meanwhile, and has gone from memory again, is in a file that was not looked at."""

    async def story(node: SmallNode) -> None:
        offsets = await fill(node, 60)
        await settle(node)
        reads = 0

        async def and_files_changed(files: Any, sources: Any, names: Collection[Name]) -> Pieces:
            nonlocal reads
            reads += 1
            if reads > 1:
                return await pieces_of(files, sources, names)
            await merge(node)
            return await pieces_of(files, [], names)

        monkeypatch.setattr(awaited_producers, "pieces_of", and_files_changed)
        assert (await node.append(sent(3)))[0].base_offset == offsets[3]
        assert reads == 2

    told(tmp_path, story)


def test_a_cluster_of_the_first_level_has_no_files_and_no_bound(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        node.level = FeatureLevel.FIRST
        await fill(node, 60)
        await node.storage.checkpointer.save()
        assert len(node.storage.groups[0].producers) == 60
        assert files_of(node) == []
        (checkpoint,) = [path for path in node.disk1.paths() if path.endswith(".checkpoint")]
        assert node.disk1.content(checkpoint)[:8] == b"MSCHKPT3", "as the programs of the level read it"
        node.level = FeatureLevel.HARDENED
        await settle(node)
        await fill(node, 60, 1)
        await node.storage.checkpointer.save()
        (checkpoint,) = [path for path in node.disk1.paths() if path.endswith(".checkpoint")]
        assert node.disk1.content(checkpoint)[:8] == b"MSCHKPT4"

    told(tmp_path, story)


def test_invented_producers_push_out_their_own(tmp_path: Path) -> None:
    def prepare(node: SmallNode) -> None:
        node.config = msgspec.structs.replace(node.config, producers_in_memory=50, producers_max=200)

    async def story(node: SmallNode) -> None:
        for sequence in range(2):
            await fill(node, 30, sequence)
        beside = [(await node.append(sent(producer_id, 0, QUEUE + 1)))[0] for producer_id in range(5)]
        for producer_id in range(1000, 2000):
            results = await node.append(sent(producer_id))
            while results[0].outcome is Outcome.STORAGE_BUSY:
                await asyncio.sleep(0.3)
                results = await node.append(sent(producer_id))
        await asyncio.sleep(1)
        storage = node.storage
        assert len(storage.groups[0].producers) <= 50
        assert storage.producers.filed <= 250 + 50
        assert storage.producers.forgotten >= 700
        for producer_id in range(30):
            (again,) = await node.append(sent(producer_id, 1))
            assert (again.outcome, again.base_offset) == (Outcome.OK, 30 + producer_id)
        for producer_id, first in enumerate(beside):
            (again,) = await node.append(sent(producer_id, 0, QUEUE + 1))
            assert again == first, "of another queue than the invented ones, though it sent a single batch"

    simulated(tmp_path, story, prepare)


def expiring(node: SmallNode) -> None:
    node.config = msgspec.structs.replace(
        node.config, producers_in_memory=FEW, producer_expiry_seconds=100, retention_check_seconds=10
    )


def test_what_has_expired_or_was_deleted_is_forgotten(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        node.topics.append(topic(2))
        await node.restart()
        await fill(node, 30)
        await fill(node, 30, 0, 2 << 32)
        await settle(node)
        node.deleted.add(2)
        await node.storage.queues.delete([2])
        await asyncio.sleep(30)
        assert 26 <= node.storage.producers.filed <= 30
        await asyncio.sleep(100)
        assert node.storage.producers.filed == len(node.storage.groups[0].producers) == 0
        assert (await node.append(sent(3)))[0].base_offset == 30, "as unknown as any other"

    simulated(tmp_path, story, expiring)


def test_who_has_expired_is_unknown_before_its_file_is_merged(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await fill(node, 30)
        await settle(node)
        node.storage.producers.merged_whole_at[0] = 1e9
        await asyncio.sleep(111)  # until a look that comes long enough after one that saw them
        (result,) = await node.append(sent(3))
        assert (result.outcome, result.base_offset) == (Outcome.OK, 30)

    simulated(tmp_path, story, expiring)


# --- files that rot ---------------------------------------------------------------------------------------


async def outcomes_of_retries(node: SmallNode, count: int) -> list[AppendResult]:
    return [(await node.append(sent(producer_id)))[0] for producer_id in range(count)]


def test_a_damaged_page_costs_a_node_that_is_alone_its_producers_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(node: SmallNode) -> None:
        await fill(node, 3 * ROWS_PER_PAGE)
        await settle(node)
        producers = node.storage.producers
        await producers.flush()
        producers.merged_whole_at[0] = -1e9
        await producers.keep_within()
        await node.storage.checkpointer.save()
        (path,) = files_of(node)
        node.disk1.flip(path, 8 * (2 * PAGE_BYTES + 100))
        await outcomes_of_retries(node, 3 * ROWS_PER_PAGE)
        await asyncio.sleep(1)
        found = await outcomes_of_retries(node, 3 * ROWS_PER_PAGE)
        unknown = {number for number, result in enumerate(found) if result.outcome is Outcome.UNKNOWN_PRODUCER}
        assert unknown <= set(range(ROWS_PER_PAGE, 2 * ROWS_PER_PAGE))
        assert len(unknown) >= ROWS_PER_PAGE - FEW, "but who is in memory still"
        assert all(
            (result.outcome, result.base_offset) == (Outcome.OK, number)
            for number, result in enumerate(found)
            if number not in unknown
        )
        assert f"{path}: the page of producers at byte {2 * PAGE_BYTES} is damaged" in caplog.text
        assert node.storage.producers.damaged.lost == len(unknown)

    told(tmp_path, story)


def test_names_that_are_damaged_are_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(node: SmallNode) -> None:
        offsets = await fill(node, 60)
        await settle(node)
        await node.storage.close()
        for path in files_of(node):
            node.disk1.flip(path, 8 * (len(node.disk1.content(path)) - 3))
        await node.start()
        assert [result.base_offset for result in await outcomes_of_retries(node, 60)] == offsets
        assert "header or names are damaged" in caplog.text

    told(tmp_path, story)


@pytest.mark.parametrize("damage", ["missing", "of another"])
def test_a_file_that_is_not_the_one_named_is_refused(tmp_path: Path, damage: str) -> None:
    async def story(node: SmallNode) -> None:
        await fill(node, 60)
        await settle(node)
        await fill(node, FEW, 1)
        await node.storage.close()
        path, other = files_of(node)[-2:]
        content = node.disk1.content(path)
        if damage == "missing":
            await node.disk1.remove(path)
        else:
            node.disk1.put(path, node.disk1.content(other))
        with pytest.raises(FormatError, match=f"{path}: .* restore write_dir as a whole, or have the node replaced"):
            await node.start()
        node.disk1.put(path, content)
        await node.start()

    told(tmp_path, story)


def test_a_disk_that_cannot_be_read_now_is_asked_again(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        offsets = await fill(node, 60)
        await settle(node)
        node.disk1.fail("read", path=DIRECTORY, error=errno.EIO)
        found = await outcomes_of_retries(node, 60)
        busy = [result for result in found if result.outcome is Outcome.STORAGE_BUSY]
        assert len(busy) == 1
        assert [result.base_offset for result in await outcomes_of_retries(node, 60)] == offsets

    told(tmp_path, story)


def test_a_full_disk_leaves_them_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(node: SmallNode) -> None:
        for _ in range(40):
            node.disk1.fail("write", path=DIRECTORY, error=errno.ENOSPC)
        await fill(node, 2 * FEW)
        await asyncio.sleep(3)
        assert len(node.storage.groups[0].producers) == 2 * FEW
        assert "producers stay in memory, as they cannot be written" in caplog.text
        await asyncio.sleep(60)
        await settle(node)
        assert [result.base_offset for result in await outcomes_of_retries(node, 2 * FEW)] == list(range(2 * FEW))

    told(tmp_path, story)


def test_who_waits_when_the_node_stops_is_answered(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await fill(node, 60)
        await settle(node)
        pending = node.storage.messages.append([sent(3, 1)], -1)
        await node.storage.close()
        assert (await pending)[0].outcome is Outcome.STORAGE_FAILED
        assert (await node.storage.messages.append([sent(4, 1)], -1))[0].outcome is Outcome.STORAGE_FAILED
        await node.start()

    told(tmp_path, story)


# --- the bound --------------------------------------------------------------------------------------------


def test_shares_are_fair() -> None:
    assert fair_share(numpy.array([5, 100, 7]), 30) == 18
    assert fair_share(numpy.array([5, 7]), 30) == 7
    assert fair_share(numpy.array([5, 7]), 1) == 0


def test_of_a_queue_that_has_too_many_the_best_are_kept() -> None:
    rows = numpy.zeros(1010, STATE)
    rows["queue_id"][:10] = 5
    rows["queue_id"][10:] = 6
    rows["producer_id"] = numpy.arange(1010)
    rows["last_timestamp_ms"] = 1000
    rows["count"] = 1
    rows["count"][500:520] = 2
    kept = ProducerLimits(rows["queue_id"], value_of(rows), 60).keep(rows)
    assert kept[:10].all()
    assert kept[500:520].all()
    assert kept.sum() == 60


def test_a_producer_that_the_sender_of_a_snapshot_has_lost_is_lost_to_its_receiver(tmp_path: Path) -> None:
    """Its next batch may be in the log already."""

    async def story(node: SmallNode) -> None:
        await fill(node, 3)
        known = b"".join([part.tobytes() async for part in node.storage.producers.all_states(0)])
        lost = lost_row((QUEUE, 7), node.clock.now_ms())
        await node.storage.producers.replace(0, known_at(node.storage.groups[0].applied_index, known + lost))
        for sequence in (0, 1):
            (result,) = await node.append(sent(7, sequence))
            assert result.outcome is Outcome.UNKNOWN_PRODUCER
        assert await fill(node, 3, 1) == [3, 4, 5], "the others are known"

    told(tmp_path, story)
