"""Random lives of a journal on a disk that loses, tears and reorders what was not synced.

Writing, rolling, recycling and power cuts at any change of the disk, recovery's own included, in any order; after
each recovery the blocks delivered are compared with those submitted:

A  every block whose write returned under sync durability is there (under async: every one that a sync covered)
J  what is delivered is what was submitted, in order, without a gap: a prefix, less what was recycled
"""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.clock import FakeClock
from tests.fakes.files import PowerLoss, SimulatedFiles
from tests.harness.patience import PATIENCE_SECONDS
from tests.storage.journal.sample_blocks import Delivered, abandoned, command_block, data_block, started

from mainstem.model import Durability
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.journal.journal import BlockToWrite, Journal

SIZES = st.sampled_from([61, 61, 700, 1500, 3900, 4096, 9000])
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), st.lists(SIZES, min_size=1, max_size=5)),
    st.tuples(st.just("write"), st.lists(SIZES, min_size=1, max_size=5)),
    st.tuples(st.just("age"), st.just([])),
    st.tuples(st.just("recycle"), st.just([])),
    st.tuples(st.just("sync"), st.just([])),
    st.tuples(st.just("index"), st.just([])),
    st.tuples(st.just("kill"), st.just([])),
    st.tuples(st.just("crash"), st.just([])),
    st.tuples(st.just("cut"), st.lists(st.integers(1, 12), min_size=1, max_size=2)),
)


class Life:
    """One disk, the journals that live on it one after the other, and the model they are held against."""

    def __init__(self, seed: int, config: JournalConfig) -> None:
        self.files = SimulatedFiles(seed)
        self.clock = FakeClock()
        self.config = config
        self.journal: Journal | None = None
        self.submitted: list[BlockToWrite] = []
        """Blocks submitted since the beginning, less those that a recovery showed to be lost."""
        self.kept = 0
        """How many of them must come back."""
        self.ends: list[int] = []
        """Journal positions behind those whose write returned."""
        self.gone = 0
        """How many of them recycling may have taken."""
        self.next_index = 1

    async def run(self, operations: list[tuple[str, list[int]]]) -> None:
        await self.restart()
        for name, values in operations:
            try:
                await getattr(self, name)(values)
            except PowerLoss:
                self.files.crash()
                await self.restart()
        assert self.journal is not None
        self.files.crash()
        await self.restart()
        await abandoned(self.journal)

    # --- operations ---------------------------------------------------------------------------------------

    async def write(self, sizes: list[int]) -> None:
        assert self.journal is not None
        blocks = []
        for size in sizes:
            make = data_block(self.next_index, sizes=(size, 61)) if self.next_index % 3 else None
            blocks.append(make or command_block(self.next_index, size=size))
            self.next_index += 1
        self.submitted += blocks
        self.ends += [header.end for header in await self.journal.write(blocks)]
        if self.config.durability is Durability.SYNC:
            self.kept = len(self.submitted)

    async def age(self, _values: list[int]) -> None:
        assert self.journal is not None
        self.clock.advance(self.config.segment_age_seconds)
        await self.journal.roll_if_due()

    async def sync(self, _values: list[int]) -> None:
        assert self.journal is not None
        await self.journal.sync()
        self.kept = len(self.submitted)

    async def recycle(self, _values: list[int]) -> None:
        """All but the newest two segments; counted as gone before it is tried."""
        assert self.journal is not None
        segments = self.journal.segments()
        if len(segments) > 2:
            before = segments[-2]
            self.gone = max(self.gone, sum(end < before.first for end in self.ends))
            await self.journal.recycle(before.sequence)

    async def index(self, _values: list[int]) -> None:
        assert self.journal is not None
        for segment in self.journal.segments():
            if segment.sealed and not segment.index_ready:
                await self.journal.index(segment.sequence)

    async def kill(self, _values: list[int]) -> None:
        """The process dies, the machine goes on."""
        self.files.crash(keep_all=True)
        await self.restart()

    async def crash(self, _values: list[int]) -> None:
        self.files.crash()
        await self.restart()

    async def cut(self, values: list[int]) -> None:
        """Power cuts to come: during what is done next, and perhaps during the recovery after it."""
        self.files.cut_power(after=values[0])
        if len(values) > 1:
            try:
                await self.write([700, 61])
            except PowerLoss:
                self.files.crash()
                self.files.cut_power(after=values[1])
                await self.restart()

    # --- recovery -----------------------------------------------------------------------------------------

    async def restart(self) -> None:
        if self.journal is not None:
            await abandoned(self.journal)
        for _ in range(4):
            try:
                found = await started(self.files, self.config, self.clock)
                break
            except PowerLoss:
                self.files.crash()
        else:
            raise AssertionError("one cut at a time is set up")
        self.journal = found.journal
        self.check(found.delivered)

    def check(self, delivered: list[Delivered]) -> None:
        first = next(
            (
                number
                for number, block in enumerate(self.submitted)
                if delivered and block.index == delivered[0].header.index
            ),
            len(self.submitted),
        )
        if delivered:
            assert first <= self.gone, f"block {self.gone} was neither recycled nor delivered"
        else:
            assert self.kept <= self.gone, "nothing came back"
            first = self.gone
        end = first + len(delivered)
        assert end >= self.kept, f"{self.kept - end} blocks that were durable are lost"
        for found, block in zip(delivered, self.submitted[first:end], strict=True):
            assert found.is_(block), f"block {found.header.index} is not the one submitted as {block.index}"
        del self.submitted[end:]
        self.ends = self.ends[:first] + [found.header.end for found in delivered]
        self.kept = end


def live(durability: Durability, pool_segments: int, seed: int, operations: list[tuple[str, list[int]]]) -> None:
    config = JournalConfig(
        segment_bytes=16384,
        pool_segments=pool_segments,
        pool_segments_max=2,
        durability=durability,
        flush_interval_seconds=999,
    )
    asyncio.run(asyncio.wait_for(Life(seed, config).run(operations), PATIENCE_SECONDS))


@settings(max_examples=examples(150), deadline=None)
@given(seed=st.integers(0, 1 << 30), pool=st.integers(0, 1), operations=st.lists(OPERATIONS, max_size=40))
def test_sync_durability_loses_nothing_that_was_written(
    seed: int, pool: int, operations: list[tuple[str, list[int]]]
) -> None:
    live(Durability.SYNC, pool, seed, operations)


@settings(max_examples=examples(150), deadline=None)
@given(seed=st.integers(0, 1 << 30), pool=st.integers(0, 1), operations=st.lists(OPERATIONS, max_size=40))
def test_async_durability_loses_nothing_that_was_synced(
    seed: int, pool: int, operations: list[tuple[str, list[int]]]
) -> None:
    live(Durability.ASYNC, pool, seed, operations)
