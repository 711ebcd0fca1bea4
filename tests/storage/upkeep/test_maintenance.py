"""The background steps of storage keep their own paces: one that hangs or fails keeps none of the others."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path

import msgspec
import pytest
from tests.fakes.simulated_loop import SimulatedLoop
from tests.storage.small_node import SmallNode, simulated

from mainstem.storage.upkeep.maintenance import UpkeepStep, in_turn

BLOCKS = 40
"""Some segments full."""


def retaining_every_second(node: SmallNode) -> None:
    node.config = msgspec.structs.replace(node.config, retention_check_seconds=1.0, checkpoint_seconds=1.0)


async def hang(*_arguments: object) -> None:
    await asyncio.Event().wait()


async def fail(*_arguments: object) -> None:
    raise ValueError("what nobody thought of")


async def go_on_all_the_same(node: SmallNode) -> None:
    await node.fill(BLOCKS)
    sealed = len(node.segments()) - 1
    assert sealed > 2
    await node.rounds(1)
    assert sum(segment.index_ready for segment in node.storage.journal.segments()) == sealed
    assert await node.split() == ["committed"]
    await node.rounds()
    assert node.storage.pruning.pruned_segments == sealed
    node.disk1.capacity_bytes = 1
    await asyncio.sleep(2 * node.config.disk_check_seconds)
    assert node.storage.messages.refusing
    node.disk1.capacity_bytes = None
    await asyncio.sleep(2 * node.config.disk_check_seconds)
    assert not node.storage.messages.refusing


@pytest.mark.parametrize("trouble", [hang, fail])
def test_a_retention_pass_that_never_ends_keeps_nobody_waiting(tmp_path: Path, trouble: object) -> None:
    async def story(node: SmallNode) -> None:
        node.storage.queue_store.retention.retain = trouble  # type: ignore[method-assign, assignment]
        await asyncio.sleep(2.0)
        await go_on_all_the_same(node)
        failures = {
            sample.labels[0][1]: sample.value for sample in node.storage.maintenance.samples()
            if sample.name == "mainstem_storage_upkeep_failures_total"
        }  # fmt: skip
        assert bool(failures.pop("retention")) == (trouble is fail)
        assert not any(failures.values())

    simulated(tmp_path, story, retaining_every_second)


def test_a_seal_that_hangs_keeps_the_disk_watch_and_checkpoints_going(tmp_path: Path) -> None:
    def small_checkpoints(node: SmallNode) -> None:
        node.config = msgspec.structs.replace(node.config, checkpoint_bytes=4096)

    async def story(node: SmallNode) -> None:
        node.storage.journal.seal_index = hang  # type: ignore[method-assign, assignment]
        await node.fill(BLOCKS)
        await node.rounds()
        saved = node.storage.checkpointer.saved
        await node.fill(BLOCKS)
        await node.rounds()
        assert node.storage.checkpointer.saved > saved
        node.disk1.capacity_bytes = 1
        await asyncio.sleep(2 * node.config.disk_check_seconds)
        assert node.storage.messages.refusing
        node.disk1.capacity_bytes = None

    simulated(tmp_path, story, small_checkpoints)


@pytest.mark.parametrize("seconds", [0.25, 7.0])
def test_disk_1_is_looked_at_as_often_as_configured(tmp_path: Path, seconds: float) -> None:
    looked = 0

    def watched_often(node: SmallNode) -> None:
        node.config = msgspec.structs.replace(node.config, disk_check_seconds=seconds, prune_seconds=1.0)
        usage = node.disk1.usage

        async def counted() -> object:
            nonlocal looked
            looked += 1
            return await usage()

        node.disk1.usage = counted  # type: ignore[method-assign, assignment]

    async def story(node: SmallNode) -> None:
        before = looked
        await asyncio.sleep(70.0)
        assert looked - before in (int(70 / seconds), int(70 / seconds) - 1)

    simulated(tmp_path, story, watched_often)


def run_for(seconds: float, step: UpkeepStep) -> None:
    """On simulated time."""

    async def story() -> None:
        running = asyncio.ensure_future(step.run())
        await asyncio.sleep(seconds)
        running.cancel()
        await asyncio.wait((running,))

    loop = SimulatedLoop()
    try:
        loop.run_until_complete(story())
    finally:
        loop.close()


def test_a_step_that_fails_for_long_is_told_at_a_bounded_rate_and_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    times = 0

    async def for_long() -> None:
        nonlocal times
        times += 1
        if times <= 200:
            await no_room()

    step = UpkeepStep("rolling", 1.0, for_long)
    with caplog.at_level(logging.WARNING, "mainstem.storage.upkeep.maintenance"):
        run_for(205.5, step)
    assert (step.failed, step.done) == (200, 5)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 5, told
    assert told[0] == "storage rolling failed; it is tried again every 1 s: [Errno 28] the disk is full"
    assert told[1].startswith("storage rolling failed, 6")
    assert told[-1].startswith("storage rolling goes on: it had failed 200 times ")
    assert [record.exc_info is not None for record in caplog.records] == [True, False, False, False, False]


def test_a_step_that_fails_every_other_time_is_told_no_more_often(caplog: pytest.LogCaptureFixture) -> None:
    times = 0

    async def now_and_then() -> None:
        nonlocal times
        times += 1
        if times % 2:
            await no_room()

    with caplog.at_level(logging.WARNING, "mainstem.storage.upkeep.maintenance"):
        run_for(119.0, UpkeepStep("rolling", 1.0, now_and_then))
    assert times > 100
    assert len(caplog.records) == 4, "twice that it fails, twice that it goes on"


def test_a_round_that_somebody_asks_for_waits_for_the_one_under_way() -> None:
    under_way: list[int] = []
    done = 0

    async def work() -> None:
        nonlocal done
        under_way.append(len(under_way))
        assert under_way == [0], "one at a time"
        await asyncio.sleep(1.0)
        under_way.clear()
        done += 1
        if done == 1:
            await no_room()

    async def story() -> list[BaseException | None]:
        round_of = in_turn(work)
        return list(await asyncio.gather(*(round_of() for _ in range(3)), return_exceptions=True))

    loop = SimulatedLoop()
    try:
        failed, *others = loop.run_until_complete(story())
    finally:
        loop.close()
    assert isinstance(failed, OSError)
    assert others == [None, None], "the next one goes on"
    assert done == 3, "each of those who asked has a round that began behind the question"


async def no_room() -> None:
    raise OSError(errno.ENOSPC, "the disk is full")
