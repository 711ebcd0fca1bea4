"""Does TLS cost a node less than before, and less than Kafka? `python -m bench.access.tls_in_turns --before TREE`

Nodes of this tree, of the tree before (a work tree with a compiled kernel) and of Kafka live side by side, and work in
turns: each round goes through the rows, in the clear and over TLS, and within a row through the nodes, in an order that
alternates. Ratios are taken within a round; tables have their medians. A JVM is warm by the second round, which is the
first that counts. The host's memory is touched first, as a new file costs as much as a page that nobody had before.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import mmap
import os
import shutil
import signal
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import load
from bench.__main__ import CACHE, HOME
from bench.errors import BenchError
from bench.load import Fetch, Produce
from bench.machine import alone, share_cores, tuned
from bench.report.tables import markdown
from bench.results import Results
from bench.session import SHORT, Bench, Session, Stage
from bench.systems import all_systems
from bench.systems.other_tree import OtherTree
from bench.systems.system import Durability, System

WORKLOAD = "tls"
CLEAR, ENCRYPTED = "in the clear", "over TLS"
LARGE, MANY, SMALL, READ = "1 MB requests", "1,000 queues, 100-byte records", "64 connections, small", "tail, 10 queues"
LARGE_BYTES = 256 << 20
READ_BYTES = 128 << 20
"""Within Mainstem's write cache."""
READ_PASSES = 2
TOUCHED_BYTES = 8 << 30
"""More than a run of six rounds writes."""
FIRST_ROUNDS = 1
"""In which a JVM gets warm; they do not count."""
RATE, CPU = "requests_per_s", "cpu_us_per_batch"


def loads_of(stage: Stage, rows: Sequence[str]) -> dict[str, tuple[Produce | Fetch, int]]:
    """Makes the topics. By row, the load in the clear and how often a measurement repeats it."""
    made: dict[str, tuple[Produce | Fetch, int]] = {}
    large = {"record_bytes": 1024, "batch_records": 100, "queues_per_request": 10, "seconds": 60.0}
    few = stage.create("few", 10)
    if LARGE in rows:
        made[LARGE] = stage.produce(few, **large, bytes=LARGE_BYTES), 1
    if MANY in rows:
        many = stage.produce(stage.create("many", 1_000), record_bytes=100, batch_records=10, queues_per_request=100)
        stage.meet_every_queue(many)
        made[MANY] = many, 1
    if SMALL in rows:
        made[SMALL] = stage.produce(few, record_bytes=100, batch_records=1, connections=64, in_flight=1), 1
    if READ in rows:
        read = stage.create("read", 10)
        stage.finish(stage.begin(stage.produce(read, **large, bytes=READ_BYTES)))
        made[READ] = stage.fetch(read, connections=2, in_flight=1, queues_per_request=5, max_bytes=50 << 20,
                                 partition_max_bytes=1 << 20, until_end=True, seconds=60.0), READ_PASSES  # fmt: skip
    return made


def title(row: str, how: str) -> str:
    return f"{row}, {how}"


def go_round(stages: Sequence[Stage], rows: Sequence[str], loads: dict[str, dict[str, tuple[Produce | Fetch, int]]],
             number: int) -> None:  # fmt: skip
    for row in rows:
        for how in (CLEAR, ENCRYPTED):
            for stage in stages if number % 2 else reversed(stages):
                one, passes = loads[stage.system.name][row]
                if how == ENCRYPTED:
                    one = dataclasses.replace(one, tls_address=stage.node.guarded)
                stage.rest()
                stage.measure(title(row, how), one, passes=passes)


def table(results: Results, names: Sequence[str]) -> str:
    """By row: medians of each system, and the medians of the ratios of the first to each of the others."""
    mine, *others = names
    lines = [["row", *(f"{name}, 1/s and µs/batch" for name in names),
              *(f"to {name}: rate and CPU" for name in others)]]  # fmt: skip
    for row in results.of(WORKLOAD):
        values = {name: [results.values(row, name, figure)[FIRST_ROUNDS:] for figure in (RATE, CPU)] for name in names}
        if not all(each for name in names for each in values[name]):
            continue  # interrupted before the first round that counts was over
        cells = [" ".join(f"{statistics.median(each):,.1f}" for each in values[name]) for name in names]
        for other in others:
            pairs = zip(values[mine], values[other], strict=True)
            ratios = [sorted(a / b for a, b in zip(*pair, strict=False)) for pair in pairs]
            cells.append(" ".join(f"{statistics.median(each):.3f} ({each[0]:.2f}–{each[-1]:.2f})" for each in ratios))
        lines.append([row.title, *cells])
    return markdown(lines)


def touch_memory(size: int) -> None:
    """Have the host give the pages now."""
    with contextlib.suppress(OSError), mmap.mmap(-1, size) as memory:
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


def run(systems: dict[str, System], rows: Sequence[str], rounds: int, seconds: float) -> int:
    data = Path(os.environ.get("BENCH_DATA", HOME / "data")) / str(os.getpid())
    data.mkdir(parents=True)
    form = dataclasses.replace(SHORT, repetitions=rounds, seconds=seconds)
    session = Session(
        name="tls", run=lambda stage: None, durability=Durability.ASYNC, systems=tuple(systems), guarded=True
    )
    results = Results({"versions": {name: system.version() for name, system in systems.items()}})
    try:
        program = load.build(HOME)
        with alone(CACHE / "lock", _tell), tuned(data), contextlib.ExitStack() as lives:
            touch_memory(TOUCHED_BYTES)
            bench = Bench(form, share_cores(), results, data, program, CACHE, systems, "1g", 0)
            stages = []
            for name, system in systems.items():
                own = dataclasses.replace(bench, directory=data / name.replace(" ", "-"))
                own.directory.mkdir()
                stages.append(lives.enter_context(Stage(own, WORKLOAD, session, system)))
                stages[-1].start()
            loads = {stage.system.name: loads_of(stage, rows) for stage in stages}
            for number in range(rounds):
                go_round(stages, rows, loads, number)
                _tell(f"round {number + 1} of {rounds}")
    finally:
        shutil.rmtree(data, ignore_errors=True)
        if results.rows:
            print(table(results, tuple(systems)))
    return 0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="TREE", help="a work tree to measure beside this one")
    parser.add_argument("--no-kafka", action="store_true", help="leave Kafka out")
    parser.add_argument("--rows", default=",".join(KEYS), help="which, of " + ", ".join(KEYS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each load that has no end of its own")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    systems = dict(all_systems(CACHE))
    if options.no_kafka:
        del systems["kafka"]
    if options.before is not None:
        systems[OtherTree.name] = OtherTree(options.before)
    try:
        for system in systems.values():
            system.prepare()
        return run(systems, [KEYS[key] for key in options.rows.split(",")], options.rounds, options.seconds)
    except (BenchError, load.LoadError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


KEYS: dict[str, str] = {"large": LARGE, "many": MANY, "small": SMALL, "read": READ}

if __name__ == "__main__":
    sys.exit(main())
