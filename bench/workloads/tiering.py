"""11. Publish latency and the tail while merged files move to an object store, and while the store is out.

Windows as in workload 10: of a second, in turn alone and beside. Alone the splitter's processes are stopped where they
are; beside they split what is published, and upload what was merged before to an S3 server of this machine, whose own
processor time is at the lowest priority. Then the server goes away, and the windows go on. A reader follows the
publishers all the time: its latency is that of a fetch which waits for the next batch.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import statistics
import time
import urllib.request
from collections.abc import Sequence

from tools.s3_server import CREDENTIALS, S3Server, s3_server

from bench.errors import BenchError
from bench.load import Result
from bench.metrics import MEGABYTE, pooled_ms
from bench.plain_splitter import PlainSplitter
from bench.session import Form, Session, Stage, Workload
from bench.systems.system import Durability
from bench.workloads.everything import POOLED, RUN_BYTES, STALL_MS, WINDOW_LEAD_SECONDS, WINDOW_SECONDS
from bench.workloads.isolation import READER_NICE, half_load, publish

BETWEEN = "alone, in windows between"
UPLOADING = "beside a splitter that splits and uploads, in windows"
OUT_BETWEEN = "store out: alone, in windows between"
OUT = "store out: beside a splitter that splits, in windows"
TAIL = "tail of "
WINDOWS = {"short": 16, "full": 100}
"""Of each kind, at most: less where all is uploaded before."""
LEAST_WINDOWS = 4
TIERED_BYTES = {"short": 2 << 30, "full": 12 << 30}
TIERED_QUEUES = 16
BUCKET = "bench"
LOWEST = 19
UPLOAD_SECONDS_MAX = 120.0
"""Until the first upload has come to its end, the start of Spark included."""


class NoCopyMetrics(BenchError):
    """The node does not say what it uploads."""


def _copied(http: str | None) -> tuple[float, float]:
    """Bytes that were uploaded, and that wait for it."""
    found: dict[str, float] = {}
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            if name in ("mainstem_remote_copy_bytes_total", "mainstem_remote_copy_lag_bytes"):
                found[name] = found.get(name, 0.0) + float(value)
    if len(found) != 2:
        raise NoCopyMetrics(f"http://{http}/metrics: has {sorted(found)} of what tells how uploads go on")
    return found["mainstem_remote_copy_bytes_total"], found["mainstem_remote_copy_lag_bytes"]


def _await_upload(http: str | None) -> None:
    """Return when the first file is there. Raises BenchError when none comes."""
    deadline = time.monotonic() + UPLOAD_SECONDS_MAX
    while not _copied(http)[0]:
        if time.monotonic() > deadline:
            raise BenchError(f"nothing was uploaded within {UPLOAD_SECONDS_MAX:.0f} s")
        time.sleep(0.1)


def _fill(stage: Stage) -> None:
    """What may move lies merged on disk 2."""
    tiered = stage.create("tiered", TIERED_QUEUES, configs={"remote.storage.enable": "true"})
    load = stage.produce(tiered, record_bytes=1024, batch_records=100, queues_per_request=4,
                         bytes=TIERED_BYTES[stage.form.name], seconds=180.0)  # fmt: skip
    stage.finish(stage.begin(load))
    assert stage.node.http is not None
    with PlainSplitter(stage.node.http, RUN_BYTES) as splitter:
        splitter.split(merging=True)
        splitter.drain()


class _Windows:
    """Publishes and follows in windows, with the splitter's processes stopped or not."""

    def __init__(self, stage: Stage, rate: float) -> None:
        self._stage = stage
        queues = stage.create("published", 16)
        self.load = dataclasses.replace(
            publish(stage, queues, rate), seconds=WINDOW_SECONDS, warmup_seconds=WINDOW_LEAD_SECONDS
        )
        self._reader = stage.fetch(queues, connections=1, in_flight=1, queues_per_request=16, from_="latest",
                                   min_bytes=1, max_wait_ms=500,
                                   seconds=WINDOW_SECONDS + WINDOW_LEAD_SECONDS)  # fmt: skip
        self.published: dict[str, list[Result]] = {}
        self.followed: dict[str, list[Result]] = {}

    def one(self, title: str, *, alone: bool) -> None:
        self._stage.node.tree.signal_descendants(signal.SIGSTOP if alone else signal.SIGCONT)
        following = self._stage.begin(self._reader, nice=READER_NICE)
        self.published.setdefault(title, []).append(self._stage.finish(self._stage.begin(self.load)))
        self.followed.setdefault(title, []).append(self._stage.finish(following))

    def go_on(self) -> None:
        self._stage.node.tree.signal_descendants(signal.SIGCONT)


def _figures(results: Sequence[Result]) -> dict[str, float]:
    figures = {name: pooled_ms(results, fraction) for name, fraction in POOLED.items()}
    figures["window_p99_ms"] = statistics.median(one["latency_us"]["p99"] for one in results) / 1000
    stalled = sum(one["latency_us"]["max"] > STALL_MS * 1000 for one in results)
    return figures | {"stalled_windows": 100 * stalled / len(results)}


def _tiering(stage: Stage) -> None:
    for name, value in CREDENTIALS.items():  # where S3's other tools look for them, too
        os.environ[f"AWS_{name.upper()}"] = value
    with s3_server(BUCKET) as s3:
        os.setpriority(os.PRIO_PROCESS, s3.pid, LOWEST)
        _beside(stage, s3)


def _beside(stage: Stage, s3: S3Server) -> None:
    """The node lives twice: without the splitter, then with it and what the first life wrote."""
    settings = {
        "remote_dir": f"s3://{BUCKET}/bench",
        "object_store.endpoint": s3.endpoint,
    }
    first = stage.start(settings=settings)
    rate = half_load(stage, stage.create("warm", 16)).rate
    assert rate is not None
    _fill(stage)
    first.stop()
    http = stage.start(splitter=True, settings=settings).http
    windows = _Windows(stage, rate)
    stage.rate_of(windows.load)  # the splitter starts for what is to be split
    _await_upload(http)
    most = WINDOWS[stage.form.name]
    before, _waiting = _copied(http)
    stage.window()
    try:
        for number in range(most):
            if number >= LEAST_WINDOWS and not _copied(http)[1]:
                stage.bench.results.notes.append(f"11: all was uploaded after {number} windows of each kind")
                break
            for title in (BETWEEN, UPLOADING) if number % 2 else (UPLOADING, BETWEEN):
                windows.one(title, alone=title == BETWEEN)
        after, _waiting = _copied(http)
        s3.go_away()
        for number in range(most // 2):
            for title in (OUT_BETWEEN, OUT) if number % 2 else (OUT, OUT_BETWEEN):
                windows.one(title, alone=title == OUT_BETWEEN)
    finally:
        windows.go_on()
    for title, results in windows.published.items():
        moved = {"uploaded_mb": (after - before) / MEGABYTE} if title == UPLOADING else {}
        stage.record(title, {**_figures(results), "rate_per_s": rate, **moved})
        stage.record(TAIL + title, _figures(windows.followed[title]))


def sessions(form: Form) -> list[Session]:
    settings = {"pipeline.start_age_seconds": "1"}
    return [Session(name="tiering", run=_tiering, durability=Durability.SYNC, systems=("mainstem",),
                    settings=settings, all_cores=True)]  # fmt: skip


WORKLOAD = Workload(
    "11",
    "Publish latency at half load, alone and while files move to an object store or cannot",
    sessions,
    shown=("rate_per_s", "p50_ms", "p99_ms", "p999_ms", "window_p99_ms", "stalled_windows", "uploaded_mb"),
)
