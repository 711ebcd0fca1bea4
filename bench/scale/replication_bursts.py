"""Has a small request to three nodes become cheaper since an earlier commit?

`python -m bench.scale.replication_bursts TREE [--nodes 3] [--connections 3] [--pairs 8]`: nodes of this tree and of
`TREE` (a work tree of another commit with a compiled kernel) live at once and are given short bursts of the same small
requests in turn. So whatever else the machine does meets both, and a minute tells apart what `replication_costs`, whose
nodes live one after another, needs ten for. The figure is the processor time of all nodes for each request, by the
scheduler's own count; ratios are taken within each pair of bursts.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import load
from bench.__main__ import CACHE, HOME
from bench.errors import BenchError
from bench.load import Produce
from bench.machine import alone, share_cores
from bench.report.tables import markdown
from bench.results import Results
from bench.session import CLUSTER, Bench, Session, Stage
from bench.systems.mainstem import Mainstem
from bench.systems.other_tree import OtherTree
from bench.systems.system import Durability, System
from bench.workloads.three_nodes import SMALL, small_title

BURST_SECONDS = 0.7
"""Short beside what a machine does for some seconds, long beside what a load needs to begin."""
PAUSE_SECONDS = 0.1
QUEUES = 64


@dataclasses.dataclass(slots=True)
class Living:
    """The nodes of one tree, and the processor time in µs of each burst's requests."""

    stage: Stage
    produce: Produce
    costs: list[float] = dataclasses.field(default_factory=list)

    def burst(self) -> None:
        time.sleep(PAUSE_SECONDS)
        processes = self.stage.node.tree.pids()
        before = processor_seconds(processes)
        result = self.stage.finish(self.stage.begin(self.produce))
        self.costs.append(1e6 * (processor_seconds(processes) - before) / result["requests"])


def processor_seconds(processes: Sequence[int]) -> float:
    """Of all threads of these processes since they began."""
    total = 0
    for process in processes:
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def run(tree: Path, nodes: int, connections: int, pairs: int) -> str:
    """A table. Raises BenchError, LoadError."""
    systems: list[System] = [Mainstem(), OtherTree(tree)]
    program = load.build(HOME)
    data = Path(os.environ.get("BENCH_DATA", HOME / "data")) / str(os.getpid())
    session = Session(name="bursts", run=lambda _: None, durability=Durability.ASYNC, nodes=nodes, all_cores=True)
    form = dataclasses.replace(CLUSTER, seconds=BURST_SECONDS)
    try:
        with alone(CACHE / "lock", lambda line: print(line, file=sys.stderr)), contextlib.ExitStack() as stages:
            living: list[Living] = []
            for at, system in enumerate(systems):
                system.prepare()
                directory = data / str(at)
                directory.mkdir(parents=True)
                bench = Bench(form, share_cores(), Results(), directory, program, CACHE, {system.name: system}, "", 0)
                stage = stages.enter_context(Stage(bench, "bursts", session, system))
                stage.start()
                produce = stage.produce(stage.create("small", QUEUES), **SMALL | {"connections": connections})
                stage.finish(stage.begin(produce))  # connections are made, and the interpreter's caches filled
                stage.rest()
                living.append(Living(stage, produce))
            for number in range(pairs):
                for one in living if number % 2 else reversed(living):
                    one.burst()
            return told(nodes, connections, systems, living)
    finally:
        shutil.rmtree(data, ignore_errors=True)


def told(nodes: int, connections: int, systems: Sequence[System], living: Sequence[Living]) -> str:
    mine, theirs = (one.costs for one in living)
    ratios = [this / that for this, that in zip(mine, theirs, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    lines = [["row", "nodes", *(f"{system.name}, µs/request" for system in systems), "this tree / the other"]]
    costs = (f"{statistics.median(one):.1f}" for one in (mine, theirs))
    lines.append([small_title(connections), str(nodes), *costs, f"{middle:.3f} ({low:.3f}–{high:.3f})"])
    return markdown(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, metavar="TREE")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--connections", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=8)
    options = parser.parse_args()
    if options.pairs < 2:
        parser.error("--pairs: two at least, as there are quartiles")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    try:
        print(run(options.tree, options.nodes, options.connections, options.pairs))
    except (BenchError, load.LoadError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
