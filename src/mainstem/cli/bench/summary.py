"""The words and numbers that the summaries and progress lines of all measurements share.

A MB is a million bytes, as in network and disk speeds. Latencies are in milliseconds.
"""

from __future__ import annotations

from mainstem.cli.bench.latency_histogram import NANOSECONDS_MAX, LatencyHistogram
from mainstem.cli.bench.tally import Tally
from mainstem.cli.terminal.output import print_table

_PERCENTS = {"p50": 50.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9}

_ROW_ENDS_NS = [base * 10**power // 10 for power in range(3, 13) for base in (10, 15, 20, 30, 50, 70)] + [
    NANOSECONDS_MAX
]
"""A microsecond, where clocks and threads end to say much, to an hour, which takes the rest."""
_BAR_WIDTH = 40


def per_second(amount: float, seconds: float) -> float | None:
    """None of no time at all."""
    return round(amount / seconds, 3) if seconds > 0 else None


def speeds(record_bytes: int, records: int, seconds: float) -> str:
    """For people: '12.3 MB/s, 12,045 records/s'."""
    if seconds <= 0:
        return "-"
    return f"{record_bytes / seconds / 1e6:.1f} MB/s, {records / seconds:,.0f} records/s"


def milliseconds(nanoseconds: int) -> float:
    """To the microsecond: more is not known."""
    return round(nanoseconds / 1e6, 3)


def percentiles_ms(latency: LatencyHistogram) -> dict[str, float | None]:
    """p50, p95, p99, p99_9 and max; None where nothing was recorded."""
    found = {name: latency.percentile(percent) for name, percent in _PERCENTS.items()}
    found["max"] = latency.longest_ns if latency.count else None
    return {name: None if value is None else milliseconds(value) for name, value in found.items()}


def percentiles_text(latency: LatencyHistogram) -> str:
    """For people: 'p50 0.412, p95 …, max 3.100 ms'."""
    if not latency.count:
        return "-"
    values = percentiles_ms(latency).items()
    return ", ".join(f"{name.replace('_', '.')} {value:.3f}" for name, value in values) + " ms"


def histogram_rows(latency: LatencyHistogram) -> list[tuple[int, int]]:
    """(nanoseconds, how many are at or below them and above those of the row before), from the first that has any
    to the last; six rows per power of ten."""
    counts = list(zip(_ROW_ENDS_NS, latency.counts_up_to(_ROW_ENDS_NS), strict=True))
    filled = [row for row, (_, count) in enumerate(counts) if count]
    return counts[filled[0] : filled[-1] + 1] if filled else []


def print_histogram(latency: LatencyHistogram) -> None:
    """Rows of an upper end, a count, its share and a bar, on stdout."""
    rows = histogram_rows(latency)
    most = max((count for _, count in rows), default=0)
    table = []
    for end, count in rows:
        share, bar = f"{count / latency.count:.2%}", "#" * -(-_BAR_WIDTH * count // most)
        table.append((f"{milliseconds(end):,.9g}", f"{count:,}", share, bar))
    print_table([">UP TO MS", ">RECORDS", ">SHARE", "BAR"], table, empty="nothing arrived")


def quick_percentiles_text(latency: LatencyHistogram) -> str:
    """For a line that goes on: 'p50 0.412 ms, p99 0.910 ms'."""
    if not latency.count:
        return "-"
    found = {percent: latency.percentile(percent) or 0 for percent in (50, 99)}
    return ", ".join(f"p{percent} {milliseconds(value):.3f} ms" for percent, value in found.items())


def progress_text(tally: Tally) -> str:
    """The acknowledgements so far: 'p50 0.412 ms, p99 0.910 ms, 120 in flight'."""
    failed = f", {tally.failed:,} failed" if tally.failed else ""
    return f"{quick_percentiles_text(tally.latency)}, {tally.in_flight:,} in flight{failed}"


def errors_text(tally: Tally) -> str:
    """Errors by name: 'none' or '_MSG_TIMED_OUT 12, 3 unanswered'."""
    told = [f"{name} {count:,}" for name, count in tally.errors.most_common()]
    if tally.in_flight:
        told.append(f"{tally.in_flight:,} unanswered")
    return ", ".join(told) or "none"
