"""Entries that wait for more of them leave after a moment, those of all write groups at once."""

from __future__ import annotations

import asyncio

from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.storage.cluster.withheld_entries import WITHHELD_SECONDS, WithheldEntries


def test_all_write_groups_send_together_a_moment_after_the_first() -> None:
    sent: list[tuple[float, int]] = []

    async def play() -> None:
        loop = asyncio.get_running_loop()
        withheld = WithheldEntries(lambda group: sent.append((loop.time(), group)))
        withheld.note(1)
        await asyncio.sleep(WITHHELD_SECONDS / 2)
        withheld.note(2)
        withheld.note(1)
        await asyncio.sleep(WITHHELD_SECONDS)
        withheld.note(3)
        await asyncio.sleep(2 * WITHHELD_SECONDS)

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(play())
    assert sent == [(WITHHELD_SECONDS, 1), (WITHHELD_SECONDS, 2), (2.5 * WITHHELD_SECONDS, 3)]


def test_nothing_leaves_after_the_end() -> None:
    sent: list[int] = []

    async def play() -> None:
        withheld = WithheldEntries(sent.append)
        withheld.note(1)
        withheld.close()
        withheld.note(2)
        await asyncio.sleep(2 * WITHHELD_SECONDS)

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(play())
    assert not sent
