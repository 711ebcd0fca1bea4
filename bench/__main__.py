"""The command line: `python -m bench list`, `python -m bench run [NUMBER …]`, `python -m bench cluster`.

Results go to `.bench/results/<date>.json`, with tables and plots beside it; they are also written when the run is
interrupted. Nodes keep their data in `.bench/data` (or `$BENCH_DATA`) while they live, downloads in
`~/.cache/mainstem-bench`.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import shutil
import signal
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path

from bench import heap_sweep, load
from bench.errors import BenchError
from bench.heap_sweep import best_heap
from bench.machine import alone, read_machine, share_cores, tuned
from bench.report.document import targets_table, write_report
from bench.report.tables import workload_table
from bench.results import Results, load_results
from bench.runner import Runner
from bench.session import CLUSTER, FULL, SHORT, Bench, Form, Workload
from bench.systems import all_systems
from bench.workloads import WORKLOADS, three_nodes

HOME = Path(__file__).parent.parent / ".bench"
CACHE = Path.home() / ".cache" / "mainstem-bench"
SYSTEMS = ("mainstem", "kafka")
APART = (heap_sweep.WORKLOAD, three_nodes.WORKLOAD)
"""Not part of `run`."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the workloads")
    report = commands.add_parser("report", help="write tables and plots of a result file again")
    report.add_argument("file", type=Path)
    run = commands.add_parser("run", help="measure; all workloads unless some are named")
    run.add_argument("numbers", nargs="*", metavar="NUMBER", help=", ".join(one.number for one in WORKLOADS))
    run.add_argument("--full", action="store_true", help="long runs, more rows and repetitions (also: BENCH=full)")
    run.add_argument("--short", action="store_true", help="the default: under ten minutes for everything")
    run.add_argument("--heap", default="1g", help="of Kafka's JVM (default 1g, as its start script has it)")
    cluster = commands.add_parser("cluster", help="three nodes beside one: under six minutes")
    cluster.add_argument("--full", action="store_true", help="long runs, more repetitions")
    cluster.set_defaults(numbers=[three_nodes.WORKLOAD.number], heap=three_nodes.HEAP, short=False)
    for command in (run, cluster):
        command.add_argument("--repetitions", type=int)
        command.add_argument("--seconds", type=float, help="of each measurement")
        command.add_argument("--system", action="append", choices=SYSTEMS, help="only this one; repeatable")
    options = parser.parse_args()
    if options.command == "list":
        for workload in (*WORKLOADS, three_nodes.WORKLOAD):
            print(f"{workload.number:>8}  {workload.title}")
        return 0
    if options.command == "report":
        for path in write_report(load_results(options.file), (*APART, *WORKLOADS), options.file):
            print(path)
        return 0
    known = (three_nodes.WORKLOAD,) if options.command == "cluster" else WORKLOADS
    unknown = set(options.numbers) - {workload.number for workload in known}
    if unknown:
        parser.error(f"there is no workload {', '.join(sorted(unknown))}; see python -m bench list")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(options, known)
    except (BenchError, load.LoadError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace, known: Sequence[Workload]) -> int:
    only = tuple(options.system or SYSTEMS)
    form = _form(options)
    chosen = [workload for workload in known if not options.numbers or workload.number in options.numbers]
    data = Path(os.environ.get("BENCH_DATA", HOME / "data")) / str(os.getpid())
    data.mkdir(parents=True)
    systems = all_systems(CACHE)
    try:
        if shutil.disk_usage(data).free < form.disk_bytes:
            raise BenchError(f"{data} has less than {form.disk_bytes >> 30} GiB free; BENCH_DATA names another place")
        for name in only:
            systems[name].prepare()
        program = load.build(HOME)
        with alone(CACHE / "lock", _tell), tuned(data) as notes:
            machine, cpus = read_machine(data, _java()), share_cores()
            results = Results({
                "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "form": dataclasses.asdict(form),
                "machine": dataclasses.asdict(machine),
                "cores": dataclasses.asdict(cpus),
                "versions": {name: systems[name].version() for name in only},
                "commit": _commit(),
                "heap": options.heap,
            })  # fmt: skip
            results.notes.extend(notes)
            bench = Bench(form, cpus, results, data, program, CACHE, systems, options.heap, machine.dirty_bytes)
            return _measure(bench, chosen, only)
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _measure(bench: Bench, chosen: Sequence[Workload], only: tuple[str, ...]) -> int:
    """The measurements are written down however the run ends."""
    results = bench.results
    path = HOME / "results" / f"{datetime.datetime.now():%Y-%m-%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if bench.form.full and "kafka" in only and len(chosen) == len(WORKLOADS):
            bench = dataclasses.replace(bench, heap=best_heap(bench, _tell))
            results.facts["heap"] = bench.heap
        Runner(bench, only, _tell, lambda: results.save(path)).run(chosen)
    finally:
        results.save(path)
        for workload in chosen:
            print(workload_table(results, workload.number, workload.shown), flush=True)
        print(targets_table(results, measured_only=True))
        for written in [path, *write_report(results, (*APART, *WORKLOADS), path)]:
            _tell(str(written))
    return 0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _form(options: argparse.Namespace) -> Form:
    full = options.full or (os.environ.get("BENCH") == "full" and not options.short)
    form = FULL if full else CLUSTER if options.command == "cluster" else SHORT
    changes = {
        name: getattr(options, name) for name in ("repetitions", "seconds") if getattr(options, name) is not None
    }
    if changes:
        changes["seconds_max"] = FULL.seconds_max
    return dataclasses.replace(form, **changes)


def _interrupt(number: int, frame: types.FrameType | None) -> None:
    raise KeyboardInterrupt


def _java() -> str:
    try:
        done = subprocess.run(["java", "-version"], capture_output=True, text=True)
    except OSError:
        return "none"
    return done.stderr.splitlines()[0]


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HOME.parent, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
