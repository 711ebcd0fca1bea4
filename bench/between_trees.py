"""Has plain produce or fetch become dearer since an earlier commit? `python -m bench.between_trees TREE`

`TREE` is a work tree of the earlier commit with a compiled kernel (`git worktree add TREE COMMIT`; there, `python
setup.py build_ext --inplace`). A node of each tree lives at the same time, and only one is given a load. In each of
twenty rounds both get the same bytes to write and to give out, one right after the other, in an order that alternates.
After five rounds both are replaced: a process keeps for all its life what memory it happened to be given. The figure is
the CPU time of the whole node for the same work. A ratio is taken within each round; the table has the median of
these. The target is at most 1.05.

A node may put work off until its load is over, as the filling of files for the next one: of requests of 1 MB a second
row counts what the node spends until it is at rest again.

`--keep FILE` adds the rounds to those in the file, so that they may be made in pieces.
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
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import load
from bench.__main__ import CACHE, HOME
from bench.errors import BenchError
from bench.load import Fetch, Produce
from bench.machine import alone, read_machine, share_cores, tuned
from bench.report.tables import markdown
from bench.results import Results, load_results
from bench.session import SHORT, Bench, Session, Stage
from bench.systems.mainstem import Mainstem
from bench.systems.other_tree import OtherTree
from bench.systems.system import Durability, System

TARGET = 1.05
ROUNDS = 20
ROUNDS_OF_A_LIFE = 5
WORKLOAD = "trees"
QUEUES = 64
SMALL = {"record_bytes": 100, "batch_records": 1, "queues_per_request": 1}
TOGETHER = {**SMALL, "queues_per_request": QUEUES}
"""The same batches in fewer requests, where they are written only to be read."""
LARGE = {"record_bytes": 1024, "batch_records": 100, "queues_per_request": 10}
CPU = "cpu_us_per_batch"
SMALL_BYTES = 2 << 20
"""Of requests with one record each: about 12,000 requests, half a second."""
READ_BYTES = 24 << 20
"""Of small batches that are read: 140,000, which are over twenty responses."""
LARGE_BYTES = 160 << 20
"""Within the write cache, from which it is read again."""
SMALL_CONNECTIONS = 8
FETCH_PASSES = 4
SMALL_FETCH_PASSES = 12
"""A pass takes the node some milliseconds."""
SECONDS_MAX = 60.0
"""Of one load, none of which takes more than a second or two."""
PRODUCE_SMALL, PRODUCE_LARGE = "produce, a 100-byte record a request", "produce, 1 MB requests"
FETCH_SMALL, FETCH_LARGE = "fetch, batches of 100 bytes", "fetch, batches of 100 KB"
LARGE_AND_REST = f"{PRODUCE_LARGE}, until at rest"
ROWS = (PRODUCE_SMALL, PRODUCE_LARGE, LARGE_AND_REST, FETCH_SMALL, FETCH_LARGE)
SETTLE_SECONDS = 1.6
"""Longer than a node waits for more before it does what it has put off (a second)."""


def begin(stage: Stage) -> None:
    """One node, and loads of each kind that are not counted."""
    stage.start()
    small, large = stage.create("small", QUEUES), stage.create("large", QUEUES)
    for queues, kind, size in ((small, SMALL, SMALL_BYTES), (large, LARGE, LARGE_BYTES)):
        stage.finish(stage.begin(stage.produce(queues, **kind, bytes=size, seconds=SECONDS_MAX)))
    stage.rest()


def loads_of(stage: Stage, number: int) -> dict[str, tuple[Produce | Fetch, int]]:
    """The loads of one round of one node, and how many passes of each. Its topics are new, so that every round writes
    and reads as much as the one before."""
    small, read, large = (stage.create(f"{kind}-{number}", QUEUES) for kind in ("small", "read", "large"))
    stage.finish(stage.begin(stage.produce(read, **TOGETHER, bytes=READ_BYTES, seconds=SECONDS_MAX)))
    stage.rest()
    fetch = {"connections": 4, "in_flight": 1, "queues_per_request": QUEUES // 4, "until_end": True,
             "seconds": SECONDS_MAX}  # fmt: skip
    return {
        PRODUCE_SMALL: (stage.produce(small, **SMALL, bytes=SMALL_BYTES, seconds=SECONDS_MAX,
                                      connections=SMALL_CONNECTIONS, in_flight=1), 1),
        FETCH_SMALL: (stage.fetch(read, **fetch, partition_max_bytes=1 << 16), SMALL_FETCH_PASSES),
        PRODUCE_LARGE: (stage.produce(large, **LARGE, bytes=LARGE_BYTES, seconds=SECONDS_MAX), 1),
        FETCH_LARGE: (stage.fetch(large, **fetch), FETCH_PASSES),
    }  # fmt: skip


def measure_until_rest(stage: Stage, load: Produce) -> None:
    """Measure requests of 1 MB, and what they cost with all that they leave behind."""
    before = stage.node.tree.cpu_seconds()
    stage.measure(PRODUCE_LARGE, load)
    time.sleep(SETTLE_SECONDS)
    stage.rest()
    batches = LARGE_BYTES / (LARGE["record_bytes"] * LARGE["batch_records"])
    stage.record(LARGE_AND_REST, {CPU: (stage.node.tree.cpu_seconds() - before) * 1e6 / batches})


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


def life(bench: Bench, systems: Sequence[System], path: Path, rounds: range, until: float) -> bool:
    """Rounds of nodes that live side by side; each round is kept once it is whole. False: the time is over."""
    session = Session(name="trees", run=begin, durability=Durability.ASYNC, systems=tuple(one.name for one in systems))
    with ExitStack() as lives:
        stages = []
        for system in systems:
            own = dataclasses.replace(bench, directory=bench.directory / system.name.replace(" ", "-"))
            own.directory.mkdir(exist_ok=True)
            stages.append(lives.enter_context(Stage(own, WORKLOAD, session, system)))
            begin(stages[-1])
        for number in rounds:
            begun = time.monotonic()
            loads = [(stage, loads_of(stage, number)) for stage in stages]
            for title in loads[0][1]:
                for stage, of_it in loads if number % 2 else reversed(loads):
                    given, passes = of_it[title]
                    if title == PRODUCE_LARGE and isinstance(given, Produce):
                        measure_until_rest(stage, given)
                    else:
                        stage.measure(title, given, passes=passes)
            bench.results.save(path)
            if time.monotonic() + (time.monotonic() - begun) > until:
                return False
    return True


def run(tree: Path, rounds: int, seconds: float, kept: Path | None) -> int:
    until = time.monotonic() + seconds
    other = OtherTree(tree)
    other.prepare()
    systems: dict[str, System] = {Mainstem.name: Mainstem(), OtherTree.name: other}
    data = Path(os.environ.get("BENCH_DATA", HOME / "data")) / str(os.getpid())
    data.mkdir(parents=True)
    path = kept or HOME / "results" / f"{datetime.datetime.now():%Y-%m-%d-%H%M%S}-trees.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    results = load_results(path) if path.exists() else Results({"first": datetime.datetime.now(datetime.UTC).isoformat(
        timespec="seconds"), "versions": {name: system.version() for name, system in systems.items()}})  # fmt: skip
    try:
        program = load.build(HOME)
        with alone(CACHE / "lock", lambda line: print(line, file=sys.stderr)), tuned(data) as notes:
            results.facts["machine"] = dataclasses.asdict(read_machine(data, ""))
            results.notes.extend(notes)
            bench = Bench(SHORT, share_cores(), results, data, program, CACHE, systems, "", 0)
            for first in range(0, rounds, ROUNDS_OF_A_LIFE):
                numbers = range(first, min(rounds, first + ROUNDS_OF_A_LIFE))
                if not life(bench, [*systems.values()], path, numbers, until):
                    break
    finally:
        shutil.rmtree(data, ignore_errors=True)
        if path.exists():
            print(table(load_results(path), other.version()))
            print(path)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, metavar="TREE")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--keep", type=Path, metavar="FILE", help="add the rounds to those that are there")
    parser.add_argument("--seconds-max", type=float, default=3600.0, help="begin no round that would end later")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    try:
        return run(options.tree, options.rounds, options.seconds_max, options.keep)
    except (BenchError, load.LoadError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
