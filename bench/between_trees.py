"""Has plain produce or fetch become dearer since an earlier commit? `python -m bench.between_trees TREE`

`TREE` is a work tree of the earlier commit with a compiled kernel (`git worktree add TREE COMMIT`; there, `python
setup.py build_ext --inplace`). In each of twenty rounds both trees start a node each, in an order that alternates, and
are given the same loads one after the other. The figure is the CPU time of the whole node for the same work. A ratio is
taken within each round; the table has the median of these. The target is at most 1.05.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import shutil
import signal
import statistics
import sys
from pathlib import Path

from bench import load
from bench.__main__ import CACHE, HOME
from bench.errors import BenchError
from bench.machine import alone, read_machine, share_cores, tuned
from bench.report.tables import markdown
from bench.results import Results
from bench.session import SHORT, Bench, Session, Stage
from bench.systems.mainstem import Mainstem
from bench.systems.other_tree import OtherTree
from bench.systems.system import Durability, System

TARGET = 1.05
ROUNDS = 20
WORKLOAD = "trees"
QUEUES = 64
SMALL = {"record_bytes": 100, "batch_records": 1, "queues_per_request": 1}
LARGE = {"record_bytes": 1024, "batch_records": 100, "queues_per_request": 10}
CPU = "cpu_us_per_batch"
LARGE_BYTES = 224 << 20
"""Within the write cache, from which it is read again."""
SMALL_CONNECTIONS = 8
FETCH_PASSES = 6
SMALL_FETCH_PASSES = 30
"""A pass takes the node a hundredth of a second, which is as much as the kernel counts."""
PRODUCE_SMALL, PRODUCE_LARGE = "produce, a 100-byte record a request", "produce, 1 MB requests"
FETCH_SMALL, FETCH_LARGE = "fetch, batches of 100 bytes", "fetch, batches of 100 KB"
ROWS = (PRODUCE_SMALL, PRODUCE_LARGE, FETCH_SMALL, FETCH_LARGE)


def measure(stage: Stage) -> None:
    """One life of one node."""
    stage.start()
    small, large = stage.create("small", QUEUES), stage.create("large", QUEUES)
    produce = stage.produce(small, **SMALL, connections=SMALL_CONNECTIONS, in_flight=1)
    stage.finish(stage.begin(dataclasses.replace(produce, seconds=1.0)))
    stage.rest()
    stage.measure(PRODUCE_SMALL, produce)
    stage.measure(FETCH_SMALL, stage.fetch(small, connections=4, in_flight=1, queues_per_request=QUEUES // 4,
                                           partition_max_bytes=1 << 16, until_end=True, seconds=30.0),
                  passes=SMALL_FETCH_PASSES)  # fmt: skip
    stage.finish(stage.begin(stage.produce(large, **LARGE, seconds=0.5)))
    large = stage.create("measured", QUEUES)
    stage.rest()
    stage.measure(PRODUCE_LARGE, stage.produce(large, **LARGE, bytes=LARGE_BYTES, seconds=60.0))
    fetch = stage.fetch(large, connections=4, in_flight=1, queues_per_request=QUEUES // 4, until_end=True, seconds=30.0)
    stage.measure(FETCH_LARGE, fetch, passes=FETCH_PASSES)


def table(results: Results, other: str) -> str:
    """Medians of both, and the median of the ratios round by round."""
    lines = [["row", "rounds", "this tree, µs/batch", f"{other}, µs/batch", "ratio", "quartiles", "target"]]
    for title in ROWS:
        row = results.find(WORKLOAD, title)
        if row is None:
            continue
        mine, theirs = results.values(row, Mainstem.name, CPU), results.values(row, OtherTree.name, CPU)
        ratios = sorted(this / that for this, that in zip(mine, theirs, strict=False) if that)
        if not ratios:
            continue
        median = statistics.median(ratios)
        quartiles = f"{ratios[len(ratios) // 4]:.3f}–{ratios[3 * len(ratios) // 4]:.3f}"
        lines.append([
            title, str(len(ratios)), f"{statistics.median(mine):.2f}", f"{statistics.median(theirs):.2f}",
            f"{median:.3f}", quartiles, "met" if median <= TARGET else "MISSED",
        ])  # fmt: skip
    return markdown(lines)


def run(tree: Path, rounds: int, seconds: float) -> int:
    other = OtherTree(tree)
    other.prepare()
    systems: dict[str, System] = {Mainstem.name: Mainstem(), OtherTree.name: other}
    data = Path(os.environ.get("BENCH_DATA", HOME / "data")) / str(os.getpid())
    data.mkdir(parents=True)
    path = HOME / "results" / f"{datetime.datetime.now():%Y-%m-%d-%H%M%S}-trees.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    form = dataclasses.replace(SHORT, repetitions=rounds, seconds=seconds)
    session = Session(name="trees", run=measure, durability=Durability.ASYNC, systems=tuple(systems))
    results = Results({"when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                       "form": dataclasses.asdict(form),
                       "versions": {name: system.version() for name, system in systems.items()}})  # fmt: skip
    try:
        program = load.build(HOME)
        with alone(CACHE / "lock", lambda line: print(line, file=sys.stderr)), tuned(data) as notes:
            results.facts["machine"] = dataclasses.asdict(read_machine(data, ""))
            results.notes.extend(notes)
            bench = Bench(form, share_cores(), results, data, program, CACHE, systems, "", 0)
            for number in range(rounds):
                for system in systems.values() if number % 2 else reversed(systems.values()):
                    with Stage(bench, WORKLOAD, session, system) as stage:
                        measure(stage)
                results.save(path)
    finally:
        shutil.rmtree(data, ignore_errors=True)
        print(table(results, other.version()))
        if path.exists():
            print(path)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, metavar="TREE")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each load that has no end of its own")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    try:
        return run(options.tree, options.rounds, options.seconds)
    except (BenchError, load.LoadError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
