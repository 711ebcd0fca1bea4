"""Merges as a splitter asks for them: choice, bounds, recording, and what becomes of them when anything goes away."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.handler_of import handler_of
from tests.storage.queue_store.changes.test_merged_files import QUEUES, Merges, groups_at
from tests.storage.queue_store.runs import Batch, make_batch, store_paths, write_merged
from tests.storage.queue_store.test_store import Bench, log_starts, read_all

from mainstem.kernel import crc32c
from mainstem.model import Topic, TopicSettings
from mainstem.rpc.handlers import RpcCall
from mainstem.rpc.messages.merge import (
    MERGE_DAMAGED,
    MERGE_LIVE,
    MERGE_WORK,
    RECORD_MERGE,
    AskLive,
    AskMerge,
    LiveReply,
    MergeDamage,
    MergeGone,
    MergeWork,
    RecordMerge,
)
from mainstem.rpc.messages.split import EarlierSplitter, HeldLease, LeaseLost, MergeWaits
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.placement import Placement, Stay
from mainstem.storage.queue_store.changes.merges import as_clean_as
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.split.merge_log import LocalMergeLog
from mainstem.storage.split.merge_service import MergeService
from mainstem.storage.split.split_lease import LEASE_SECONDS, SplitLease
from mainstem.storage.store_files.store_file import StoreFile, paths_of, segment_name

NEVER = numpy.iinfo(numpy.int64).max
LINES = MergeLines(packed_bytes=1, level_one_bytes=1 << 20, wait_bytes_max=1 << 20, level_two_bytes=1 << 20)
"""All runs are worth merging if they are to be drained, together…"""
TINY_LINES = MergeLines(packed_bytes=1, level_one_bytes=1, wait_bytes_max=1, level_two_bytes=1)
"""…or everything always is."""


class Node:
    """A store with two write groups, and the service over it."""

    def __init__(self, directory: str | Path, choice: random.Random, lines: MergeLines = LINES) -> None:
        self.bench = Bench(directory)
        self.lines = lines
        self.choice = choice
        self.merges = Merges(self.bench, choice)
        self.starts: dict[int, int] = dict.fromkeys(range(QUEUES), 0)
        self.confirmed = 0
        self.allowed = True
        self.lease = SplitLease(self.bench.clock, 1, lambda: uuid.UUID(int=choice.getrandbits(128)).hex)
        self.held: HeldLease

    def run(self, story: Callable[[Node], Awaitable[None]]) -> None:
        async def whole(bench: Bench) -> None:
            self.opened()
            await story(self)
            await self.service.close()

        self.bench.run(whole)

    def opened(self) -> None:
        settings = TopicSettings(segment_bytes=9)
        topic = Topic(name="orders", number=0, topic_id=uuid.UUID(int=1), partitions=QUEUES, settings=settings)
        self.log = LocalMergeLog(
            self.bench.store, 2, self.bounds_in, lambda queue_ids: log_starts(self.starts)(queue_ids), self.confirm,
            lambda: [topic], lambda one: "forever", lambda: self.allowed, self.lines,
            lambda: uuid.UUID(int=self.choice.getrandbits(128)),
        )  # fmt: skip
        self.service = MergeService(self.log, self.lease)
        lease = self.lease.acquire("splitter", yields=False)
        self.held = HeldLease(lease.lease_id, lease.epoch)

    def bounds_in(self, group: int, queue_ids: QueueIds) -> tuple[numpy.ndarray, numpy.ndarray]:
        here = groups_at(queue_ids, queue_ids) == group
        return numpy.where(here, 0, NEVER), numpy.where(here, NEVER, 0)

    async def confirm(self) -> None:
        self.confirmed += 1

    async def ask(self, *kept: str, drain: bool = True, joins: bool = True) -> MergeWork:
        request = AskMerge(lease=self.held, drain=drain, kept=kept, joins=joins)
        for _ in range(100):
            reply = await handler_of(self.service, MERGE_WORK)(RpcCall(request, b"", "splitter"))
            if reply.message.merge_id or not reply.message.more:
                break
        return msgspec.msgpack.decode(msgspec.msgpack.encode(reply.message), type=MergeWork)

    async def live(self, merge_id: str, queue_ids: Sequence[int]) -> dict[int, tuple[int, int]]:
        content = numpy.array(queue_ids, "<u8").tobytes()
        reply = await handler_of(self.service, MERGE_LIVE)(RpcCall(AskLive(merge_id), content, "splitter"))
        assert isinstance(reply.message, LiveReply)
        (told,) = reply.buffers
        assert reply.message.crc == crc32c(told)
        starts, ends = numpy.frombuffer(bytes(told), "<i8").reshape(2, -1).tolist()
        return dict(zip(queue_ids, zip(starts, ends, strict=True), strict=True))

    async def record(self, merge_id: str, files: Sequence[StoreFile]) -> str:
        request = RecordMerge(lease=self.held, merge_id=merge_id, files=tuple(file.message() for file in files))
        request = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=RecordMerge)
        outcome: str = (await handler_of(self.service, RECORD_MERGE)(RpcCall(request, b"", "splitter"))).message.outcome
        return outcome

    async def made(self, work: MergeWork, *, leave_out: int | None = None) -> list[StoreFile]:
        """The outputs that a task makes of the work, without one of the live batches if so wanted."""
        bounds = await self.live(work.merge_id, range(QUEUES))
        batches: list[Batch] = []
        for given_input in work.inputs:
            for batch in self.merges.held[given_input.file.name]:
                start, end = bounds[batch.queue_id]
                if batch.last_offset >= start and batch.base_offset < end:
                    batches.append(batch)
        batches.sort()
        if leave_out is not None:
            del batches[leave_out]
        files = []
        for first in range(0, len(batches), 5):
            part = batches[first : first + 5]
            self.merges.merges += 1
            name = f"{self.merges.merges}.pack"
            files.append(write_merged(self.bench.files, name, work.group, part, level=work.level))
            self.merges.held[name] = part
        return files


def test_what_is_merged_is_compacted_as_far_as_all_of_it_was() -> None:
    def file(clean_ms: int, horizon_ms: int) -> StoreFile:
        return StoreFile(
            name="a.pack", retention_class="compact", bytes=1, batch_bytes=1, batch_count=1, record_count=1,
            queue_count=1, min_timestamp=0, max_timestamp=0, clean_ms=clean_ms, horizon_ms=horizon_ms,
        )  # fmt: skip

    new = file(-1, -1)
    assert as_clean_as([file(9, -1), file(7, 80)], new) == file(7, 80)
    assert as_clean_as([file(9, 70), file(-1, -1), file(8, 60)], new) == file(-1, 60)
    assert as_clean_as([file(9, -1)], file(3, 3)) == file(9, -1)


@given(st.integers(0, 2**32))
def test_f_at_random_all_is_merged_while_log_starts_move_and_nothing_live_is_lost(seed: int) -> None:
    choice = random.Random(seed)

    async def story(node: Node) -> None:
        merges = node.merges
        for _ in range(choice.randint(1, 12)):
            for _ in range(choice.randint(0, 3)):
                await merges.split()
            work = await node.ask(drain=choice.random() < 0.7)
            if not work.merge_id:
                continue
            if choice.random() < 0.2:
                continue  # the task died, and its work is given again
            files = await node.made(work)
            if choice.random() < 0.5:
                queue_id = choice.randrange(QUEUES)
                if merges.logs[queue_id]:
                    moved = choice.choice(merges.logs[queue_id]).base_offset
                    node.starts[queue_id] = max(node.starts[queue_id], moved)
            if choice.random() < 0.3:
                dropped = await node.bench.store.retention.retain(log_starts(node.starts))
                assert not {file.name for file in dropped} & {given.file.name for given in work.inputs}
            assert await node.record(work.merge_id, files) == "merged"
            assert await node.record(work.merge_id, files) == "merged", "the answer was lost"
        for queue_id, log in merges.logs.items():
            expected = [batch.data for batch in log if batch.last_offset >= node.starts[queue_id]]
            found = await read_all(node.bench.store, queue_id, queue_id % 2, node.starts[queue_id], 1000)
            assert found == expected
        for _ in range(3):
            node.bench.clock.advance(QueueStoreConfig().orphan_grace_seconds)
            await node.bench.store.retention.retain(log_starts(node.starts))
        assert store_paths(node.bench.files) == merges.named()

    with tempfile.TemporaryDirectory() as directory:
        Node(directory, choice, choice.choice([LINES, TINY_LINES])).run(story)


def test_outputs_that_lack_something_live_are_refused(tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        for _ in range(4):
            await node.merges.split(0, 2, 2, 4, 6, 0, 2)
        work = await node.ask()
        before = node.bench.store.manifest.spans(work.group)
        whole = await node.made(work)
        count = sum(len(node.merges.held[file.name]) for file in whole)
        for place in range(count):
            outcome = await node.record(work.merge_id, await node.made(work, leave_out=place))
            assert outcome.startswith("refused: queue 0x"), (place, outcome)
        assert "is not of write group" in await node.record(
            work.merge_id, [msgspec.structs.replace(whole[0], level=0), *whole[1:]]
        )
        assert (await node.record(work.merge_id, whole[1:])).startswith("refused: queue 0x")
        assert node.bench.store.manifest.spans(work.group) is before
        assert await node.record(work.merge_id, whole) == "merged"

    Node(tmp_path, random.Random(1)).run(story)


def test_what_is_merged_is_held_while_the_lease_is_in_force_and_no_longer(tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        await node.merges.split(0, 2, 4)
        await node.merges.split(0, 2, 4)
        work = await node.ask()
        names = {given.file.name for given in work.inputs}
        node.starts = dict.fromkeys(range(QUEUES), 1 << 40)
        retention = node.bench.store.retention
        assert await retention.retain(log_starts(node.starts)) == []
        files = await node.made(work)
        assert files == [], "nothing in them is live any more"
        node.bench.clock.advance(LEASE_SECONDS)
        await retention.retain(log_starts(node.starts))
        assert {file.name for file in await retention.retain(log_starts(node.starts))} == names
        with pytest.raises(LeaseLost):
            await node.record(work.merge_id, files)
        with pytest.raises(MergeGone):
            await node.live(work.merge_id, [0])
        lease = node.lease.acquire("another", yields=False)
        node.held = HeldLease(lease.lease_id, lease.epoch)
        assert (await node.record(work.merge_id, files)).startswith("refused: this merge is not under way")

    Node(tmp_path, random.Random(2)).run(story)


def test_files_of_which_nothing_is_live_are_merged_into_none(tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        for _ in range(3):
            await node.merges.split(0, 2, 4)
        work = await node.ask()
        node.starts = dict.fromkeys(range(QUEUES), 1 << 40)
        assert await node.record(work.merge_id, []) == "merged"
        assert node.confirmed == 0
        assert len(node.bench.store.manifest.spans(work.group)) == 0

    Node(tmp_path, random.Random(2)).run(story)


def test_what_was_finished_early_is_no_orphan_while_its_merge_is_under_way(tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        for _ in range(3):
            await node.merges.split(0, 2, 4)
        work = await node.ask()
        files = await node.made(work)
        retention, grace = node.bench.store.retention, QueueStoreConfig().orphan_grace_seconds
        await retention.retain(log_starts(node.starts))
        for _ in range(int(3 * grace // 10)):
            node.bench.clock.advance(10)
            node.lease.renew(node.held)
        await retention.retain(log_starts(node.starts))
        await retention.retain(log_starts(node.starts))
        assert await node.record(work.merge_id, files) == "merged"
        assert {path for file in files for path in paths_of(file.name)} <= set(node.bench.files.paths())

    Node(tmp_path, random.Random(3)).run(story)


def test_work_is_given_once_and_again_when_it_is_given_up(tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        for _ in range(4):
            await node.merges.split(*range(QUEUES))
        first = await node.ask()
        second = await node.ask(first.merge_id)
        assert {first.group, second.group} == {0, 1}
        assert not (await node.ask(first.merge_id, second.merge_id)).merge_id
        again = await node.ask(second.merge_id)
        assert (again.group, again.inputs) == (first.group, first.inputs)
        assert again.merge_id != first.merge_id
        files = await node.made(again)
        assert (await node.record(first.merge_id, files)).startswith("refused: this merge is not under way")
        assert await node.record(again.merge_id, files) == "merged"
        topic = first.topics[0]
        assert (topic.name, topic.retention_class, topic.segment_bytes) == ("orders", "forever", 9)

    Node(tmp_path, random.Random(4)).run(story)


def test_nothing_is_merged_below_the_feature_level_nor_while_an_input_is_damaged(tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        for _ in range(4):
            await node.merges.split(0, 2, 4)
        node.allowed = False
        assert await node.ask() == MergeWork()
        node.allowed = True
        work = await node.ask()
        name = work.inputs[1].file.name
        with pytest.raises(MergeGone):
            await handler_of(node.service, MERGE_DAMAGED)(
                RpcCall(MergeDamage(merge_id=work.merge_id, name="other.run", reason="?"), b"", "splitter")
            )
        await handler_of(node.service, MERGE_DAMAGED)(
            RpcCall(MergeDamage(merge_id=work.merge_id, name=name, reason="the extent at 64"), b"", "splitter")
        )
        assert [damage.name for damage in node.bench.store.damaged.all()] == [name]
        assert not (await node.ask()).merge_id
        await node.bench.store.mending.whole_again(name, "it is")
        again = [(await node.ask()).inputs, (await node.ask()).inputs]  # one write group, and the other
        assert work.inputs in again

    Node(tmp_path, random.Random(5)).run(story)


def test_log_starts_are_told_once_they_cannot_be_taken_back(tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        await node.merges.split(0, 2)
        await node.merges.split(0, 2)
        work = await node.ask()
        node.starts = {0: 5}
        assert await node.live(work.merge_id, [0, 1, 2]) == {0: (5, NEVER), 1: (NEVER, 0), 2: (NEVER, NEVER)}
        assert node.confirmed == 1

    Node(tmp_path, random.Random(6)).run(story)


def test_a_queue_that_moved_is_merged_where_its_offsets_are() -> None:
    moved = {8: [Stay(0, 0), Stay(1, 100), Stay(0, 200)], 9: [Stay(1, 0), Stay(0, 50)]}
    placement = Placement([0] * 4096, moved)
    queue_ids = numpy.array([7, 8, 9], numpy.uint64)
    bounds = [placement.bounds_in(group, queue_ids) for group in (0, 1)]
    told = [list(zip(firsts.tolist(), ends.tolist(), strict=True)) for firsts, ends in bounds]
    assert told[0] == [(0, NEVER), (0, NEVER), (50, NEVER)]
    assert told[1] == [(NEVER, 0), (100, 200), (0, 50)]
    for group, queue_id, offset in itertools.product((0, 1), (7, 8, 9), (0, 49, 50, 99, 100, 199, 200)):
        first, end = told[group][queue_id - 7]
        if placement.group_at(queue_id, offset) == group:
            assert first <= offset < end


def test_a_splitter_that_waits_for_the_looks_at_files_is_told_to_ask_again(tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        for _ in range(4):
            await node.merges.split(0, 2, 4)
        clock = node.bench.clock
        monotonic, looks = clock.monotonic, itertools.count()
        clock.monotonic = lambda: monotonic() + 0.001 * next(looks)  # type: ignore[method-assign]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mainstem.storage.queue_store.changes.merges.LOOK_SECONDS_MAX", 0.004)
            request = AskMerge(lease=node.held, drain=True)
            first = (await handler_of(node.service, MERGE_WORK)(RpcCall(request, b"", "splitter"))).message
            assert (first.merge_id, first.more) == ("", True)
            assert (await node.ask()).merge_id

    Node(tmp_path, random.Random(7)).run(story)


def test_a_splitter_of_an_earlier_version_merges_what_it_knows_and_is_told_of_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(node: Node) -> None:
        for _ in range(3):
            await node.merges.split(0)
        work = await node.ask()
        batches = [batch for given in work.inputs for batch in node.merges.held[given.file.name]]
        name = segment_name("orders", 0, "u", batches[0].base_offset, joined=True)
        segment = write_merged(node.bench.files, name, work.group, batches, level=work.level)
        node.merges.held[name] = batches
        assert await node.record(work.merge_id, [segment]) == "merged"
        node.starts[0] = batches[-1].last_offset + 1  # so that the segment is dead
        for _ in range(3):
            await node.merges.split(1)

        async def merge_other_files(*, drain: bool) -> None:
            for _ in range(20):
                work = await node.ask(drain=drain, joins=False)
                assert name not in {one.file.name for one in work.inputs}
                assert await node.record(work.merge_id, await node.made(work)) == "merged"

        with pytest.raises(EarlierSplitter, match=r"to merge \(write groups 0\)"):
            await merge_other_files(drain=False)
        assert not node.bench.store.merges.is_busy(), "nothing is held for it"
        assert await node.ask(drain=False, joins=False) == MergeWork(), "once, and it goes on with something else"
        with pytest.raises(EarlierSplitter, match="Upgrade it to the version of its node"):
            await merge_other_files(drain=True)
        assert caplog.text.count("this splitter is of an earlier version") == 1, "once for each lease"
        work = await node.ask(drain=False)
        assert name in {one.file.name for one in work.inputs}

    Node(tmp_path, random.Random(7), TINY_LINES).run(story)


def test_the_node_tells_how_much_is_worth_merging_and_begins_nothing(tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        assert await node.log.waits() == MergeWaits(0)
        for _ in range(4):
            await node.merges.split(0, 2, 4)
        waits = await node.log.waits()
        assert not node.log.is_busy()
        work = await node.ask(drain=False)
        assert node.bench.store.merges.last is None
        assert 0 < waits.bytes == sum(one.file.batch_bytes for one in work.inputs)
        assert (await node.log.waits()).bytes == 0  # the other write group has nothing, and this one is busy
        (merge,) = node.bench.store.merges.current()
        assert (merge.group, len(merge.inputs)) == (work.group, len(work.inputs))
        files = await node.made(work)
        assert await node.record(work.merge_id, files) == "merged"
        last = node.bench.store.merges.last
        assert last is not None
        size = sum(file.batch_bytes for file in files)
        assert last[:5] == (work.group, work.level, len(work.inputs), len(files), size)
        node.allowed = False
        await node.merges.split(0, 2, 4)
        await node.merges.split(0, 2, 4)
        assert await node.log.waits() == MergeWaits(0)
        node.allowed = True
        assert (await node.log.waits()).bytes > 0

    Node(tmp_path, random.Random(8), TINY_LINES).run(story)


def test_a_recording_whose_caller_hangs_up_runs_to_its_end(tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        for _ in range(3):
            await node.merges.split(0, 2, 4)
        work = await node.ask()
        files = await node.made(work)
        asking = asyncio.ensure_future(node.record(work.merge_id, files))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await node.service.close()
        assert {file.name for file in files} <= set(node.bench.store.manifest.files)

    Node(tmp_path, random.Random(8)).run(story)


def test_batches_of_a_queue_that_another_write_group_has_are_left_out(tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        await node.merges.split(0, 1)
        await node.merges.split(0, 1)
        work = await node.ask()
        foreign = [make_batch(1 - work.group, 0)]
        bad = write_merged(node.bench.files, "bad.pack", work.group, foreign, level=work.level)
        files = await node.made(work)
        assert await node.record(work.merge_id, files) == "merged"
        assert bad.name not in node.bench.store.manifest.files

    Node(tmp_path, random.Random(9)).run(story)
