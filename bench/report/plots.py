"""Which figures are drawn: throughput and CPU time over the number of queues, publish latency, CPU time per MB."""

from __future__ import annotations

from collections.abc import Sequence

from bench.metrics import METRICS
from bench.report import svg
from bench.results import Results, Row, Spread
from bench.workloads import isolation, many_queues

SYSTEMS = ("mainstem", "mainstem recycled", "mainstem split", "kafka")


def all_plots(results: Results) -> dict[str, str]:
    """SVG texts by file name, without those of which nothing was measured."""
    plots: dict[str, str | None] = {}
    for per_request in many_queues.PER_REQUEST:
        series = many_queues.series(per_request)
        for metric, name in (("batches_per_s", "throughput"), ("cpu_us_per_batch", "cpu")):
            plots[f"{name}-over-queues-{per_request}-per-request"] = _over_queues(results, series, metric)
    for durability in sorted({row.durability for row in results.of("5")}):
        rows = [results.find("5", title, durability) for title in (
            isolation.ALONE, isolation.BESIDE_READER, isolation.ALONE_TWO_CORES, isolation.BESIDE_SPLIT
        )]  # fmt: skip
        name = f"latency-{durability.replace(' ', '-')}"
        plots[name] = _bars(results, "Publish latency p99 at half load", "p99_ms", rows)
    for number, name in (("1", "cpu-of-large-requests"), ("4", "cpu-of-consuming")):
        plots[name] = _bars(results, "CPU time of the node", "cpu_ms_per_mb", results.of(number))
    return {f"{name}.svg": plot for name, plot in plots.items() if plot is not None}


def _over_queues(results: Results, series: str, metric: str) -> str | None:
    """At the durability that the series was first measured with."""
    rows = sorted((row for row in results.of("2") if row.series == series), key=lambda row: row.queues)
    rows = [row for row in rows if row.durability == rows[0].durability]
    drawn: dict[str, list[tuple[int, Spread]]] = {}
    for row in rows:
        for system in SYSTEMS:
            spread = results.spread(row, system, metric)
            if spread is not None:
                drawn.setdefault(system, []).append((row.queues, spread))
    if not drawn:
        return None
    what = METRICS[metric].title[0].upper() + METRICS[metric].title[1:]
    title = f"{what} by queues, {series}; 100-byte records, 10 in a batch"
    return svg.lines(title, METRICS[metric].unit.replace("1/s", "per second"), "queues", drawn)


def _bars(results: Results, title: str, metric: str, rows: Sequence[Row | None]) -> str | None:
    """Labelled by the rows' titles, and by what they differ in besides."""
    found = [row for row in rows if row is not None]
    several = len({row.durability for row in found}) > 1
    groups = []
    for row in found:
        spreads = {system: results.spread(row, system, metric) for system in SYSTEMS}
        measured = {system: spread for system, spread in spreads.items() if spread is not None}
        if measured:
            groups.append((f"{row.title}, {row.durability}" if several else row.title, measured))
    if not groups:
        return None
    return svg.bars(title, METRICS[metric].unit, METRICS[metric].digits, groups)
