"""The number of bytes on their way at once is bounded, in the order in which it was asked for, whoever gives up."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from mainstem.storage.read_cache.bytes_under_way import BytesUnderWay

BYTES_MAX = 100


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@given(
    st.lists(st.integers(1, 2 * BYTES_MAX), max_size=20),
    st.lists(st.tuples(st.sampled_from(["ends", "gives up", "shrinks"]), st.integers(0, 30)), max_size=40),
)
def test_no_more_than_the_bound_is_under_way_and_all_get_there_in_their_order(
    lengths: list[int], events: list[tuple[str, int]]
) -> None:
    async def scenario() -> None:
        under_way = BytesUnderWay(BYTES_MAX)
        order: list[int] = []
        inside: dict[int, int] = {}
        ends = [asyncio.Event() for _ in lengths]
        shrinks = [asyncio.Event() for _ in lengths]

        async def come(number: int) -> None:
            async with under_way.of(lengths[number]) as room:
                order.append(number)
                inside[number] = lengths[number]
                try:
                    await shrinks[number].wait()
                    room.shrink(lengths[number] // 2)
                    inside[number] = lengths[number] // 2
                    await ends[number].wait()
                finally:
                    del inside[number]

        tasks = [asyncio.create_task(come(number)) for number in range(len(lengths))]
        await settled()
        for event, at in events:
            if not lengths:
                break
            number = at % len(lengths)
            if event == "gives up":
                tasks[number].cancel()
            else:
                shrinks[number].set()
            if event == "ends":
                ends[number].set()
            await settled()
            assert under_way.bytes == sum(inside.values())
            assert under_way.bytes <= BYTES_MAX or len([one for one in inside.values() if one]) == 1
            assert order == sorted(order)
        for number in range(len(lengths)):
            shrinks[number].set()
            ends[number].set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert under_way.bytes == 0
        assert all(number in order for number, task in enumerate(tasks) if not task.cancelled())

    asyncio.run(scenario())


def test_a_piece_larger_than_the_bound_comes_alone() -> None:
    async def scenario() -> None:
        under_way = BytesUnderWay(BYTES_MAX)
        async with under_way.of(3 * BYTES_MAX):
            other = asyncio.create_task(under_way.of(1).__aenter__())
            await settled()
            assert not other.done()
        await other
        assert under_way.bytes == 1

    asyncio.run(scenario())
