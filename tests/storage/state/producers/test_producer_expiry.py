"""When producers are forgotten: no clock alone decides, neither this node's nor that of whoever led."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.fakes.clock import FakeClock
from tests.storage.small_node import QUEUE, SmallNode, new_batch, simulated

from mainstem.ports import Clock
from mainstem.storage.agreed_clock import AgreedClock
from mainstem.storage.state.producers.producer_expiry import NOBODY, NOTES_MAX, ProducerExpiry

YEAR_MS = 366 * 86_400_000
EXPIRY_SECONDS = 100
LOOK_SECONDS = 10
IN_MEMORY = 4


class ClockOff:
    """A node's clock that is off."""

    def __init__(self, true: Clock, ahead_ms: int) -> None:
        self._true = true
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return self._true.now_ms() + self._ahead_ms

    def monotonic(self) -> float:
        return self._true.monotonic()


def prepare(node: SmallNode) -> None:
    node.config = msgspec.structs.replace(
        node.config, producers_in_memory=1000, producer_expiry_seconds=EXPIRY_SECONDS,
        retention_check_seconds=LOOK_SECONDS,
    )  # fmt: skip


def prepare_with_files(node: SmallNode) -> None:
    prepare(node)
    node.config = msgspec.structs.replace(node.config, producers_in_memory=IN_MEMORY)


async def retried(node: SmallNode) -> list[int]:
    offsets = []
    for producer_id in range(20):
        (result,) = await node.append(new_batch(QUEUE, 10, producer=(producer_id, 0, 0)))
        assert result.base_offset is not None
        offsets.append(result.base_offset)
        await asyncio.sleep(0.3)  # memory is to have room for who is new
    return offsets


@pytest.mark.parametrize("prepared", [prepare, prepare_with_files])
@pytest.mark.parametrize("ahead_ms", [YEAR_MS, -YEAR_MS])
def test_a_node_that_starts_with_a_clock_that_is_off_keeps_its_producers(
    tmp_path: Path, ahead_ms: int, prepared: Callable[[SmallNode], None]
) -> None:
    """Ahead, it takes everybody for long gone; behind, it leads, and those that it serves seem so to who comes next."""

    async def story(node: SmallNode) -> None:
        true = node.clock
        if ahead_ms < 0:
            node.clock = ClockOff(true, ahead_ms)
            await node.restart()
        offsets = await retried(node)
        node.clock = ClockOff(true, ahead_ms) if ahead_ms > 0 else true
        await node.restart()
        await asyncio.sleep(EXPIRY_SECONDS - 2 * LOOK_SECONDS)
        assert await retried(node) == offsets
        await asyncio.sleep(EXPIRY_SECONDS * (1.3 + 1 / NOTES_MAX) + LOOK_SECONDS)
        assert len(node.storage.groups[0].producers) == node.storage.producers.filed == 0
        assert min(await retried(node)) > max(offsets)

    simulated(tmp_path, story, prepared)


class Group:
    applied_index = 0


def test_what_was_applied_long_ago_is_noted_and_nothing_else() -> None:
    clock, group = FakeClock(), Group()
    expiry = ProducerExpiry(clock, AgreedClock(clock), [group], seconds=160)
    for _ in range(160):
        assert expiry.expired(0) == NOBODY
        expiry.look()
        clock.advance(1)
        group.applied_index += 1
    for second in range(160, 1000):
        expiry.look()
        long_ago = second - 160
        assert long_ago - 160 // NOTES_MAX < expiry.expired(0).up_to_index <= long_ago
        assert expiry.expired(0).before_ms == clock.now_ms() - 160_000
        assert len(expiry.notes[0]) <= NOTES_MAX + 2
        clock.advance(1)
        group.applied_index += 1
    group.applied_index = 5
    expiry.look()
    assert expiry.expired(0) == NOBODY, "a replica that begins anew may number its blocks again"
    clock.advance(160)
    assert expiry.expired(0).up_to_index == 5
