"""The turns of a write loop whose write groups have nothing that may be written yet."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.clock import FakeClock
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.model import Durability
from mainstem.raft import HardState
from mainstem.storage.errors import StorageFailed
from mainstem.storage.journal.encoding.format import KIND_NO_OP, BlockHeader
from mainstem.storage.journal.encoding.framing import BlockToWrite
from mainstem.storage.journal.journal_map import JournalMap
from mainstem.storage.write_groups.write_loop import LITTLE_BYTES_MAX, MUCH_BYTES_MIN, BlockCopy, WriteLoop


class Waiting:
    """A write group without a block that may be written: what was appended to it waits for other nodes."""

    def __init__(self, group: int, *, appended: bool = False) -> None:
        self.group = group
        self.log = SimpleNamespace(pending_bytes=0)
        self.blocks = SimpleNamespace(to_write=[])
        self.consensus = SimpleNamespace(hard_state_due=None, hard_state_saved=lambda state: None, leads=False)
        self.turns = 0
        self._appended = appended

    @property
    def has_work(self) -> bool:
        return self._appended or self.consensus.hard_state_due is not None

    def take(self, now_ms: int, bytes_max: int) -> list[BlockToWrite]:
        self.turns += 1
        return []

    def fail(self, reason: Exception) -> None: ...


def loop_of(groups: list[Any], hard_states: Any = None) -> WriteLoop:
    journal: Any = SimpleNamespace()
    return WriteLoop(journal, groups, JournalMap(len(groups)), hard_states, FakeClock())


def test_a_loop_closes_although_what_was_appended_waits_for_other_nodes() -> None:
    async def story() -> None:
        group = Waiting(0, appended=True)
        loop = loop_of([group])
        running = asyncio.ensure_future(loop.run())
        loop.wake()
        while not group.turns:  # noqa: ASYNC110 - a turn or two of the event loop
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await loop.close()
            await running

    asyncio.run(story())


def test_a_vote_that_comes_while_another_is_saved_is_saved_in_the_next_turn() -> None:
    async def story() -> None:
        first, second = Waiting(0), Waiting(1)
        saved: list[int] = []
        all_saved = asyncio.Event()

        async def save(due: dict[int, HardState]) -> None:
            saved.extend(due)
            if 0 in due:
                second.consensus.hard_state_due = HardState(2, 1)
                loop.wake()
            else:
                all_saved.set()

        loop = loop_of([first, second], SimpleNamespace(save=save))
        running = asyncio.ensure_future(loop.run())
        await asyncio.sleep(0)  # it sleeps
        first.consensus.hard_state_due = HardState(1, 1)
        loop.wake()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await all_saved.wait()
            await loop.close()
            await running
        assert saved == [0, 1]

    asyncio.run(story())


def test_a_disk_that_fails_while_a_vote_is_saved_ends_the_loop() -> None:
    async def story() -> None:
        group = Waiting(0)

        async def save(due: dict[int, HardState]) -> None:
            loop.disk_has_failed(StorageFailed("made up"))

        loop = loop_of([group], SimpleNamespace(save=save))
        running = asyncio.ensure_future(loop.run())
        group.consensus.hard_state_due = HardState(1, 1)
        loop.wake()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await running
        assert loop.failure is not None

    asyncio.run(story())


class Backlog(Waiting):
    """A write group that has more to write than one turn takes, all of it appended while another's vote is saved."""

    def append(self, count: int) -> None:
        self.blocks.to_write += [BlockToWrite(KIND_NO_OP, self.group, 1, n, b"", 0, (b"",), 1) for n in range(count)]

    @property
    def has_work(self) -> bool:
        return bool(self.blocks.to_write)

    def take(self, now_ms: int, bytes_max: int) -> list[BlockToWrite]:
        return [self.blocks.to_write.pop(0)] if self.blocks.to_write else []

    def written(self, header: BlockHeader) -> bool:
        return False  # dropped meanwhile: nothing is told of it


def test_what_a_turn_leaves_of_a_write_group_that_came_while_a_vote_was_saved_is_written_next() -> None:
    async def story() -> None:
        voting, behind = Waiting(0), Backlog(1)
        written: list[int] = []

        async def save(due: dict[int, HardState]) -> None:
            behind.append(3)
            loop.wake()

        async def write(blocks: list[BlockToWrite]) -> list[BlockHeader]:
            written.extend(block.index for block in blocks)
            return [
                BlockHeader(KIND_NO_OP, 1, 1, it.index, 80, 0, 0, 0, 4096 + 80 * it.index, 0, 0, 1) for it in blocks
            ]

        journal: Any = SimpleNamespace(write=write)
        hard_states: Any = SimpleNamespace(save=save)
        loop = WriteLoop(journal, [voting, behind], JournalMap(2), hard_states, FakeClock())  # type: ignore[list-item]
        running = asyncio.ensure_future(loop.run())
        voting.consensus.hard_state_due = HardState(1, 1)
        loop.wake()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(written) < 3:  # noqa: ASYNC110 - some turns of the event loop
                await asyncio.sleep(0)
            await loop.close()
            await running
        assert written == [0, 1, 2]

    asyncio.run(story())


@pytest.mark.parametrize("beside", [False, True])
def test_a_block_is_written_behind_the_vote_of_its_write_group_also_where_both_came_while_another_vote_was_saved(
    beside: bool,
) -> None:
    """A start would find a log, and no record of votes beside it. Blocks of others do not wait."""

    async def story() -> None:
        voting, deposed, other = Waiting(0), Backlog(1), Backlog(2)
        done: list[tuple[str, list[int]]] = []

        async def save(due: dict[int, HardState]) -> None:
            done.append(("saved", list(due)))
            if 0 in due:
                deposed.append(1)
                deposed.consensus.hard_state_due = HardState(1, 0)
                other.append(int(beside))
                loop.wake()

        async def write(blocks: list[BlockToWrite]) -> list[BlockHeader]:
            done.append(("written", [block.group for block in blocks]))
            return [BlockHeader(KIND_NO_OP, it.group, 1, 0, 80, 0, 0, 0, 4096, 0, 0, 1) for it in blocks]

        journal: Any = SimpleNamespace(write=write, durability=Durability.SYNC)
        groups: list[Any] = [voting, deposed, other]
        hard_states: Any = SimpleNamespace(save=save)
        loop = WriteLoop(journal, groups, JournalMap(3), hard_states, FakeClock())
        running = asyncio.ensure_future(loop.run())
        voting.consensus.hard_state_due = HardState(1, 1)
        loop.wake()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not any(how == "written" and 1 in which for how, which in done):  # noqa: ASYNC110 - some turns
                await asyncio.sleep(0)
            await loop.close()
            await running
        between = [("written", [2])] if beside else []
        assert done == [("saved", [0]), *between, ("saved", [1]), ("written", [1])]

    asyncio.run(story())


@pytest.mark.parametrize("durability", Durability)
def test_little_is_written_before_much_where_nothing_is_synced(durability: Durability) -> None:
    async def story() -> None:
        groups = [Backlog(number) for number in range(4)]
        sizes = [LITTLE_BYTES_MAX, MUCH_BYTES_MIN, LITTLE_BYTES_MAX + 1, 1]
        writes: list[list[int]] = []

        async def write(blocks: list[BlockToWrite]) -> list[BlockHeader]:
            writes.append([block.group for block in blocks])
            return [BlockHeader(KIND_NO_OP, it.group, 1, 0, 80, 0, 0, 0, 4096, 0, 0, 1) for it in blocks]

        journal: Any = SimpleNamespace(write=write, durability=durability)
        loop = WriteLoop(journal, groups, JournalMap(4), SimpleNamespace(), FakeClock())  # type: ignore[arg-type]
        running = asyncio.ensure_future(loop.run())
        for turn_sizes in (sizes, [MUCH_BYTES_MIN // 4 - 1] * 3 + [0]):
            for group, size in zip(groups, turn_sizes, strict=True):
                group.append(1)
                group.log.pending_bytes = size
            loop.wake()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while any(group.has_work for group in groups):  # noqa: ASYNC110 - some turns of the event loop
                    await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await loop.close()
            await running
        in_two = [[0, 3], [1, 2]] if durability is Durability.ASYNC else [[0, 1, 2, 3]]
        assert writes == [*in_two, [0, 1, 2, 3]]

    asyncio.run(story())


def test_copies_are_written_in_front_of_all_else_in_one_go() -> None:
    """The loop knows them by their place in what was written, and their log must end behind them."""

    async def story() -> None:
        little, much = Backlog(0), Backlog(1)
        moved: Any = Backlog(2)
        moved.applied_index = 0
        moved.blocks.position_of = {1: 80, 2: 160}.get
        moved.blocks.term = lambda index: 1
        moved.blocks.last_data_before = lambda index: 0
        moved.copied = lambda headers, sources: {it.position: at for it, at in zip(headers, sources, strict=True)}
        writes: list[list[tuple[int, int]]] = []
        added: list[tuple[int, int, bool]] = []

        async def write(blocks: list[BlockToWrite]) -> list[BlockHeader]:
            writes.append([(block.group, block.index) for block in blocks])
            return [
                BlockHeader(KIND_NO_OP, it.group, 1, it.index, 80, 0, 0, 0, 4096 + 80 * at, 0, 0, 1)
                for at, it in enumerate(blocks)
            ]

        journal: Any = SimpleNamespace(write=write, durability=Durability.ASYNC)
        journal_map: Any = SimpleNamespace(
            superseded=lambda *_: None, add=lambda header, live: added.append((header.group, header.index, live))
        )
        loop = WriteLoop(journal, [little, much, moved], journal_map, SimpleNamespace(), FakeClock())  # type: ignore[arg-type,list-item]
        running = asyncio.ensure_future(loop.run())
        for group, size in ((little, 1), (much, MUCH_BYTES_MIN)):
            group.append(1)
            group.log.pending_bytes = size
        copies = [
            BlockCopy(index, 1, 80 * index, BlockToWrite(KIND_NO_OP, 2, 1, index, b"", 0, (b"",), 1))
            for index in (1, 2)
        ]
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await loop.rewrite(2, copies) == 2
            await loop.close()
            await running
        assert writes == [[(2, 1), (2, 2), (0, 0), (1, 0)]]
        assert added[:2] == [(2, 1, True), (2, 2, True)]

    asyncio.run(story())
