"""Is catch-up from segments faster than in an earlier tree, and than Kafka's? Alternating rounds over stores that stay.

    python -m bench.store.reads.cold_rounds DIRECTORY [--tree TREE …] [--rounds N]

The first run fills DIRECTORY with the stores of workload 8 (Spark splits and merges Mainstem's) and leaves them there.
All nodes live at the same time, one is asked at a time, and each round asks all of them, in an order that turns
around. TREE is a work tree of another commit with a compiled kernel; it gets a copy of the store.

Of each system: one queue and a thousand queues evicted, as in workload 8, and the one queue once more right after.
Kafka has it in the page cache then, which says what the client and the socket allow; Mainstem, which reads past the
page cache, asks the disk again.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import signal
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from bench import load
from bench.__main__ import CACHE, HOME
from bench.errors import BenchError
from bench.load import Fetch
from bench.machine import alone, share_cores, tuned
from bench.metrics import MEGABYTE, Figures, figures_of
from bench.process_tree import ProcessTree
from bench.report.tables import markdown
from bench.results import Results
from bench.session import SHORT, Bench, Session, Stage
from bench.store.run_spark import run_spark
from bench.systems import all_systems
from bench.systems.mainstem import Mainstem
from bench.systems.other_tree import OtherTree
from bench.systems.system import Durability, System
from bench.topics import Queues
from bench.window import Window
from bench.workloads import catching_up

WARM = "again, right after, 1 queue"
FILLED = "filled"
"""A file that says so."""


class _Held(Stage):
    """A stage whose directory stays."""

    def __init__(self, bench: Bench, session: Session, system: System, directory: Path) -> None:
        super().__init__(bench, "cold", session, system)
        self._directory = self.directory = directory

    def __enter__(self) -> _Held:
        return self

    def __exit__(self, *_: object) -> None:
        if self._node is not None:
            self._node.stop()


def _fill(stage: Stage) -> None:
    node = stage.start()
    for count in catching_up.COUNTS:
        catching_up.fill(stage, f"stored{count}", count, catching_up.STORED_BYTES["short"])
    catching_up.fill(stage, "behind", 16, catching_up.BEHIND_BYTES)
    if node.http is not None:
        run_spark(node.http, "split", "run")
        run_spark(node.http, "store", "merge")
    node.stop()


def _rows(stage: Stage, counts: tuple[int, ...], *, connections: int | None) -> dict[str, tuple[Fetch, bool]]:
    """Each row's load, and whether the files are evicted before it."""
    rows: dict[str, tuple[Fetch, bool]] = {}
    for count in counts:
        fetch = catching_up.fetch(stage, Queues(f"stored{count}", 1, count))
        if connections is not None:
            fetch = dataclasses.replace(fetch, connections=connections)
        rows[catching_up.cold(count)] = (fetch, True)
        if count == 1:
            rows[WARM] = (fetch, False)
    return rows


def _table(figures: dict[tuple[str, str], list[Figures]], labels: list[str]) -> str:
    lines = [["row", "system", "MB/s", "CPU ms/MB", "load's CPU ms/MB", "ratio of the first by MB/s, by CPU", "others"]]
    first = labels[0]
    for title in dict.fromkeys(title for title, _ in figures):
        for label in labels:
            mine, base = figures[title, label], figures[title, first]
            if not mine or not base:
                continue
            speeds = [one["mb_per_s"] for one in mine]
            pairs = [*zip(base, mine, strict=False)]
            lines.append([
                title, label, f"{statistics.median(speeds):.0f} ({min(speeds):.0f}–{max(speeds):.0f})",
                f"{statistics.median(one['cpu_ms_per_mb'] for one in mine):.2f}",
                f"{statistics.median(one['load_ms_per_mb'] for one in mine):.2f}",
                f"{statistics.median(a['mb_per_s'] / b['mb_per_s'] for a, b in pairs):.2f} × "
                f"{statistics.median(a['cpu_ms_per_mb'] / b['cpu_ms_per_mb'] for a, b in pairs):.2f} ×",
                f"{statistics.median(one['others_cores'] for one in mine):.2f}",
            ])  # fmt: skip
    return markdown(lines)


def _measure(stage: _Held, fetch: Fetch, *, evicted: bool) -> Figures:
    if evicted:
        stage.node.forget_past()
    stage.window()
    running = stage.begin(fetch)
    running.await_counting()
    window = Window(stage.node.tree, stage.bench.cpus, ProcessTree(running.process.pid))
    result = stage.finish(running)
    figures = figures_of([result], window.node_cpu_seconds())
    figures["load_ms_per_mb"] = result["load_cpu_seconds"] * 1000 / (result["bytes"] / MEGABYTE)
    figures["others_cores"] = window.others_cores()
    return figures


def _rounds(
    bench: Bench,
    session: Session,
    systems: list[tuple[System, Path]],
    counts: tuple[int, ...],
    rounds: int,
    connections: int | None,
) -> None:
    """Fill what is not filled, then measure, and print what there is however that ends."""
    figures: defaultdict[tuple[str, str], list[Figures]] = defaultdict(list)
    stages = [_Held(bench, session, system, directory) for system, directory in systems]
    try:
        for stage in stages:
            if not (stage.directory / FILLED).exists():
                shutil.rmtree(stage.directory, ignore_errors=True)
                if isinstance(stage.system, OtherTree):
                    shutil.copytree(stages[0].directory, stage.directory)
                    continue
                with stage:
                    _fill(stage)
                (stage.directory / FILLED).touch()
        for stage in stages:
            stage.start()
        loads = {stage: _rows(stage, counts, connections=connections) for stage in stages}
        for stage in stages:
            for fetch, _ in loads[stage].values():
                for _ in range(catching_up.WARM_PASSES):
                    stage.finish(stage.begin(fetch))
        for number in range(rounds):
            for title in loads[stages[0]]:
                for stage in stages if number % 2 else reversed(stages):
                    fetch, evicted = loads[stage][title]
                    figures[title, stage.label].append(_measure(stage, fetch, evicted=evicted))
    finally:
        for stage in stages:
            stage.__exit__(None, None, None)
        print(_table(figures, [stage.label for stage in stages]), flush=True)


def run(options: argparse.Namespace) -> int:
    home: Path = options.directory
    home.mkdir(parents=True, exist_ok=True)
    systems: list[tuple[System, Path]] = [(Mainstem(), home / "mainstem")]
    for number, tree in enumerate(options.tree, 1):
        other = OtherTree(tree)
        other.name = f"tree {tree.name}"
        systems.append((other, home / f"tree-{number}"))
    if not options.without_kafka:
        systems.append((all_systems(CACHE)["kafka"], home / "kafka"))
    for system, _ in systems:
        system.prepare()
    session = Session(name="cold", run=_fill, durability=Durability.ASYNC)
    program = load.build(HOME)
    with alone(CACHE / "lock", lambda line: print(line, file=sys.stderr)), tuned(home) as notes:
        form = dataclasses.replace(SHORT, repetitions=options.rounds)
        bench = Bench(form, share_cores(), Results({}), home, program, CACHE, {}, "1g", 0)
        _rounds(bench, session, systems, tuple(options.queues), options.rounds, options.connections)
        print("\n".join(notes))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIRECTORY")
    parser.add_argument("--tree", type=Path, action="append", default=[], help="another tree to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queues", type=int, action="append", choices=catching_up.COUNTS, help="only these rows")
    parser.add_argument("--connections", type=int, help="of the load, in place of workload 8's")
    parser.add_argument("--without-kafka", action="store_true", help="only the trees")
    options = parser.parse_args()
    options.queues = options.queues or catching_up.COUNTS
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    try:
        return run(options)
    except (BenchError, load.LoadError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
