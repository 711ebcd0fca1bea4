"""The parts of the measurements that need no node."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from mainstem.cli.bench.arrivals import STAMP_BYTES, Arrivals, Stamp, probe_run, stamp_of
from mainstem.cli.bench.ending import SECONDS_DEFAULT, RunLimits, limits
from mainstem.cli.bench.live_line import LiveLine
from mainstem.cli.bench.load import random_texts
from mainstem.cli.bench.sender import client_settings
from mainstem.cli.bench.tally import SILENCE_SECONDS_MAX, Tally
from mainstem.cli.terminal.connection_news import ConnectionNews

RUN = b"a run..."
SECOND = 10**9


class FakeClock:
    """Nanoseconds that pass when told."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def seconds(self) -> float:
        return self.now_ns / SECOND


class FakeError:
    def name(self) -> str:
        return "NOT_ENOUGH_REPLICAS"


class SilentConsumer:
    """A client to which nothing comes."""

    def __init__(self) -> None:
        self.closed = False

    def poll(self, seconds: float) -> None:
        return None

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def tally(clock: FakeClock) -> Tally:
    return Tally(ConnectionNews("node:1"), clock=clock)


@pytest.fixture
def arrivals(clock: FakeClock) -> Iterator[Arrivals]:
    consumer = SilentConsumer()
    arrivals = Arrivals(consumer, RUN, 100, clock=clock)
    yield arrivals
    arrivals.close()
    assert consumer.closed


def test_latency_counts_from_when_a_record_was_due(tally: Tally, clock: FakeClock) -> None:
    for _ in range(3):
        tally.sending()
    clock.now_ns = 5 * SECOND
    tally.outcome(2 * SECOND, None, None)
    tally.outcome(0, FakeError(), None)
    assert (tally.acknowledged, tally.failed, tally.in_flight) == (1, 1, 1)
    assert tally.latency.longest_ns == 3 * SECOND
    assert tally.errors == {"NOT_ENOUGH_REPLICAS": 1}


def test_there_is_no_hope_when_all_is_refused_from_the_start(tally: Tally) -> None:
    tally.sending()
    assert not tally.is_hopeless()
    tally.outcome(0, FakeError(), None)
    assert tally.is_hopeless()


def test_one_refusal_among_acknowledgements_ends_nothing(tally: Tally) -> None:
    for error in (None, FakeError()):
        tally.sending()
        tally.outcome(0, error, None)
    assert not tally.is_hopeless()


def test_hope_ends_with_a_long_silence_and_not_with_a_slow_rate(tally: Tally, clock: FakeClock) -> None:
    for _ in range(3):
        tally.sending()
        assert not tally.is_hopeless()
        clock.now_ns += SECOND
        tally.outcome(clock.now_ns, None, None)
        # Nothing is waited for: no silence.
        clock.now_ns += int(SILENCE_SECONDS_MAX * 2) * SECOND
        assert not tally.is_hopeless()
    tally.sending()
    clock.now_ns += int(SILENCE_SECONDS_MAX + 1) * SECOND
    assert tally.is_hopeless()


@pytest.mark.parametrize(
    ("records", "total_bytes", "seconds", "wanted"),
    [
        (None, None, None, RunLimits(seconds=SECONDS_DEFAULT)),
        (7, None, None, RunLimits(records=7)),
        (None, 101, None, RunLimits(records=2)),
        (1, 1000, 3.0, RunLimits(records=1, seconds=3.0)),
        (None, None, 0.5, RunLimits(seconds=0.5)),
    ],
)
def test_limits(records: int | None, total_bytes: int | None, seconds: float | None, wanted: RunLimits) -> None:
    assert limits(records, total_bytes, seconds, 100) == wanted


def test_records_are_of_the_size_asked_for_and_differ() -> None:
    for size in (1, 24, 5000):
        assert {len(text) for text in random_texts(size)} == {size}
    assert len(set(random_texts(100))) == len(random_texts(100)) > 1000
    assert len(random_texts(50_000_000)) == 1


@pytest.mark.parametrize("producers", [1, 64])
def test_a_buffer_holds_a_record_larger_than_it(producers: int) -> None:
    kbytes = client_settings(50_000_000, 1024, producers)["queue.buffering.max.kbytes"]
    assert isinstance(kbytes, int)
    assert kbytes * 1024 > 50_000_000


def test_a_stamp_is_read_where_it_was_written() -> None:
    stamp = Stamp(RUN, 3, 4)
    record = stamp.on(b"x" * 40)
    assert len(record) == 40
    assert stamp_of(record) == stamp
    assert stamp.on(bytes(STAMP_BYTES)) == record[:STAMP_BYTES]
    assert stamp_of(record[: STAMP_BYTES - 1]) is None
    assert stamp_of(None) is None


def test_arrivals_count_each_record_of_their_run_once(arrivals: Arrivals, clock: FakeClock) -> None:
    filling = bytes(STAMP_BYTES)
    clock.now_ns = 10
    for number in (0, 99, 7, 99):
        arrivals.take(Stamp(RUN, number, 4).on(filling), 0)
    arrivals.take(Stamp(b"another.", 1, 4).on(filling), 0)
    arrivals.take(Stamp(RUN, 10**9, 4).on(filling), 0)
    arrivals.take(b"short", 0)
    assert (arrivals.received, arrivals.repeated, arrivals.probes) == (3, 1, set())
    assert arrivals.latency.longest_ns == 6
    arrivals.take(Stamp(probe_run(RUN), 2, 4).on(filling), 2)
    assert (arrivals.received, arrivals.probes) == (3, {2})


def test_a_line_comes_once_per_second_with_the_speed_of_that_second(clock: FakeClock) -> None:
    said = io.StringIO()
    with LiveLine(True, console=Console(file=said), monotonic=clock.seconds) as line:
        for records in range(0, 5001, 10):
            clock.now_ns += SECOND // 200
            line.offer(records, records * 1000, lambda: "and more")
    lines = said.getvalue().splitlines()
    assert lines == ["2.0 MB/s, 1,990 records/s, and more", "2.0 MB/s, 2,000 records/s, and more"]


def test_no_line_where_none_is_wanted(clock: FakeClock) -> None:
    said = io.StringIO()
    for shown in (False, None):
        with LiveLine(shown, console=Console(file=said), monotonic=clock.seconds) as line:
            clock.now_ns += 5 * SECOND
            line.offer(1, 1, lambda: pytest.fail("made and not shown"))
    assert said.getvalue() == ""


def test_a_terminal_has_the_line_in_place(clock: FakeClock) -> None:
    said = io.StringIO()
    with LiveLine(None, console=Console(file=said, force_terminal=True), monotonic=clock.seconds) as line:
        clock.now_ns += SECOND
        line.offer(10, 10_000_000, lambda: "and more")
    assert "10.0 MB/s, 10 records/s, and more" in said.getvalue()
    # Erased at the end: the summary stands alone.
    assert said.getvalue().endswith("\x1b[2K")
