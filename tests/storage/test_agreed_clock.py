"""The time for all that deletes: a majority's, within a bound, going on evenly; and who waits when it is not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.fakes.clock import FakeClock
from tests.storage.small_node import QUEUE, SmallNode, new_batch, simulated, topic

from mainstem.ports import Clock
from mainstem.storage.agreed_clock import BOUND_MS, JUMP_SECONDS, AgreedClock, AgreedTime, agreed
from mainstem.storage.cluster.write_group_replication import Consensus

YEAR_MS = 366 * 86_400_000
NOW = 1_700_000_000_000
YEAR_9999_MS = 253_370_764_800_000


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ([NOW], AgreedTime(NOW, NOW)),
        ([NOW, NOW + YEAR_MS, NOW + 5], AgreedTime(NOW, NOW + 5)),
        ([NOW, NOW - YEAR_MS, NOW + 5], AgreedTime(NOW, NOW + 5)),
        ([NOW, NOW + 5, NOW + 9], AgreedTime(NOW, NOW + 5)),
        ([NOW, None, NOW + BOUND_MS], AgreedTime(NOW, NOW + BOUND_MS)),
        ([NOW, None, NOW + BOUND_MS + 1], None),
        ([NOW, None, None], None),
        ([NOW, NOW + YEAR_MS], None),
        ([NOW, NOW + YEAR_MS, NOW + YEAR_MS, NOW + 1, NOW + 2], AgreedTime(NOW, NOW + 2)),
        ([NOW, NOW + YEAR_MS, NOW + YEAR_MS, NOW + 1, None], None),
        ([], None),
    ],
)
def test_a_majority_within_the_bound_says_what_time_it_is(
    times: Sequence[int | None], wanted: AgreedTime | None
) -> None:
    assert agreed(times) == wanted


class Clocks:
    """Three nodes, the first of them this one; each may be off."""

    def __init__(self) -> None:
        self.true = FakeClock(NOW)
        self.off: list[int | None] = [0, 0, 0]
        self.agreed = AgreedClock(self, self._times)

    def _times(self) -> list[int | None]:
        return [None if off is None else self.true.now_ms() + off for off in self.off]

    def now_ms(self) -> int:
        return self.true.now_ms() + (self.off[0] or 0)

    def monotonic(self) -> float:
        return self.true.monotonic()


def test_one_clock_that_is_off_is_told_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    for ahead_ms in (0, YEAR_MS, -YEAR_MS, 0):
        clocks.off[0] = ahead_ms
        clocks.true.advance(300)
        now = clocks.agreed.now()
        assert now is not None
        assert abs(now.earliest - clocks.true.now_ms()) <= BOUND_MS
        assert clocks.agreed.ahead_ms == ahead_ms
    assert "this node's clock is +31622400 s off what a majority agrees on" in caplog.text


def test_a_majority_that_jumps_is_waited_out_for_a_day(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    assert clocks.agreed.now() is not None
    clocks.off = [YEAR_MS] * 3
    for _ in range(int(JUMP_SECONDS / 300)):
        clocks.true.advance(300)
        assert clocks.agreed.now() is None
        assert clocks.agreed.waits
    assert "has jumped by +31622400 s: nothing is deleted by age" in caplog.text
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1, "told once"
    clocks.true.advance(300)
    assert clocks.agreed.now() == AgreedTime(clocks.now_ms(), clocks.now_ms())
    assert not clocks.agreed.waits


HOUR_MS = 3_600_000


def test_clocks_that_were_behind_and_are_set_right_judge_timestamps_by_the_true_time_at_once() -> None:
    """Else every true timestamp is refused, as one of the future, until the jump has stood for a day."""
    clocks = Clocks()
    clocks.off = [-4 * HOUR_MS] * 3
    assert clocks.agreed.judged_ms() == clocks.now_ms(), "nothing better is known before the first look"
    assert clocks.agreed.now() is not None
    clocks.off = [0] * 3
    clocks.true.advance(2)
    assert clocks.agreed.now() is None
    assert clocks.agreed.judged_ms() == clocks.true.now_ms()
    assert clocks.agreed.steady_ms() == clocks.true.now_ms() - 4 * HOUR_MS, "nothing is deleted by it"
    clocks.off = [0, None, None]
    clocks.true.advance(60)
    assert clocks.agreed.now() is None
    assert clocks.agreed.judged_ms() == clocks.true.now_ms(), "and it goes on while nobody is heard"


def test_clocks_that_jump_back_make_no_true_timestamp_one_of_the_future() -> None:
    clocks = Clocks()
    assert clocks.agreed.now() is not None
    for off in ([-4 * HOUR_MS] * 3, [-4 * HOUR_MS, None, None]):
        clocks.off = list(off)
        clocks.true.advance(60)
        assert clocks.agreed.now() is None
        assert clocks.agreed.judged_ms() == clocks.true.now_ms()


def test_a_jump_that_is_taken_back_is_forgotten() -> None:
    clocks = Clocks()
    for off in (0, YEAR_MS, 0, -YEAR_MS, 0):
        clocks.off = [off] * 3
        clocks.true.advance(JUMP_SECONDS - 300)
        assert (clocks.agreed.now() is None) == bool(off)


def test_clocks_that_are_not_heard_are_no_majority(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    clocks.off = [0, None, None]
    assert clocks.agreed.now() is None
    assert not caplog.records, "it has just started"
    clocks.true.advance(60)
    assert clocks.agreed.now() is None
    assert "1 of 3 clocks of the metadata quorum are known here" in caplog.text
    clocks.off = [0, None, 0]
    assert clocks.agreed.now() is not None


# --- retention --------------------------------------------------------------------------------------------

RETENTION_SECONDS = 100


class SteppingClock:
    """The node's own clock, which may be off."""

    def __init__(self, true: Clock) -> None:
        self.true = true
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return self.true.now_ms() + self.ahead_ms

    def monotonic(self) -> float:
        return self.true.monotonic()


def prepare(node: SmallNode) -> None:
    node.topics = [topic(retention_ms=1000 * RETENTION_SECONDS)]


async def filled(node: SmallNode, timestamps: Sequence[int]) -> None:
    """A run with batches of these times."""
    await node.append(*(new_batch(QUEUE, 100, timestamp=timestamp) for timestamp in timestamps))
    await node.split()


async def log_start(node: SmallNode) -> int:
    """After a round of retention."""
    await node.storage.maintenance.retain()
    return node.offsets().log_start


def test_a_record_of_the_year_9999_goes_with_the_others(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        now = node.clock.now_ms()
        await filled(node, [now, YEAR_9999_MS, now])
        assert await log_start(node) == 0
        await node.restart()
        await asyncio.sleep(0.9 * RETENTION_SECONDS)
        assert await log_start(node) == 0
        await asyncio.sleep(0.2 * RETENTION_SECONDS)
        assert await log_start(node) == 3
        assert node.storage.queue_store.stored.file_count(0) == 0, "nor does it keep the run that it shared"

    simulated(tmp_path, story, prepare)


def test_a_record_of_the_year_9999_goes_from_the_journal_as_well(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.append(new_batch(QUEUE, 100, timestamp=YEAR_9999_MS))
        await node.fill(30)
        await node.rounds()
        assert await log_start(node) == 0
        await asyncio.sleep(1.1 * RETENTION_SECONDS)
        assert await log_start(node) > 0

    simulated(tmp_path, story, prepare)


def test_a_node_whose_clock_is_a_year_ahead_expires_nothing_early(tmp_path: Path) -> None:
    """A clock that steps while the node runs, and then one that the others do not bear out."""

    async def story(node: SmallNode) -> None:
        clock = node.clock = SteppingClock(node.clock)
        now = clock.now_ms()
        await filled(node, [now] * 3)
        await node.append(new_batch(QUEUE + 1, 100, producer=(7, 0, 0), timestamp=now))
        assert await log_start(node) == 0
        clock.ahead_ms = YEAR_MS
        assert await log_start(node) == 0
        assert len(node.storage.groups[0].producers) == 1
        node.consensus = Consensus(quorum_times=lambda: [clock.now_ms(), clock.true.now_ms(), clock.true.now_ms()])
        await node.restart()
        assert await log_start(node) == 0
        assert len(node.storage.groups[0].producers) == 1
        await asyncio.sleep(1.1 * RETENTION_SECONDS)
        assert await log_start(node) == 3, "by the time of the others it is due"

    simulated(tmp_path, story, prepare)


def test_size_counts_while_nobody_knows_the_time(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        node.topics = [topic(retention_ms=1000 * RETENTION_SECONDS, retention_bytes=500)]
        node.consensus = Consensus(quorum_times=lambda: [None])
        await node.restart()
        for _ in range(5):
            await filled(node, [1] * 2)
        assert 0 < await log_start(node) < 10

    simulated(tmp_path, story, prepare)


async def sealed(node: SmallNode, count: int = 30) -> None:
    """Segments with so many batches of the year 9999, whose age is when they were seen."""
    for _ in range(count):
        await node.append(new_batch(QUEUE, 1000, timestamp=YEAR_9999_MS))


def test_what_comes_while_retention_waits_for_the_manifest_is_no_older_than_that(tmp_path: Path) -> None:
    """It knows what time it was when it began; what was sealed half of the retention time later was not there then."""

    async def story(node: SmallNode) -> None:
        store = node.storage.queue_store
        first_seen = store.retention.first_seen

        async def slow(now_ms: int) -> Mapping[str, int]:
            store.retention.first_seen = first_seen  # type: ignore[method-assign]
            await asyncio.sleep(0.5 * RETENTION_SECONDS)
            await sealed(node)
            return await first_seen(now_ms)

        store.retention.first_seen = slow  # type: ignore[method-assign]
        assert await log_start(node) == 0
        await asyncio.sleep(0.6 * RETENTION_SECONDS)
        assert await log_start(node) == 0
        await asyncio.sleep(1.1 * RETENTION_SECONDS)
        assert await log_start(node) > 0

    simulated(tmp_path, story, prepare)


def test_a_run_that_is_committed_while_retention_waits_for_its_turn_was_not_seen_yet(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        store = node.storage.queue_store
        await node.fill(3)
        async with store.changes.lock:
            splitting = asyncio.ensure_future(node.split())
            await asyncio.sleep(1)
            assert not splitting.done()
            assert store.stored.file_count(0) == 0, "it waits for the lock as well"
            looking = asyncio.ensure_future(store.retention.first_seen(NOW))
            await asyncio.sleep(1)
        assert await splitting == ["committed"]
        assert await looking == {}
        assert list((await store.retention.first_seen(NOW + 1)).values()) == [NOW + 1]

    simulated(tmp_path, story)


def test_what_is_seen_was_there_by_the_latest_of_the_clocks_that_agree(tmp_path: Path) -> None:
    """By the earliest it would be taken for older than it is, by as much as clocks that agree may differ."""

    async def story(node: SmallNode) -> None:
        clock = node.clock
        ahead_ms = int(0.5 * 1000 * RETENTION_SECONDS)
        node.consensus = Consensus(quorum_times=lambda: [clock.now_ms(), clock.now_ms() + ahead_ms, None])
        await node.restart()
        await filled(node, [YEAR_9999_MS] * 3)
        await sealed(node)
        await node.rounds()
        now_ms = clock.now_ms()
        assert await log_start(node) == 0
        seen = (await node.storage.queue_store.retention.first_seen(0)).values()
        assert len(seen) == 1
        assert min(seen) >= now_ms + ahead_ms

    simulated(tmp_path, story, prepare)


def test_a_segment_is_seen_by_the_latest_of_the_clocks_that_agree_too(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        clock = node.clock
        ahead_ms = int(0.5 * 1000 * RETENTION_SECONDS)
        node.consensus = Consensus(quorum_times=lambda: [clock.now_ms(), clock.now_ms() + ahead_ms, None])
        await node.restart()
        await sealed(node)
        await node.rounds()
        assert await log_start(node) == 0
        await asyncio.sleep(1.3 * RETENTION_SECONDS)
        assert await log_start(node) == 0, "the earliest clock has not gone on for so long behind the latest"
        await asyncio.sleep(0.4 * RETENTION_SECONDS)
        assert await log_start(node) > 0

    simulated(tmp_path, story, prepare)
