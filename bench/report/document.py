"""The whole report of a result file: machine and versions, targets, tables; plots as files beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.report.plots import all_plots
from bench.report.tables import disturbance, markdown, workload_table
from bench.results import Results
from bench.session import Workload
from bench.targets import all_targets

DISTURBED_FROM = 0.3
"""Cores taken by other work in any row of a workload; from there on its verdicts are not the systems' alone."""


def write_report(results: Results, workloads: tuple[Workload, ...], path: Path) -> list[Path]:
    """`path` is the result file; the report has its name and ends in .md, plots lie in a directory of its name.
    Returns what was written."""
    written = [path.with_suffix(".md")]
    plots = all_plots(results)
    if plots:
        path.with_suffix("").mkdir(exist_ok=True)
    for name, plot in plots.items():
        written.append(path.with_suffix("") / name)
        written[-1].write_text(plot)
    parts = [_facts(results.facts), "## Targets\n", targets_table(results)]
    for workload in workloads:
        table = workload_table(results, workload.number, workload.shown)
        if table:
            parts += [f"## {workload.number}: {workload.title}\n", table]
    parts += [f"![{name}]({path.stem}/{name})\n" for name in plots]
    if results.notes:
        parts += ["## Notes\n", "".join(f"- {note}\n" for note in results.notes)]
    written[0].write_text("\n".join(parts))
    return written


def targets_table(results: Results, *, measured_only: bool = False) -> str:
    """Every target with its figure, whether that reaches it, and whether other work took part in that; beside
    throughputs, the same comparison per second of the node's CPU time."""
    disturbed = {row.workload for row in results.rows if disturbance(results, row) > DISTURBED_FROM}
    lines = [["workload", "target", "bound", "measured", "", "by CPU time"]]
    for target in all_targets():
        figure = target.figure(results)
        if figure is None and measured_only:
            continue
        cpu = target.by_cpu(results) if target.by_cpu else None
        verdict = "not measured" if figure is None else "reached" if target.reached(figure) else "**short**"
        if figure is not None and target.workload in disturbed:
            verdict += ", disturbed"
        lines.append([
            target.workload,
            target.name,
            f"{'≥' if target.at_least else '≤'} {target.bound:.3g} {target.unit}",
            "" if figure is None else f"{figure:.2f} {target.unit}",
            verdict,
            "" if cpu is None else f"{cpu:.2f} {target.unit}",
        ])  # fmt: skip
    return markdown(lines)


def _facts(facts: dict[str, Any]) -> str:
    machine, cores, form = facts["machine"], facts["cores"], facts["form"]
    gib = 1 << 30
    lines = [
        f"{facts['when']}, commit {facts['commit']}, {form['name']} form: {form['repetitions']} repetitions of "
        f"{form['seconds']:g} s.",
        f"{', '.join(facts['versions'].values())}; JVM heap {facts['heap']}.",
        f"{machine['cpu']}, {machine['cores']} cores (node on {cores['broker']}, load on {cores['load']}), "
        f"{machine['memory_bytes'] / gib:.1f} GiB, {machine['disk']}, Linux {machine['kernel']}.",
        f"{machine['java']}; Python {machine['python']}.",
        f"Dirty thresholds {machine['dirty_background_bytes'] / gib:.1f} and {machine['dirty_bytes'] / gib:.1f} GiB; "
        f"{machine['open_files_max']:,} open files, {machine['maps_max']:,} memory maps; "
        f"read-ahead {machine['read_ahead_kb']} KB.",
        f"Load average before the first run: {machine['load_average']:.2f}.",
    ]
    return "# Bench\n\n" + "  \n".join(lines) + "\n"
