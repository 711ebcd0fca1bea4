"""Requests that wait for a load: each wakes for its own partition, and so many at most wait."""

from __future__ import annotations

import asyncio

from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.broker.machines.load_waits import LoadWaits

SECONDS_MAX = 5.0


def test_waits_end_with_their_own_load_and_are_bounded_in_number() -> None:
    loop = SimulatedLoop()
    waits, loading = LoadWaits(waiting_max=2), {0, 1}

    def wait(index: int) -> asyncio.Task[None]:
        return asyncio.ensure_future(waits.wait(index, lambda: index in loading, SECONDS_MAX))

    async def story() -> None:
        first, second = wait(0), wait(1)
        await asyncio.sleep(1)
        await wait(0)  # one too many
        assert loop.time() == began + 1
        loading.remove(0)
        waits.changed(0)
        await first
        assert loop.time() == began + 1
        assert not second.done()
        gone = wait(1)
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        waits.changed(1)  # nothing that matters to the second
        await second
        assert loop.time() == began + SECONDS_MAX
        late = wait(1)  # there is room again
        await asyncio.sleep(1)
        assert not late.done()
        loading.clear()
        waits.end()
        await late
        assert loop.time() == began + SECONDS_MAX + 1

    began = loop.time()
    loop.run_until_complete(story())
    loop.close()
