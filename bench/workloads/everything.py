"""10. Publish latency while everything else goes on: split, merges, compactions, and a reader of the past.

A disk stalls by itself, and one stall decides the p99 of two seconds. So publishing goes on in windows of a second, at
half of what the node takes saturated, and between windows the splitter's processes and the reader are stopped where
they are, or go on: all of them, or one alone. `short_windows` makes the figures of the windows of a kind.

The splitter splits before it merges, and merges before it compacts, and publishing goes on while it is stopped. So
windows come in rounds, in random order within a round, and where much is unsplit before a round, the splitter goes on
by itself for a while. Its work in the windows is told beside the latency: in how many of them a merge or a compaction
was under way, and how many came to their end there. Its work between rounds does not count.
"""

from __future__ import annotations

import dataclasses
import json
import random
import signal
import time
import urllib.request
from collections import Counter
from typing import NamedTuple

from bench.load import Fetch, Produce
from bench.metrics import MEGABYTE
from bench.session import Form, Session, Stage, Workload
from bench.short_windows import SHOWN, ShortWindow, figures_of_windows
from bench.stolen_time import StolenTime
from bench.store.keyed_records import write_keyed
from bench.store.plain_splitter import PlainSplitter
from bench.store.split_watch import await_first_progress, lag_bytes
from bench.systems.mainstem import MERGE_SCALE
from bench.systems.system import Durability
from bench.topics import Queues
from bench.workloads.isolation import READER_NICE, fill_past, half_load, publish

BETWEEN = "alone, in windows between"
READING = "beside the catch-up reader alone, in windows"
SPLITTING = "beside split, merges and compactions alone, in windows"
EVERYTHING = "beside split, merges, compactions and a catch-up reader, in windows"
ROUNDS = {"short": 32, "full": 150}
"""Each with a window alone and one beside everything, and one beside either of the others."""
WINDOW_SECONDS = 1.0
WINDOW_LEAD_SECONDS = 0.3
"""Not counted: what was under way when the splitter was stopped comes to its end, or everything gets going again."""
LEAD_INCLUDED = (WINDOW_SECONDS + WINDOW_LEAD_SECONDS) / WINDOW_SECONDS
"""The bytes that a window publishes, to those of them that count."""
PUBLISHED = Queues("published", 1, 16)
PAST = Queues("past", 1, 16)
KEYED = Queues("keyed", 1, 16)
KEYED_BYTES = {"short": 128 << 20, "full": 2 << 30}
"""Split and merged before the windows begin, as only what is merged is compacted…"""
KEYED_AGAIN_BYTES = 4 << 20
"""…and so much about the same keys, or some of them, again…"""
KEYED_AGAIN_ROUNDS = 2
"""…in one of so many rounds."""
KEYED_CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.05"}
"""Keys that come again are worth a compaction once they are merged."""
RUN_BYTES = 1 << 20
MERGES_SCALE = "256/2048"
"""Of what a merge waits for otherwise: merges of 16 MB, as in its windows the splitter merges ten in a second at the
most."""
READER_BYTES_PER_S = 50e6
"""It has enough of the past for half a minute of windows, and begins again when it has read everything."""
BEHIND_BYTES = 128 << 20
"""A round publishes 200 MB more, of which two of its windows split a part: with a trigger's 256 MiB unsplit no task of
a merge would begin."""
CAUGHT_UP_BYTES = 96 << 20
"""Enough for a trigger, so that the windows of a round meet a split from their first on."""
CATCH_UP_SECONDS_MAX = 60.0
"""For what was there before the windows, at 20 MB/s…"""
ROUND_SECONDS_MAX = 4.0
"""…and for what a round needs."""
LOOK_SECONDS = 0.05
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
    compactions: int
    merging: bool
    """A merge is under way."""
    compacting: bool

    @classmethod
    def of(cls, http: str | None) -> _Work:
        with urllib.request.urlopen(f"http://{http}/v1/store", timeout=10) as answer:
            store = json.load(answer)
        merges, compactions = store["merges"], store["compactions"]
        return cls(
            lag_bytes(http), merges["merged_bytes"], compactions["removed_bytes"],
            compactions["passes"], bool(merges["under_way"]), bool(compactions["under_way"]),
        )  # fmt: skip


class _Meanwhile:
    """The work of the splitter in all windows of a kind."""

    def __init__(self) -> None:
        self._found: Counter[str] = Counter()

    def add(self, before: _Work, after: _Work, written_bytes: int) -> None:
        """A window, in which so much was published."""
        merged, compacted = after.merged - before.merged, after.compactions - before.compactions
        self._found.update(
            split_mb=before.lag + written_bytes - after.lag,
            merged_mb=merged,
            removed_mb=after.removed - before.removed,
            merging_windows=before.merging or after.merging or merged > 0,
            merge_ends=merged > 0,
            compacting_windows=before.compacting or after.compacting or compacted > 0,
            compaction_ends=compacted,
        )

    def figures(self) -> dict[str, float]:
        return {name: count / MEGABYTE if name.endswith("_mb") else count for name, count in self._found.items()}


def _everything(stage: Stage) -> None:
    """The node lives twice: without the splitter, then with it and what the first life wrote."""
    _beside(stage, _fill(stage))


def _fill(stage: Stage) -> float:
    """There is a past to read, and what is to be compacted. The requests a second of the windows."""
    first = stage.start()
    rate = half_load(stage, stage.create(PUBLISHED.prefix, PUBLISHED.partitions)).rate
    assert rate is not None
    keyed = stage.create(KEYED.prefix, KEYED.partitions, configs=KEYED_CONFIGS)
    write_keyed(first.address, keyed, KEYED_BYTES[stage.form.name])
    assert first.http is not None
    with PlainSplitter(first.http, RUN_BYTES) as splitter:
        splitter.split(merging=True)
        splitter.drain()
    assert fill_past(stage) == PAST
    first.stop()
    return rate


def _beside(stage: Stage, rate: float) -> None:
    await_first_progress(stage.start(splitter=True).http)
    load = dataclasses.replace(
        publish(stage, PUBLISHED, rate), seconds=WINDOW_SECONDS, warmup_seconds=WINDOW_LEAD_SECONDS
    )
    reader = stage.fetch(PAST, connections=1, in_flight=1, queues_per_request=16, max_bytes=16 << 20,
                         partition_max_bytes=1 << 20, until_end=True, rate_bytes=READER_BYTES_PER_S)  # fmt: skip
    windows = _Windows(stage, load, reader)
    stage.window()
    order = random.Random(ROUNDS[stage.form.name])
    try:
        for number in range(ROUNDS[stage.form.name]):
            windows.begin_round(number)
            titles = [BETWEEN, EVERYTHING, READING if number // 2 % 2 else SPLITTING]
            for title in order.sample(titles, len(titles)):
                windows.measure(title)
    finally:
        windows.go_on()
    windows.record(rate)


class _Windows:
    """Publishes in windows, beside some of the others."""

    def __init__(self, stage: Stage, load: Produce, reader: Fetch) -> None:
        self._stage = stage
        self._load = load
        stage.node.forget_past()
        self._others = _Others(stage, reader)
        self._found: dict[str, list[ShortWindow]] = {title: [] for title in TITLES}
        self._meanwhile = {title: _Meanwhile() for title in (SPLITTING, EVERYTHING)}

    def begin_round(self, number: int) -> None:
        """Some more keys come, and the splitter goes on by itself while much is unsplit."""
        if number % KEYED_AGAIN_ROUNDS == 0:
            write_keyed(self._stage.node.address, KEYED, KEYED_AGAIN_BYTES)
        deadline = time.monotonic() + (ROUND_SECONDS_MAX if number else CATCH_UP_SECONDS_MAX)
        work = _Work.of(self._stage.node.http)
        if work.lag < BEHIND_BYTES:
            return
        self._others.have(read=False, split=True)
        while work.lag >= CAUGHT_UP_BYTES:
            if time.monotonic() > deadline:
                return
            time.sleep(LOOK_SECONDS)
            work = _Work.of(self._stage.node.http)

    def measure(self, title: str) -> None:
        stage, http = self._stage, self._stage.node.http
        before = _Work.of(http)
        self._others.have(read=title in (READING, EVERYTHING), split=title in (SPLITTING, EVERYTHING))
        stolen = StolenTime(stage.bench.cpus.both)
        result = stage.finish(stage.begin(self._load))
        self._found[title].append(ShortWindow(result, stolen.most_seconds()))
        self._others.have(read=False, split=False)
        if title in self._meanwhile:
            self._meanwhile[title].add(before, _Work.of(http), round(result["bytes"] * LEAD_INCLUDED))

    def go_on(self) -> None:
        self._others.have(read=True, split=True)

    def record(self, rate: float) -> None:
        for title, found in self._found.items():
            did = self._meanwhile[title].figures() if title in self._meanwhile else {}
            self._stage.record(title, {**figures_of_windows(found), "rate_per_s": rate, **did})
        did = self._meanwhile[EVERYTHING].figures()
        for name in ("merge", "compaction"):
            if not did[f"{name}_ends"]:
                self._stage.bench.results.notes.append(f"10: no {name} came to its end in the windows")


def sessions(form: Form) -> list[Session]:
    settings = {"pipeline.start_age_seconds": "1", MERGE_SCALE: MERGES_SCALE}
    return [Session(name="everything", run=_everything, durability=Durability.SYNC, systems=("mainstem",),
                    settings=settings, all_cores=True)]  # fmt: skip


WORKLOAD = Workload(
    "10",
    "Publish latency at half load, alone and beside everything at once",
    sessions,
    shown=(
        "rate_per_s",
        *SHOWN,
        "split_mb",
        "merged_mb",
        "removed_mb",
        "merging_windows",
        "merge_ends",
        "compacting_windows",
        "compaction_ends",
    ),
)
