"""Which figures are drawn: throughput over the number of queues, publish latency, CPU time per MB."""

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
        plots[f"queues-{per_request}-per-request"] = _over_queues(results, many_queues.series(per_request))
    for durability in sorted({row.durability for row in results.of("5")}):
        rows = [results.find("5", title, durability) for title in (
            isolation.ALONE, isolation.BESIDE_READER, isolation.ALONE_TWO_CORES, isolation.BESIDE_SPLIT
        )]  # fmt: skip
        name = f"latency-{durability.replace(' ', '-')}"
        plots[name] = _bars(results, "Publish latency p99 at half load", "p99_ms", rows)
    measured = [row for number in ("1", "2", "4") for row in results.of(number)]
    plots["cpu"] = _bars(results, "CPU time of the node", "cpu_ms_per_mb", measured)
    return {f"{name}.svg": plot for name, plot in plots.items() if plot is not None}


def _over_queues(results: Results, series: str) -> str | None:
    """At the durability that the series was first measured with."""
    rows = sorted((row for row in results.of("2") if row.series == series), key=lambda row: row.queues)
    rows = [row for row in rows if row.durability == rows[0].durability]
    drawn: dict[str, list[tuple[int, Spread]]] = {}
    for row in rows:
        for system in SYSTEMS:
            spread = results.spread(row, system, "batches_per_s")
            if spread is not None:
                drawn.setdefault(system, []).append((row.queues, spread))
    if not drawn:
        return None
    title = f"Produce, 100-byte records, 10 in a batch, {series.replace('per request', 'queues per request')}"
    return svg.lines(title, "batches/s", "queues", drawn)


def _bars(results: Results, title: str, metric: str, rows: Sequence[Row | None]) -> str | None:
    groups = []
    for row in rows:
        if row is None:
            continue
        spreads = {system: results.spread(row, system, metric) for system in SYSTEMS}
        found = {system: spread for system, spread in spreads.items() if spread is not None}
        if found:
            label = f"{row.title}, {row.durability}" if metric == "cpu_ms_per_mb" else row.title
            groups.append((label, found))
    if not groups:
        return None
    return svg.bars(title, METRICS[metric].unit, METRICS[metric].digits, groups)
