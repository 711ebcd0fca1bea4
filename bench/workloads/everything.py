"""10. Publish latency while everything else goes on: split, merges, compactions, and a reader of the past.

A disk stalls by itself, and one stall decides the p99 of two seconds. So publishing goes on in windows of a second, at
half of what the node takes saturated, and between windows the splitter's processes and the reader are stopped where
they are, or go on: all of them, or one alone. `short_windows` makes the figures of the windows of a kind. The splitter
splits before it merges, and merges before it compacts; what each of them did in all windows together is told beside the
latency.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import urllib.request
from typing import NamedTuple

from bench.load import Fetch
from bench.metrics import MEGABYTE
from bench.session import Form, Session, Stage, Workload
from bench.short_windows import SHOWN, ShortWindow, figures_of_windows
from bench.stolen_time import StolenTime
from bench.store.keyed_records import write_keyed
from bench.store.plain_splitter import PlainSplitter
from bench.store.split_watch import await_first_progress, lag_bytes
from bench.systems.mainstem import MERGE_SCALE
from bench.systems.system import Durability
from bench.workloads.isolation import READER_NICE, fill_past, half_load, publish

BETWEEN = "alone, in windows between"
READING = "beside the catch-up reader alone, in windows"
SPLITTING = "beside split, merges and compactions alone, in windows"
EVERYTHING = "beside split, merges, compactions and a catch-up reader, in windows"
WINDOWS = {"short": 24, "full": 150}
"""Of each kind, at least; twice as many where merges or compactions did not come before."""
WINDOW_SECONDS = 1.0
WINDOW_LEAD_SECONDS = 0.3
"""Not counted: what was under way when the splitter was stopped comes to its end, or everything gets going again."""
KEYED_QUEUES = 16
KEYED_BYTES = {"short": 256 << 20, "full": 2 << 30}
"""Split and merged before the windows begin, as only what is merged is compacted."""
RUN_BYTES = 1 << 20
MERGES_SCALE = "64"
"""Of what a merge waits for otherwise, so that windows of minutes see many."""
READER_BYTES_PER_S = 50e6
"""It has enough of the past for a minute of windows, and begins again when it has read everything."""
TITLES = (BETWEEN, READING, SPLITTING, EVERYTHING)


class _Others:
    """The splitter's processes and a reader of the past, which can be stopped where they are."""

    def __init__(self, stage: Stage, reader: Fetch) -> None:
        self._stage = stage
        self._reader = reader
        self._reading = stage.begin(reader, nice=READER_NICE, timed=False)

    def have(self, *, read: bool, split: bool) -> None:
        """Each of the two goes on, or is stopped."""
        if read and self._reading.process.poll() is not None:  # it has read everything
            self._stage.finish(self._reading)
            self._stage.node.forget_past()
            self._reading = self._stage.begin(self._reader, nice=READER_NICE, timed=False)
        self._stage.node.tree.signal_descendants(signal.SIGCONT if split else signal.SIGSTOP)
        if self._reading.process.poll() is None:
            self._reading.process.send_signal(signal.SIGCONT if read else signal.SIGSTOP)


class _Work(NamedTuple):
    """The work that the splitter has done so far, in bytes; `lag` is the bytes left to split."""

    lag: int
    merged: int
    removed: int

    @classmethod
    def of(cls, http: str | None) -> _Work:
        with urllib.request.urlopen(f"http://{http}/v1/store", timeout=10) as answer:
            store = json.load(answer)
        return cls(lag_bytes(http), store["merges"]["merged_bytes"], store["compactions"]["removed_bytes"])


def _everything(stage: Stage) -> None:
    """The node lives twice: without the splitter, then with it and what the first life wrote."""
    first = stage.start()
    published = stage.create("published", 16)
    rate = half_load(stage, published).rate
    assert rate is not None
    keyed = stage.create("keyed", KEYED_QUEUES, configs={"cleanup.policy": "compact"})
    write_keyed(first.address, keyed, KEYED_BYTES[stage.form.name])
    assert first.http is not None
    with PlainSplitter(first.http, RUN_BYTES) as splitter:
        splitter.split(merging=True)
        splitter.drain()
    past = fill_past(stage)
    first.stop()
    http = stage.start(splitter=True).http
    await_first_progress(http)
    load = dataclasses.replace(
        publish(stage, published, rate), seconds=WINDOW_SECONDS, warmup_seconds=WINDOW_LEAD_SECONDS
    )
    stage.node.forget_past()
    reader = stage.fetch(past, connections=1, in_flight=1, queues_per_request=16, max_bytes=16 << 20,
                         partition_max_bytes=1 << 20, until_end=True, rate_bytes=READER_BYTES_PER_S)  # fmt: skip
    before = _Work.of(http)
    others = _Others(stage, reader)
    windows: dict[str, list[ShortWindow]] = {title: [] for title in TITLES}
    least = WINDOWS[stage.form.name]
    stage.window()
    try:
        for number in range(2 * least):
            work = _Work.of(http)
            if number >= least and work.merged > before.merged and work.removed > before.removed:
                break
            turn = number % len(TITLES)
            for title in (*TITLES[turn:], *TITLES[:turn]):
                others.have(read=title in (READING, EVERYTHING), split=title in (SPLITTING, EVERYTHING))
                stolen = StolenTime(stage.bench.cpus.both)
                result = stage.finish(stage.begin(load))
                windows[title].append(ShortWindow(result, stolen.most_seconds()))
    finally:
        others.have(read=True, split=True)
    _record_windows(stage, rate, windows, before, _Work.of(http))


def _record_windows(
    stage: Stage, rate: float, windows: dict[str, list[ShortWindow]], before: _Work, after: _Work
) -> None:
    for title, found in windows.items():
        figures = figures_of_windows(found)
        figures["rate_per_s"] = rate
        if title == EVERYTHING:
            written = sum(one.result["bytes"] for of_kind in windows.values() for one in of_kind)
            figures["split_mb"] = (before.lag + written - after.lag) / MEGABYTE
            figures["merged_mb"] = (after.merged - before.merged) / MEGABYTE
            figures["removed_mb"] = (after.removed - before.removed) / MEGABYTE
        stage.record(title, figures)
    for name, grown in (("merge", after.merged - before.merged), ("compaction", after.removed - before.removed)):
        if not grown:
            stage.bench.results.notes.append(f"10: no {name} was recorded in its windows")


def sessions(form: Form) -> list[Session]:
    settings = {"pipeline.start_age_seconds": "1", MERGE_SCALE: MERGES_SCALE}
    return [Session(name="everything", run=_everything, durability=Durability.SYNC, systems=("mainstem",),
                    settings=settings, all_cores=True)]  # fmt: skip


WORKLOAD = Workload(
    "10",
    "Publish latency at half load, alone and beside everything at once",
    sessions,
    shown=("rate_per_s", *SHOWN, "split_mb", "merged_mb", "removed_mb"),
)
