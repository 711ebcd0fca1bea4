"""`python -m bench.suspects`: does the disk, the processor or the node make publishing slower beside other work?

Publishing goes on in windows of a second, as in workload 10, each beside one suspect, in random order in every round:
the splitter and the reader as they are, or held to some cores, and what takes one resource as they do (`stand_ins`).
With each latency it is told how long the node's threads waited for a processor, and for the disk. With `--data
/dev/shm/…` there is no disk. `--prompt` has the publishers take a processor whenever they want one, as if they had a
machine of their own; this needs rights.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import shutil
import signal
import statistics
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench import load
from bench.__main__ import CACHE, HOME
from bench.load import Result
from bench.machine import alone, read_machine, share_cores, tuned
from bench.metrics import pooled_ms
from bench.results import Results
from bench.session import SHORT, Bench, Session, Stage
from bench.short_windows import STALL_MS, ShortWindow
from bench.stolen_time import StolenTime
from bench.store.split_watch import await_first_progress, lag_bytes
from bench.suspects import threads
from bench.suspects.suspects import SUSPECTS, Sides
from bench.suspects.threads import Spent
from bench.systems import all_systems
from bench.systems.mainstem import MERGE_SCALE
from bench.systems.system import Durability
from bench.workloads.everything import (
    MERGES_SCALE,
    READER_BYTES_PER_S,
    WINDOW_LEAD_SECONDS,
    WINDOW_SECONDS,
)
from bench.workloads.isolation import fill_past, half_load, publish

HEAP = "1g"
SYNC = "mainstem_journal_sync_seconds_"


class Syncs(NamedTuple):
    """Of the journal, so far."""

    number: int
    seconds: float


class Window(NamedTuple):
    result: Result
    seconds: float
    stolen_seconds: float
    loop: Spent
    """By the node's event loop…"""
    rest: Spent
    """…its other threads…"""
    suspect: Spent
    """…and the splitter or the stand-in."""
    syncs: Syncs


def _syncs(http: str) -> Syncs:
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(SYNC))
    return Syncs(int(float(found[SYNC + "count"])), float(found[SYNC + "sum"]))


def _measure(stage: Stage, names: Sequence[str], until: float, prompt: bool, found: dict[str, list[Window]]) -> None:
    """The node lives twice, as in workload 10: without the splitter, then with it. `found` has the windows, also those
    before an error."""
    first = stage.start()
    published = stage.create("published", 16)
    rate = half_load(stage, published).rate
    assert rate is not None
    past = fill_past(stage)
    first.stop()
    node = stage.start(splitter=True)
    assert node.http is not None
    await_first_progress(node.http)
    load = dataclasses.replace(
        publish(stage, published, rate), seconds=WINDOW_SECONDS, warmup_seconds=WINDOW_LEAD_SECONDS
    )
    node.forget_past()
    reader = stage.fetch(past, connections=1, in_flight=1, queues_per_request=16, max_bytes=16 << 20,
                         partition_max_bytes=1 << 20, until_end=True, rate_bytes=READER_BYTES_PER_S)  # fmt: skip
    print(f"{rate} requests a second; {lag_bytes(node.http) >> 20} MiB to split", flush=True)
    sides = Sides(stage, reader)
    stage.window()
    order = random.Random(1)
    pid = node.tree.roots[0]
    try:
        while time.monotonic() < until:
            for name in order.sample(names, len(names)):
                sides.have(SUSPECTS[name])
                loop, rest, suspect = threads.loop_of(pid), threads.others_of(pid), sides.spent()
                syncs, begun = _syncs(node.http), time.perf_counter()
                stolen = StolenTime(stage.bench.cpus.both)
                running = stage.begin(load)
                if prompt:
                    os.sched_setscheduler(running.process.pid, os.SCHED_FIFO, os.sched_param(1))
                result = stage.finish(running)
                seconds, after = time.perf_counter() - begun, _syncs(node.http)
                found.setdefault(name, []).append(
                    Window(
                        result,
                        seconds,
                        stolen.most_seconds(),
                        threads.loop_of(pid) - loop,
                        threads.others_of(pid) - rest,
                        sides.spent() - suspect,
                        Syncs(after.number - syncs.number, after.seconds - syncs.seconds),
                    )
                )
        print(f"{lag_bytes(node.http) >> 20} MiB to split are left")
    finally:
        sides.end()


def _row(name: str, windows: Sequence[Window]) -> str:
    results = [one.result for one in windows]
    seconds = sum(one.seconds for one in windows)
    loop, rest, suspect = (
        sum((spent for spent in of_windows), threads.NOTHING)
        for of_windows in (
            [one.loop for one in windows],
            [one.rest for one in windows],
            [one.suspect for one in windows],
        )
    )
    syncs = sum(one.syncs.number for one in windows)
    whole = [one.result for one in windows if ShortWindow(one.result, one.stolen_seconds).whole]
    figures = (
        f"{len(windows)}",
        f"{pooled_ms(results, 0.5):.2f}",
        f"{pooled_ms(results, 0.99):.2f}",
        f"{statistics.median(one['latency_us']['p99'] for one in results) / 1000:.2f}",
        f"{100 * sum(one['latency_us']['max'] > STALL_MS * 1000 for one in results) / len(results):.0f}",
        f"{len(whole)}",
        f"{pooled_ms(whole, 0.99):.2f}" if whole else "–",
        f"{1000 * sum(one.syncs.seconds for one in windows) / max(1, syncs):.3f}",
        f"{syncs / seconds:.0f}",
        f"{loop.ran / seconds:.2f}",
        f"{loop.waited / seconds:.3f}",
        f"{1e6 * loop.waited / max(1, loop.turns):.0f}",
        f"{rest.ran / seconds:.2f}",
        f"{rest.waited / seconds:.3f}",
        f"{suspect.ran / seconds:.2f}",
        f"{suspect.waited / seconds:.2f}",
    )
    return "| " + " | ".join((name, *figures)) + " |"


HEADINGS = (
    "beside", "windows", "p50 ms", "p99 ms", "p99, median of the windows", "windows with a stall %",
    "windows from which the host took nothing", "p99 of these", "sync ms",
    "syncs/s", "loop: cores", "waits", "us a time", "other threads: cores", "wait", "suspect: cores", "waits",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.suspects", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=HOME / "data", help="where the node keeps both its disks")
    parser.add_argument("--seconds", type=float, default=240.0, help="of all; about 70 go by before the first window")
    parser.add_argument("--only", action="append", choices=list(SUSPECTS), help="only this suspect; repeatable")
    parser.add_argument("--prompt", action="store_true", help="the publishers never wait for a processor")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench.suspects: ended"))
    until = time.monotonic() + options.seconds
    data = options.data / str(os.getpid())
    data.mkdir(parents=True)
    session = Session(
        name="suspects",
        run=lambda stage: None,
        durability=Durability.SYNC,
        settings={"pipeline.start_age_seconds": "1", MERGE_SCALE: MERGES_SCALE},
        all_cores=True,
    )
    systems = all_systems(CACHE)
    found: dict[str, list[Window]] = {}
    try:
        program = load.build(HOME)
        with alone(CACHE / "lock", print), tuned(data):
            dirty_bytes = read_machine(data, "").dirty_bytes
            bench = Bench(SHORT, share_cores(), Results({}), data, program, CACHE, systems, HEAP, dirty_bytes)
            with Stage(bench, "suspects", session, systems["mainstem"]) as stage:
                _measure(stage, options.only or list(SUSPECTS), until, options.prompt, found)
    finally:
        shutil.rmtree(data, ignore_errors=True)
        print("| " + " | ".join(HEADINGS) + " |\n|" + " --- |" * len(HEADINGS))
        for name in (name for name in SUSPECTS if name in found):
            print(_row(name, found[name]))


if __name__ == "__main__":
    main()
