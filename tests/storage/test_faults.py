"""The storage role on failing, full and damaged disks: what is acknowledged stays, what cannot be is refused."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from pathlib import Path

import msgspec
import pytest
from tests.storage.small_node import QUEUE, SEGMENT_BYTES, SmallNode, new_batch, outcomes, simulated, topic

from mainstem.model import Durability, Outcome, QueueRange, QueueRead, Sample, Tier
from mainstem.storage.errors import CorruptJournal, FormatError, StorageError, StorageFailed
from mainstem.storage.journal.encoding.format import segment_name, sequence_of

# --- a disk that fails ------------------------------------------------------------------------------------


def test_whoever_fails_when_told_of_an_append_takes_nobody_along(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        def broken(_: object) -> None:
            raise RuntimeError("a bug in a connection")

        first = node.storage.messages.append([new_batch(QUEUE)], -1)
        first.add_done_callback(broken)
        second = node.storage.messages.append([new_batch(QUEUE)], -1)  # rides in the same block
        assert outcomes(await second) == outcomes(await first) == {Outcome.OK}
        assert outcomes(await node.append(new_batch(QUEUE))) == {Outcome.OK}
        assert node.storage.failure is None

    simulated(tmp_path, story)


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_write_acknowledges_nothing_and_ends_all_writing(tmp_path: Path, operation: str) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(3)
        node.disk1.fail(operation, path=".wal")
        failed = node.storage.messages.append([new_batch(QUEUE), new_batch(QUEUE + 9)], -1)
        behind = node.storage.messages.append([new_batch(QUEUE)], 1)
        assert outcomes(await failed) == {Outcome.STORAGE_FAILED, Outcome.UNKNOWN_QUEUE}
        assert outcomes(await behind) == {Outcome.STORAGE_FAILED}
        assert outcomes(await node.append(new_batch(QUEUE))) == {Outcome.STORAGE_FAILED}
        assert isinstance(node.storage.failure, StorageFailed)
        with pytest.raises(StorageFailed):
            await node.storage.queues.truncate({QUEUE: 2})
        with pytest.raises(StorageFailed):
            await node.storage.queues.create([QueueRange(7, 0, 1)])
        assert await node.read_offsets() == [0, 1, 2]
        await node.storage.close()
        node.disk1.crash(keep_bytes=0)
        await node.start()
        assert await node.read_offsets() == [0, 1, 2]
        (result,) = await node.append(new_batch(QUEUE))
        assert (result.outcome, result.base_offset) == (Outcome.OK, 3)

    simulated(tmp_path, story)


def test_a_failed_disk_is_told_once_others_were_asked_to_lead(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        consensus, supervision = node.storage.groups[0].consensus, node.storage.supervision
        give_way, seen = consensus.give_way, []

        def asked() -> bool:
            seen.append(("asked", consensus.leads, supervision.disk_failure))
            return give_way()

        consensus.give_way = asked  # type: ignore[method-assign]
        supervision.ended.add_done_callback(lambda _: seen.append(("told", consensus.leads, supervision.disk_failure)))
        node.disk1.fail("sync", path=".wal")
        assert outcomes(await node.append(new_batch(QUEUE))) == {Outcome.STORAGE_FAILED}
        await asyncio.sleep(0.01)
        reason = supervision.disk_failure
        assert seen == [("asked", True, None), ("told", False, reason)]
        assert reason is not None
        assert "a write failed: [Errno 5]" in reason
        assert f"disk 1 failed, and this node ends: {reason}; put the disk" in (supervision.why_not() or "")
        assert supervision.lost

    simulated(tmp_path, story)


def test_a_sync_that_fails_while_nobody_writes_is_found_out(tmp_path: Path) -> None:
    def lazily_synced(node: SmallNode) -> None:
        node.journal_config = msgspec.structs.replace(
            node.journal_config, durability=Durability.ASYNC, flush_interval_seconds=1.0
        )

    async def story(node: SmallNode) -> None:
        await asyncio.sleep(2.0)
        node.disk1.fail("sync", path=".wal")
        assert outcomes(await node.append(new_batch(QUEUE))) == {Outcome.OK}
        await asyncio.sleep(2.0)
        assert isinstance(node.storage.failure, StorageFailed)
        assert "a sync failed" in (node.storage.supervision.disk_failure or "")

    simulated(tmp_path, story, lazily_synced)


def test_what_is_durable_is_still_split_when_disk_1_has_failed(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(30)
        done = await node.slices()
        node.disk1.fail("write", path=".wal")
        assert outcomes(await node.append(new_batch(QUEUE))) == {Outcome.STORAGE_FAILED}
        assert set(await node.storage.split_log.record(done[0].ranges, done[0].files)) == {"committed"}
        await node.rounds()
        assert await node.read_offsets() == list(range(30))

    simulated(tmp_path, story)


def test_a_disk_that_fails_at_the_start_is_reported(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(2)
        await node.storage.close()
        node.disk1.fail("sync", path=".wal")
        with pytest.raises(StorageFailed):
            await node.start()
        await node.storage.close()
        node.disk1.crash(keep_bytes=0)
        await node.start()
        assert await node.read_offsets() == [0, 1]

    simulated(tmp_path, story)


def test_whoever_waits_when_the_write_loop_is_cancelled_gets_an_answer(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        waiting = node.storage.messages.append([new_batch(QUEUE)], -1)
        command = node.storage.groups[0].propose([])
        for task in asyncio.all_tasks():
            if task.get_name() == "write loop":
                task.cancel()
        assert outcomes(await waiting) == {Outcome.STORAGE_FAILED}
        with pytest.raises(StorageFailed):
            await command
        assert outcomes(await node.append(new_batch(QUEUE))) == {Outcome.STORAGE_FAILED}

    simulated(tmp_path, story)


def test_whoever_waits_for_a_block_that_cannot_be_applied_gets_an_answer(tmp_path: Path) -> None:
    """A programmer's error, in the one place where a block is neither in flight nor applied."""

    async def story(node: SmallNode) -> None:
        def broken(queue_ids: object) -> None:
            raise ArithmeticError("made up")

        node.storage.state.waiters.committed = broken  # type: ignore[method-assign,assignment]
        waiting = node.storage.messages.append([new_batch(QUEUE)], -1)
        assert outcomes(await waiting) == {Outcome.STORAGE_FAILED}
        with pytest.raises(StorageFailed, match="made up"):
            await node.storage.queues.create([QueueRange(7, 0, 1)])

    simulated(tmp_path, story)  # which closes: a loop that has ended is not waited for


def test_what_comes_after_closing_is_refused(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        last = node.storage.messages.append([new_batch(QUEUE)], -1)
        await node.storage.close()
        assert outcomes(await last) == {Outcome.OK}
        assert outcomes(await node.append(new_batch(QUEUE))) == {Outcome.STORAGE_FAILED}
        await node.start()
        assert await node.read_offsets() == [0]

    simulated(tmp_path, story)


def test_a_checkpoint_that_cannot_be_written_does_not_stand_in_the_way_of_closing(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(3)
        node.disk1.fail("write", path="checkpoint/", error=errno.ENOSPC)
        await node.storage.close()
        await node.start()
        assert await node.read_offsets() == [0, 1, 2]

    simulated(tmp_path, story)


# --- a disk that is full ----------------------------------------------------------------------------------


def test_a_full_disk_refuses_and_what_was_under_way_is_completed_later(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(8)
        node.disk1.capacity_bytes = 1 << 34
        filler = (1 << 34) - sum(len(node.disk1.content(path)) for path in node.disk1.paths())
        node.disk1.capacity_bytes -= filler
        # together more than the segment that is written to and the next one, which was taken ahead
        waiting = [node.storage.messages.append([new_batch(QUEUE, 3000)], -1) for _ in range(8)]
        await asyncio.sleep(2)
        assert not any(future.done() for future in waiting)
        assert outcomes(await node.append(new_batch(QUEUE))) == {Outcome.STORAGE_BUSY}
        assert len(await node.read_offsets()) == 8
        node.disk1.capacity_bytes += filler
        results = [(await future)[0] for future in waiting]
        assert [result.base_offset for result in results] == list(range(8, 16))
        await node.rounds()
        assert outcomes(await node.append(new_batch(QUEUE))) == {Outcome.OK}
        await node.crash()
        await node.start()
        assert await node.read_offsets() == list(range(17))

    simulated(tmp_path, story)


def test_closing_on_a_full_disk_ends_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(8)
        node.disk1.capacity_bytes = sum(len(node.disk1.content(path)) for path in node.disk1.paths())
        waiting = [node.storage.messages.append([new_batch(QUEUE, 3000)], -1) for _ in range(8)]
        await node.storage.close()
        assert [outcomes(await future) for future in waiting][-1] == {Outcome.STORAGE_FAILED}
        acknowledged = 8 + sum(outcomes(future.result()) == {Outcome.OK} for future in waiting)
        node.disk1.capacity_bytes = None
        await node.start()
        assert await node.read_offsets() == list(range(acknowledged))

    simulated(tmp_path, story)


def test_disk_pressure_slows_down_then_refuses_then_lets_go(tmp_path: Path) -> None:
    def prepare(node: SmallNode) -> None:
        node.disk1.capacity_bytes = 100 << 20  # slowed below 10 MiB of free space, refused below 2.5

    async def story(node: SmallNode) -> None:
        loop = node.storage.write_loop

        async def with_free(free: float) -> tuple[float, set[Outcome]]:
            used = sum(len(node.disk1.content(path)) for path in node.disk1.paths() if path != "filler")
            node.disk1.put("filler", bytes((100 << 20) - used - int(free * (1 << 20))))
            await asyncio.sleep(2 * node.config.prune_seconds)
            return loop.delay_seconds, outcomes(await node.append(new_batch(QUEUE)))

        assert await with_free(20) == (0.0, {Outcome.OK})
        slow, accepted = await with_free(8)
        slower, accepted_too = await with_free(4)
        assert 0 < slow < slower <= 0.1
        assert accepted == accepted_too == {Outcome.OK}
        assert (await with_free(2))[1] == {Outcome.STORAGE_BUSY}
        assert await node.storage.queues.truncate({QUEUE: 1}) == {QUEUE: 1}, "control blocks are still written"
        assert await with_free(20) == (0.0, {Outcome.OK})

    simulated(tmp_path, story, prepare)


def test_a_small_disk_keeps_room_for_the_segment_that_the_split_needs(tmp_path: Path) -> None:
    """A fortieth of this disk is less than a segment: were it filled to there, nothing could be split any more."""

    def prepare(node: SmallNode) -> None:
        node.disk1.capacity_bytes = 15 * SEGMENT_BYTES

    async def story(node: SmallNode) -> None:
        for _ in range(2):
            accepted = 0
            while outcomes(await node.append(new_batch(QUEUE, 3000))) == {Outcome.OK}:
                accepted += 1
                await asyncio.sleep(0.5)
            assert accepted > 10
            assert set(await node.split()) == {"committed"}
            await node.rounds()
        assert len(node.segments()) < 5
        assert outcomes(await node.append(new_batch(QUEUE))) == {Outcome.OK}

    simulated(tmp_path, story, prepare)


def test_a_file_of_the_pool_that_cannot_be_opened_now_is_taken_later(tmp_path: Path) -> None:
    """No descriptor is left for a while: the pool must not lose a file with every try."""

    def pool(node: SmallNode) -> float:
        samples = {entry.name: entry for entry in node.storage.journal.samples()}
        ready = samples["mainstem_journal_pool_segments"]
        assert isinstance(ready, Sample)
        return ready.value

    async def story(node: SmallNode) -> None:
        await node.fill(90)
        await node.split()
        await node.rounds()
        assert pool(node) > 4
        for _ in range(3):
            node.disk1.fail("open", path=".free", error=errno.EMFILE)
        await node.fill(30)
        assert pool(node) == sum(path.endswith(".free") for path in node.disk1.paths())
        assert await node.read_offsets() == list(range(120))

    simulated(tmp_path, story)


def test_the_journals_own_bound_slows_down_and_refuses_until_it_is_split(tmp_path: Path) -> None:
    def prepare(node: SmallNode) -> None:
        node.config = msgspec.structs.replace(node.config, journal_bytes_max=20 * SEGMENT_BYTES)

    async def story(node: SmallNode) -> None:
        watch = node.storage.disk_watch
        assert watch.pressure < -1, "nothing is known before the first check, and nobody is taken to fill the disk"
        while len(node.segments()) < 19:
            assert outcomes(await node.append(new_batch(QUEUE, 3000))) == {Outcome.OK}
        await asyncio.sleep(2 * node.config.prune_seconds)
        assert outcomes(await node.append(new_batch(QUEUE))) == {Outcome.STORAGE_BUSY}
        assert watch.pressure >= 1
        assert set(await node.split()) == {"committed"}
        await node.rounds()
        assert len(node.segments()) <= 2
        assert watch.pressure <= 0
        assert outcomes(await node.append(new_batch(QUEUE))) == {Outcome.OK}
        assert node.storage.write_loop.delay_seconds == 0.0

    simulated(tmp_path, story, prepare)


def test_a_backlog_leaves_no_room_until_it_is_written_and_refuses_nothing(tmp_path: Path) -> None:
    def prepare(node: SmallNode) -> None:
        node.config = msgspec.structs.replace(node.config, write_backlog_bytes_max=8000)

    async def story(node: SmallNode) -> None:
        for _ in range(50):
            assert outcomes(await node.append(new_batch(99 << 32))) == {Outcome.UNKNOWN_QUEUE}
        messages = node.storage.messages
        assert messages.has_room()  # what is refused does not count
        waiting = []
        room = []
        for _ in range(20):
            room.append(messages.has_room())
            waiting.append(messages.append([new_batch(QUEUE)], -1))
        assert room == [True] * 8 + [False] * 12
        told = asyncio.Event()
        messages.tell_of_room(told.set)
        assert not told.is_set()
        await told.wait()
        assert messages.has_room()
        assert [outcomes(await future) for future in waiting] == [{Outcome.OK}] * 20
        assert node.storage.write_loop.backlog_bytes == 0
        assert messages.appended_batches == 20

    simulated(tmp_path, story, prepare)


def test_while_memory_is_short_there_is_room_for_those_alone_who_bring_little(tmp_path: Path) -> None:
    def prepare(node: SmallNode) -> None:
        node.journal_config = msgspec.structs.replace(
            node.journal_config, segment_bytes=1 << 18, pool_segments=1, durability=Durability.ASYNC
        )

    async def story(node: SmallNode) -> None:
        messages = node.storage.messages
        node.disk1.memory_comes.clear()
        while messages.has_room(0.5):
            assert outcomes(await node.append(new_batch(QUEUE, 3000))) == {Outcome.OK}
        assert node.storage.write_loop.backlog_bytes == 0
        assert messages.has_room()
        assert outcomes(await node.append(new_batch(QUEUE, 3000))) == {Outcome.OK}
        node.disk1.memory_comes.set()
        await asyncio.sleep(0.01)
        assert messages.has_room(0.5)

    simulated(tmp_path, story, prepare)


def test_who_waits_for_room_is_told_when_batches_would_be_refused(tmp_path: Path) -> None:
    def prepare(node: SmallNode) -> None:
        node.config = msgspec.structs.replace(node.config, write_backlog_bytes_max=1000)

    async def story(node: SmallNode) -> None:
        messages = node.storage.messages
        for _ in range(4):
            messages.append([new_batch(QUEUE)], -1)
        assert not messages.has_room()
        messages.refusing = True
        assert messages.has_room()
        assert outcomes(await node.append(new_batch(QUEUE))) == {Outcome.STORAGE_BUSY}
        messages.refusing = False

    simulated(tmp_path, story, prepare)


@pytest.mark.parametrize("refused", [".idx.tmp", "checkpoint/"])
def test_what_a_full_disk_cannot_take_does_not_keep_it_from_being_freed(tmp_path: Path, refused: str) -> None:
    """Neither the index of a new segment nor a new checkpoint is needed to give up older segments."""

    def prepare(node: SmallNode) -> None:
        node.config = msgspec.structs.replace(node.config, checkpoint_seconds=0.1, checkpoint_bytes=30_000)

    async def story(node: SmallNode) -> None:
        await node.fill(60)
        await node.rounds()
        old = node.segments()[:2]
        assert sequence_of(node.storage.checkpointer.position) > old[-1]
        for _ in range(1000):
            node.disk1.fail("write", path=refused, error=errno.ENOSPC)
        await node.fill(30)
        await node.rounds()
        assert node.segments()[:2] == old
        assert set(await node.split()) == {"committed"}
        await node.rounds(5)
        assert not set(node.segments()) & set(old)
        assert sum(path.endswith(".tmp") for path in node.disk1.paths()) <= 1, "tries leave nothing to pile up"
        assert await node.read_offsets() == list(range(90))

    simulated(tmp_path, story, prepare)


# --- damage -----------------------------------------------------------------------------------------------


def test_a_corrupt_block_below_the_durable_mark_is_refused_and_named(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(5)
        await node.crash()
        path = f"journal/{segment_name(1)}"
        second = node.disk1.content(path).find(b"MBK1", 4096 + 200)
        node.disk1.flip(path, (second + 100) * 8)
        with pytest.raises(CorruptJournal, match=segment_name(1)):
            await node.start()
        node.disk1.flip(path, (second + 100) * 8)
        await node.start()
        assert await node.read_offsets() == list(range(5))

    simulated(tmp_path, story)


def test_a_corrupt_checkpoint_is_refused_and_named_and_nothing_is_left_open(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(5)
        await node.storage.close()
        (path,) = [path for path in node.disk1.paths() if path.startswith("checkpoint/")]
        node.disk1.flip(path, 8 * 60)
        for _ in range(2):  # the second attempt finds neither the lock nor the manifest taken
            with pytest.raises(FormatError, match=path):
                await node.start()
        node.disk1.flip(path, 8 * 60)
        await node.start()
        assert await node.read_offsets() == list(range(5))

    simulated(tmp_path, story)


def test_a_lost_journal_segment_is_noticed(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(40)
        await node.storage.close()
        content = node.disk1.content(f"journal/{segment_name(2)}")
        await node.disk1.remove(f"journal/{segment_name(2)}")
        with pytest.raises(StorageError, match=segment_name(2)):
            await node.start()
        node.disk1.put(f"journal/{segment_name(2)}", content)
        await node.start()
        assert await node.read_offsets() == list(range(40))

    simulated(tmp_path, story)


@pytest.mark.parametrize("byte", [7, 300])
def test_a_bad_batch_in_the_journal_fails_that_read_only(tmp_path: Path, byte: int) -> None:
    """Byte 7 is the base offset's, which the batch's own CRC does not cover."""

    async def story(node: SmallNode) -> None:
        await node.fill(3)
        await node.fill(3, QUEUE + 1)
        path = f"journal/{segment_name(1)}"
        batch = node.storage.index.window(node.storage.table.find(QUEUE), 1)[0]
        place = (batch.block.header.payload_position & 0xFFFFFFFF) + batch.position
        node.disk1.flip(path, 8 * (place + byte))
        assert (await node.read(1)).outcome is Outcome.STORAGE_FAILED
        assert (await node.read(0, bytes_max=1)).outcome is Outcome.OK
        assert (await node.read(2)).outcome is Outcome.OK
        both = await node.storage.messages.read([QueueRead(QUEUE, 1, 5000), QueueRead(QUEUE + 1, 0, 5000)], 10_000)
        assert [found.outcome for found in both] == [Outcome.STORAGE_FAILED, Outcome.OK]
        assert outcomes(await node.append(new_batch(QUEUE))) == {Outcome.OK}
        node.disk1.flip(path, 8 * (place + byte))
        assert await node.read_offsets() == [0, 1, 2, 3]

    simulated(tmp_path, story)


def test_a_bad_extent_in_a_run_fails_that_read_only(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(30)
        await node.fill(10, QUEUE + 1)
        await node.split()
        node.journal_config = msgspec.structs.replace(node.journal_config, segment_age_seconds=1.0)
        await node.restart()
        await node.append(new_batch(QUEUE))
        await node.rounds()
        (path,) = [path for path in node.disk2.paths() if path.endswith(".run")]
        node.disk2.flip(path, 8 * 1000)
        assert (await node.read(0)).outcome is Outcome.STORAGE_FAILED
        other = await node.read(0, QUEUE + 1)
        assert (other.outcome, other.tier) == (Outcome.OK, Tier.QUEUE_STORE)
        node.disk2.flip(path, 8 * 1000)
        assert (await node.read(0)).tier is Tier.QUEUE_STORE

    simulated(tmp_path, story)


def test_a_run_that_is_not_what_the_split_says_is_refused(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(5)
        (done,) = await node.slices()
        (file,) = done.files
        lying = msgspec.structs.replace(file, record_count=file.record_count + 1)
        missing = msgspec.structs.replace(file, name="0-0-none.run")
        for files in ((lying,), (missing,)):
            (outcome,) = await node.storage.split_log.record(done.ranges, files)
            assert outcome.startswith("refused: ")
        beyond = [msgspec.structs.replace(done.ranges[0], upto=10_000)]
        (outcome,) = await node.storage.split_log.record(beyond, done.files)
        assert outcome.startswith("refused: block 10000 does not exist")
        elsewhere = [msgspec.structs.replace(done.ranges[0], group=17)]
        (outcome,) = await node.storage.split_log.record(elsewhere, done.files)
        assert outcome.startswith("refused: this node has no write group 17")
        assert await node.storage.split_log.record(done.ranges, done.files) == ["committed"]
        assert await node.storage.split_log.record(done.ranges, done.files) == ["replayed"]

    simulated(tmp_path, story)


# --- what one disk knows and the other does not ------------------------------------------------------------


def test_a_missing_manifest_is_refused_while_there_are_runs(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(5)
        await node.split()
        await node.storage.close()
        right, node.manifest_path = node.manifest_path, tmp_path / "another.sqlite"
        with pytest.raises(StorageError, match="manifest"):
            await node.start()
        assert any(path.endswith(".run") for path in node.disk2.paths())
        node.manifest_path = right
        await node.start()
        assert await node.read_offsets() == list(range(5))

    simulated(tmp_path, story)


def test_a_split_that_cannot_be_written_is_tried_again_and_nothing_is_pruned_meanwhile(tmp_path: Path) -> None:
    def prepare(node: SmallNode) -> None:
        node.store_config = msgspec.structs.replace(node.store_config, index_cache_bytes=0)
        node.config = msgspec.structs.replace(node.config, checkpoint_seconds=0.1)

    async def story(node: SmallNode) -> None:
        await node.fill(40)
        before = node.segments()
        (done,) = await node.slices()
        node.disk2.fail("read", path="runs/", nth=4)  # the first three are those of the check before the split
        with pytest.raises(StorageError, match=r"runs/.*\.run"):
            await node.storage.split_log.record(done.ranges, done.files)
        assert list(node.storage.manifest.failures) == [0]
        assert node.storage.failure is None, "one bad file is no reason to take the node for failed"
        await asyncio.sleep(3)
        assert node.segments() == before
        await asyncio.sleep(5)
        assert not node.storage.manifest.failures
        assert len(node.segments()) <= 2
        assert await node.storage.split_log.record(done.ranges, done.files) == ["replayed"]
        assert await node.read_offsets() == list(range(40))

    simulated(tmp_path, story, prepare)


def test_runs_of_splits_that_wait_for_the_manifest_are_no_orphans(tmp_path: Path) -> None:
    """A manifest that cannot be written for hours: what is decided still names its runs, whose grace is over."""

    def prepare(node: SmallNode) -> None:
        node.topics = [topic(retention_ms=-1)]
        node.config = msgspec.structs.replace(node.config, retention_check_seconds=5.0)
        node.store_config = msgspec.structs.replace(node.store_config, orphan_grace_seconds=20.0)

    async def story(node: SmallNode) -> None:
        await node.fill(10)
        (first,) = await node.slices()
        with sqlite3.connect(node.manifest_path) as other:
            other.execute("CREATE TRIGGER full BEFORE INSERT ON ranges BEGIN SELECT RAISE(ABORT, 'full'); END")
        other.close()
        with pytest.raises(StorageError, match="full"):
            await node.storage.split_log.record(first.ranges, first.files)
        await node.fill(10)
        (second,) = await node.slices()
        with pytest.raises(StorageError, match="full"):
            await node.storage.split_log.record(second.ranges, second.files)
        await asyncio.sleep(100)
        with sqlite3.connect(node.manifest_path) as other:
            other.execute("DROP TRIGGER full")
        other.close()
        await asyncio.sleep(20)
        assert node.storage.failure is None
        for done in (first, second):
            assert await node.storage.split_log.record(done.ranges, done.files) == ["replayed"]
        assert {f"runs/{file.name}" for file in first.files + second.files} <= set(node.disk2.paths())

    simulated(tmp_path, story, prepare)


@pytest.mark.parametrize("crash", [False, True])
def test_a_lost_journal_goes_on_behind_what_is_stored(tmp_path: Path, crash: bool) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(20)
        await node.storage.queues.truncate({QUEUE: 5})
        await node.split()
        await node.restart()
        epoch = node.offsets().leader_epoch
        await node.storage.close()
        for path in node.disk1.paths():
            await node.disk1.remove(path)
        await node.start()
        assert node.offsets().leader_epoch > epoch, "clients refuse to go back to an older epoch"
        assert await node.read_offsets() == list(range(20))
        (result,) = await node.append(new_batch(QUEUE))
        assert result.base_offset == 20
        if crash:
            await node.crash()
            await node.start()
        else:
            await node.restart()
        await node.fill(1)
        assert await node.read_offsets() == list(range(22))
        assert set(await node.split()) == {"committed"}

    simulated(tmp_path, story)


def test_changes_to_queues_are_durable_under_async_durability(tmp_path: Path) -> None:
    def prepare(node: SmallNode) -> None:
        node.journal_config = msgspec.structs.replace(
            node.journal_config, durability=Durability.ASYNC, flush_interval_seconds=1e6
        )

    async def story(node: SmallNode) -> None:
        await node.fill(5)
        await node.storage.queues.truncate({QUEUE: 3})
        await node.fill(5)
        epoch = node.offsets().leader_epoch
        await node.crash()
        await node.start()
        offsets = node.offsets()
        assert (offsets.log_start, offsets.end) == (3, 5)
        assert offsets.leader_epoch > epoch, "an epoch that records were served under is not used again"

    simulated(tmp_path, story, prepare)
