"""What do three nodes cost beside one, and has that changed since an earlier commit?

`python -m bench.scale.replication_costs [TREE] [--rounds 4]`: in each round this tree, and `TREE` (a work tree of
another commit with a compiled kernel, see `bench.between_trees`), start one node and three nodes, in an order that
alternates, and are given the same loads: those of `python -m bench cluster` with requests of 100 bytes and of 1 MB.
The figure is the CPU time of all nodes for what was acknowledged. Ratios are taken within each round; the tables have
their medians, and the quartiles.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import signal
import statistics
import sys
from functools import partial
from pathlib import Path

from bench import load
from bench.__main__ import CACHE, HOME
from bench.errors import BenchError
from bench.machine import alone, share_cores, tuned
from bench.report.tables import markdown
from bench.results import Results
from bench.session import CLUSTER, Bench, Session, Stage
from bench.systems.mainstem import Mainstem
from bench.systems.other_tree import OtherTree
from bench.systems.system import Durability, System
from bench.workloads.three_nodes import LARGE, LARGE_TITLE, SMALL, TIMES, small_title

WORKLOAD = "replication"
CPU = "cpu_us_per_batch"
CONNECTIONS = (3, 63)
TITLES = (*map(small_title, CONNECTIONS), LARGE_TITLE)
NODES = (1, 3)
WARM_SECONDS = 0.6
"""No compiler has to be waited for: connections are made, and the interpreter's caches filled."""


def measure(stage: Stage, *, small_only: bool) -> None:
    """One life of one node, or of three."""
    stage.start()
    small = stage.create("small", 64)
    for connections in CONNECTIONS:
        produce = stage.produce(small, **SMALL | {"connections": connections})
        stage.finish(stage.begin(dataclasses.replace(produce, seconds=WARM_SECONDS)))
        stage.rest()
        for _ in range(TIMES):
            stage.measure(f"{small_title(connections)} to {stage.session.nodes}", produce)
    if small_only:
        return
    produce = stage.produce(stage.create("large", 96), **LARGE)
    stage.finish(stage.begin(dataclasses.replace(produce, seconds=WARM_SECONDS)))
    stage.rest()
    for _ in range(TIMES):
        stage.measure(f"{LARGE_TITLE} to {stage.session.nodes}", produce)


def _values(results: Results, title: str, nodes: int, system: System) -> list[float]:
    row = next((row for row in results.of(WORKLOAD) if row.title == f"{title} to {nodes}"), None)
    return results.values(row, system.name, CPU) if row is not None else []


def _ratio(these: list[float], those: list[float]) -> str:
    ratios = [this / that for this, that in zip(these, those, strict=False) if that]
    if len(ratios) < 2:
        return "".join(f"{ratio:.2f}" for ratio in ratios)
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def tables(results: Results, systems: list[System]) -> str:
    """Three nodes beside one, for each tree; and this tree beside the other."""
    lines = [["row", "tree", "one node, µs/batch", "three nodes, µs/batch", "three / one"]]
    for title in TITLES:
        for system in systems:
            one, three = (_values(results, title, nodes, system) for nodes in NODES)
            if one and three:
                lines.append([
                    title, system.name, f"{statistics.median(one):.1f}", f"{statistics.median(three):.1f}",
                    _ratio(three, one),
                ])  # fmt: skip
    text = markdown(lines)
    if len(systems) > 1:
        mine, theirs = systems
        lines = [["row", *(f"{nodes} nodes, this tree / {theirs.name}" for nodes in NODES)]]
        for title in TITLES:
            ratios = (_ratio(*(_values(results, title, nodes, one) for one in (mine, theirs))) for nodes in NODES)
            lines.append([title, *ratios])
        text += "\n" + markdown(lines)
    return text


def run(tree: Path | None, rounds: int, seconds: float, durability: Durability, *, small_only: bool) -> None:
    systems: list[System] = [Mainstem()]
    if tree is not None:
        systems.append(OtherTree(tree))
        systems[1].prepare()
    data = Path(os.environ.get("BENCH_DATA", HOME / "data")) / str(os.getpid())
    data.mkdir(parents=True)
    results = Results()
    one_life = partial(measure, small_only=small_only)
    form = dataclasses.replace(CLUSTER, seconds=seconds)
    try:
        program = load.build(HOME)
        with alone(CACHE / "lock", lambda line: print(line, file=sys.stderr)), tuned(data):
            named = {system.name: system for system in systems}
            bench = Bench(form, share_cores(), results, data, program, CACHE, named, "", 0)
            for number in range(rounds):
                for nodes in NODES:
                    session = Session(
                        name="replication", run=one_life, durability=durability, nodes=nodes, all_cores=True
                    )
                    for system in systems if number % 2 else reversed(systems):
                        with Stage(bench, WORKLOAD, session, system) as stage:
                            one_life(stage)
    finally:
        shutil.rmtree(data, ignore_errors=True)
        print(tables(results, systems))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, nargs="?", metavar="TREE")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=CLUSTER.seconds, help="of each measurement")
    parser.add_argument("--sync", action="store_true", help="on disk, in place of the page cache")
    parser.add_argument("--small", action="store_true", help="requests of 100 bytes alone")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    try:
        durability = Durability.SYNC if options.sync else Durability.ASYNC
        run(options.tree, options.rounds, options.seconds, durability, small_only=options.small)
    except (BenchError, load.LoadError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
