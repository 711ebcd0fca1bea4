"""`SplitLog`: the journal that tests of the split are given offers, serves and records as the storage role's does.

The storage role writes blocks of its own among those of the test: queues are created, a leader begins its term. So what
is compared is what is left to split, not at which index it lies.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.fakes.files import SimulatedFiles
from tests.fakes.splitting.split_log import SplitJournal
from tests.harness.patience import PATIENCE_SECONDS
from tests.storage.small_node import QUEUE, SEGMENT_BYTES, SmallNode, new_batch, simulated, split, topic

from mainstem.model import slot_of
from mainstem.rpc.messages.split import Slice, WriteGroupRange
from mainstem.storage.errors import SegmentGone
from mainstem.storage.split.split_service import SplitLog

GROUPS = 2
PARTITIONS = 8
BLOCKS = 12
BATCH_BYTES = 6_000
"""Two blocks fill a segment: the storage role knows how far splits reach to some blocks, not to each."""
EVERYTHING = 1 << 40
FAR_SEQUENCE = 1_000_000


class Subject(ABC):
    """A journal of two write groups."""

    log: SplitLog
    disk2: SimulatedFiles

    @abstractmethod
    async def append(self, group: int) -> None:
        """A block with one batch, committed and durable."""

    # --- what most cases do -------------------------------------------------------------------------------

    async def fill(self) -> None:
        for number in range(BLOCKS):
            await self.append(number % GROUPS)

    def split_to(self) -> dict[int, int]:
        return {group.group: group.split for group in self.log.positions()}

    def slices(self, bytes_max: int = EVERYTHING) -> list[Slice]:
        after = self.split_to()
        return self.log.slices(after, self.log.limit(after, EVERYTHING), bytes_max)

    async def records(self, work: Slice) -> int:
        return sum(file.record_count for file in (await split(self.log, work, self.disk2)).files)


class Fake(Subject):
    def __init__(self, directory: Path) -> None:
        self.log = self._journal = SplitJournal(directory, segment_bytes=SEGMENT_BYTES, classes={1: "default"})
        self.disk2 = SimulatedFiles()

    async def append(self, group: int) -> None:
        self._journal.append(group, [(QUEUE + group, bytes(BATCH_BYTES))])


class Real(Subject):
    def __init__(self, node: SmallNode) -> None:
        self.log = node.storage.split_log
        self.disk2 = node.disk2
        self._node = node
        queues = range(QUEUE, QUEUE + PARTITIONS)
        self._queue_of = {group: next(it for it in queues if slot_of(it) % GROUPS == group) for group in range(GROUPS)}

    async def append(self, group: int) -> None:
        await self._node.append(new_batch(self._queue_of[group], BATCH_BYTES))
        await self._node.storage.write_loop.sync()


Story = Callable[[Subject], Awaitable[None]]
Tell = Callable[[Story], None]


@pytest.fixture(params=["fake", "storage role"])
def tell(request: pytest.FixtureRequest, tmp_path: Path) -> Tell:
    def told(story: Story) -> None:
        if request.param == "fake":
            asyncio.run(asyncio.wait_for(_told(story, Fake(tmp_path)), PATIENCE_SECONDS))
        else:
            simulated(tmp_path, lambda node: story(Real(node)), two_groups)

    return told


async def _told(story: Story, subject: Subject) -> None:
    await story(subject)


def two_groups(node: SmallNode) -> None:
    node.groups = GROUPS
    node.topics = [topic(partitions=PARTITIONS)]


def test_what_is_appended_is_unsplit_until_its_split_is_recorded(tell: Tell) -> None:
    async def story(subject: Subject) -> None:
        await subject.fill()
        before = {group.group: group for group in subject.log.positions()}
        assert set(before) == set(range(GROUPS))
        for group in before.values():
            assert group.durable == group.committed > group.split
            assert group.unsplit_bytes > 0
            assert group.oldest_unsplit_ms >= 0
            done = [WriteGroupRange(group.group, group.split, group.committed)]
            assert await subject.log.record(done, []) == ["committed"]
        for group in subject.log.positions():
            assert group.split == group.committed == before[group.group].committed
            assert (group.unsplit_bytes, group.oldest_unsplit_ms) == (0, -1)

    tell(story)


def test_a_limit_is_reached_by_some_blocks_and_all_bytes_by_all(tell: Tell) -> None:
    async def story(subject: Subject) -> None:
        await subject.fill()
        after = subject.split_to()
        committed = {group.group: group.committed for group in subject.log.positions()}
        assert subject.log.limit(after, EVERYTHING) == committed
        some = subject.log.limit(after, 1)
        assert all(after[group] <= upto <= committed[group] for group, upto in some.items())
        assert some != after, "one block at least"
        assert some != committed
        assert subject.log.limit(committed, EVERYTHING) == committed

    tell(story)


@pytest.mark.parametrize("bytes_max", [1, SEGMENT_BYTES, EVERYTHING])
def test_slices_hold_every_block_once(tell: Tell, bytes_max: int) -> None:
    async def story(subject: Subject) -> None:
        await subject.fill()
        reached = subject.split_to()
        slices = subject.slices(bytes_max)
        assert slices
        places: list[tuple[int, int]] = []
        records = 0
        for work in slices:
            for entry in work.ranges:
                assert entry.after == reached[entry.group] < entry.upto
                reached[entry.group] = entry.upto
            places += [(extent.sequence, extent.start) for extent in work.extents]
            assert work.bytes == sum(extent.end - extent.start for extent in work.extents)
            records += await subject.records(work)
        assert places == sorted(places), "in the order of the journal"
        assert reached == {group.group: group.committed for group in subject.log.positions()}
        (of_all,) = subject.slices()
        assert records == await subject.records(of_all) == BLOCKS
        assert (len(slices) > 1) == (bytes_max < EVERYTHING)

    tell(story)


def test_nothing_is_sliced_that_is_split_or_not_asked_for(tell: Tell) -> None:
    async def story(subject: Subject) -> None:
        await subject.fill()
        (whole,) = subject.slices()
        assert await subject.log.record(whole.ranges, []) == ["committed"] * GROUPS
        assert subject.slices() == []
        await subject.append(1)
        (work,) = subject.slices()
        assert [entry.group for entry in work.ranges] == [1]
        after = subject.split_to()
        assert subject.log.slices(after, after, EVERYTHING) == []

    tell(story)


def test_a_split_is_taken_where_the_split_stands_and_nowhere_else(tell: Tell) -> None:
    async def story(subject: Subject) -> None:
        await subject.fill()
        start, end = subject.split_to()[0], {it.group: it.committed for it in subject.log.positions()}[0]
        middle = end - 1
        (ahead,) = await subject.log.record([WriteGroupRange(0, middle, end)], [])
        assert ahead.startswith("refused: ")
        assert subject.split_to()[0] == start
        assert await subject.log.record([WriteGroupRange(0, start, middle)], []) == ["committed"]
        assert await subject.log.record([WriteGroupRange(0, start, middle)], []) == ["replayed"]
        (across,) = await subject.log.record([WriteGroupRange(0, start, end)], [])
        assert across.startswith("refused: ")
        assert subject.split_to()[0] == middle
        assert await subject.log.record([WriteGroupRange(0, middle, end), WriteGroupRange(0, start, middle)], []) == [
            "committed",
            "replayed",
        ]
        assert subject.split_to()[0] == end

    tell(story)


def test_segments_are_served_as_far_as_they_are_there(tell: Tell) -> None:
    async def story(subject: Subject) -> None:
        await subject.fill()
        (work,) = subject.slices()
        extent = work.extents[0]
        content = await subject.log.read(extent.sequence, extent.start, extent.end - extent.start)
        assert len(content) == extent.end - extent.start
        part = await subject.log.read(extent.sequence, extent.start + 100, 50)
        assert part == content[100:150]
        with pytest.raises(SegmentGone):
            await subject.log.read(FAR_SEQUENCE, extent.start, 10)

    tell(story)


def test_topics_that_hold_records_have_a_retention_class(tell: Tell) -> None:
    async def story(subject: Subject) -> None:
        await subject.fill()
        assert set(await subject.log.retention_classes()) == {1}
        assert subject.log.waiting_for() == []

    tell(story)
