"""Markdown tables of a workload: per row and figure the median (smallest-largest) of each system, and their ratio."""

from __future__ import annotations

from collections.abc import Sequence

from bench.metrics import METRICS
from bench.results import Results, Row, Spread

PEER = "kafka"
DISTURBANCE = "others_cores"
DISTURBANCE_SHOWN = 0.1
"""Below that, other work on the bench's cores changes figures less than repetitions differ."""
_HEAD = ["row", "acknowledged when", "figure"]


def workload_table(results: Results, workload: str, shown: Sequence[str]) -> str:
    """Of the metrics `shown`, and of other work where it took enough to matter. Empty when nothing was measured."""
    rows = results.of(workload)
    if not rows:
        return ""
    systems = sorted({system for row in rows for system in results.systems(row)}, key=_order)
    compared = [system for system in systems if system != PEER] if PEER in systems else []
    lines = [_HEAD + systems + [f"{system} / {PEER}" for system in compared]]
    for row in rows:
        head = [row.title, row.durability]
        for name in [*shown, DISTURBANCE]:
            if name in results.metrics(row) and (name != DISTURBANCE or disturbance(results, row) > DISTURBANCE_SHOWN):
                lines.append([*head, *_cells(results, row, systems, compared, name)])
                head = ["", ""]
    return markdown(lines)


def disturbance(results: Results, row: Row) -> float:
    """Cores that other work took meanwhile: the largest of the systems' medians."""
    return max(results.median(row, system, DISTURBANCE) or 0.0 for system in results.systems(row))


def _cells(results: Results, row: Row, systems: list[str], compared: list[str], name: str) -> list[str]:
    metric = METRICS[name]
    cells = [f"{metric.title} {metric.unit}".strip()]
    cells += [_spread(results.spread(row, system, name), metric.digits) for system in systems]
    for system in compared:
        ratio = results.ratio(row, name, system, PEER) if name != DISTURBANCE else None
        better = ratio is not None and (ratio >= 1) == metric.higher_is_better
        cells.append("" if ratio is None else f"**{ratio:.2f}**" if better else f"{ratio:.2f}")
    return cells


def _spread(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return ""
    if spread.count == 1:
        return f"{spread.median:,.{digits}f}"
    return f"{spread.median:,.{digits}f} ({spread.least:,.{digits}f}–{spread.most:,.{digits}f})"


def _order(system: str) -> tuple[bool, str]:
    return (system == PEER, system)


def markdown(lines: list[list[str]]) -> str:
    """A table; the first line is its head."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    lines = [lines[0], ["-" * width for width in widths], *lines[1:]]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in padded)
