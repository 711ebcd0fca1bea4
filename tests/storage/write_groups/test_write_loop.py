"""The turns of a write loop whose write groups have nothing that may be written yet."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.fakes.clock import FakeClock
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.raft import HardState
from mainstem.storage.journal.encoding.framing import BlockToWrite
from mainstem.storage.journal.journal_map import JournalMap
from mainstem.storage.write_groups.write_loop import WriteLoop


class Waiting:
    """A write group without a block that may be written: what was appended to it waits for other nodes."""

    def __init__(self, group: int, *, appended: bool = False) -> None:
        self.group = group
        self.log = SimpleNamespace(pending_bytes=0)
        self.blocks = SimpleNamespace(to_write=[])
        self.consensus = SimpleNamespace(hard_state_due=None, hard_state_saved=lambda state: None)
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
