"""The command line: `python -m bench list`, `python -m bench run [NUMBER …]`.

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
from pathlib import Path

from bench import load, runner
from bench.errors import BenchError
from bench.machine import read_machine, share_cores, tuned
from bench.report.document import targets_table, write_report
from bench.report.tables import workload_table
from bench.results import Results, load_results
from bench.session import FULL, SHORT, Bench, Form
from bench.systems import all_systems
from bench.workloads import WORKLOADS

HOME = Path(__file__).parent.parent / ".bench"
CACHE = Path.home() / ".cache" / "mainstem-bench"
SYSTEMS = ("mainstem", "kafka")


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
    run.add_argument(
        "--full", action="store_true", help="long runs, more rows and repetitions (also: BENCH=full)"
    )
    run.add_argument("--short", action="store_true", help="the default: under ten minutes for everything")
    run.add_argument("--repetitions", type=int)
    run.add_argument("--seconds", type=float, help="of each measurement")
    run.add_argument("--system", action="append", choices=SYSTEMS, help="only this one; repeatable")
    run.add_argument("--heap", default="1g", help="of Kafka's JVM (default 1g, as its start script has it)")
    options = parser.parse_args()
    if options.command == "list":
        for workload in WORKLOADS:
            print(f"{workload.number:>8}  {workload.title}")
        return 0
    if options.command == "report":
        for path in write_report(load_results(options.file), WORKLOADS, options.file):
            print(path)
        return 0
    unknown = set(options.numbers) - {workload.number for workload in WORKLOADS}
    if unknown:
        parser.error(f"there is no workload {', '.join(sorted(unknown))}; see python -m bench list")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(options)
    except (BenchError, load.LoadError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    only = tuple(options.system or SYSTEMS)
    form = _form(options)
    data = Path(os.environ.get("BENCH_DATA", HOME / "data")) / str(os.getpid())
    data.mkdir(parents=True)
    systems = all_systems(CACHE)
    try:
        for name in only:
            systems[name].prepare()
        program = load.build(HOME)
        with tuned(data) as notes:
            cpus = share_cores()
            results = Results({
                "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "form": dataclasses.asdict(form),
                "machine": dataclasses.asdict(read_machine(data, _java())),
                "cores": dataclasses.asdict(cpus),
                "versions": {name: systems[name].version() for name in only},
                "commit": _commit(),
                "heap": options.heap,
            })  # fmt: skip
            results.notes.extend(notes)
            bench = Bench(form, cpus, results, data, program, CACHE, systems, options.heap)
            return _measure(bench, options.numbers, only)
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _measure(bench: Bench, numbers: list[str], only: tuple[str, ...]) -> int:
    name = datetime.datetime.now().strftime("%Y-%m-%d-%H%M%S")
    path = HOME / "results" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    for workload in WORKLOADS:
        if numbers and workload.number not in numbers:
            continue
        print(f"{workload.number}. {workload.title}", file=sys.stderr)
        try:
            runner.run_workload(bench, workload, only, lambda line: print(line, file=sys.stderr, flush=True))
        finally:
            bench.results.save(path)
        print(workload_table(bench.results, workload.number, workload.shown), flush=True)
    print(targets_table(bench.results))
    for written in write_report(bench.results, WORKLOADS, path):
        print(written, file=sys.stderr)
    return 0


def _form(options: argparse.Namespace) -> Form:
    full = options.full or (os.environ.get("BENCH") == "full" and not options.short)
    form = FULL if full else SHORT
    changes = {
        name: getattr(options, name)
        for name in ("repetitions", "seconds")
        if getattr(options, name) is not None
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
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HOME.parent, capture_output=True, text=True
    )
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
