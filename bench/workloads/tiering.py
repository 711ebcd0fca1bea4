"""11. Publish latency and the tail while merged files move to an object store, and while the store is out.

Windows as in workload 10: of a second, in turn alone and beside. Alone the processes of the splitter and of the store
are stopped where they are; beside, the splitter splits what is published, and uploads what was merged before to an S3
server of this machine. That server is no part of what is measured, and would be on other machines: so it takes little
of the processor per byte, and all of its threads take only what nobody else wants of it. Then the server
goes away, and the windows go on. A reader follows the publishers all the time: its latency is that of a fetch which
waits for the next batch. It is as nice as the publishers, as its own waits for the load's core would be counted.

An upload counts for the node once all of its unit is there, which takes many windows, so what a window uploaded is told
by the store: bytes of requests that it has taken in whole. Windows in which that is nothing are a row of their own. The
splitter uploads while the split is not behind, and it cannot split while it is stopped: where it is behind, it goes on
by itself for a while before the next window.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
import urllib.request

from tools.s3_server import CREDENTIALS, S3Server, s3_server

from bench.errors import BenchError
from bench.metrics import MEGABYTE
from bench.session import Form, Session, Stage, Workload
from bench.short_windows import SHOWN, ShortWindow, figures_of_windows
from bench.stolen_time import StolenTime
from bench.store.plain_splitter import PlainSplitter
from bench.store.split_watch import lag_bytes
from bench.systems.system import Durability
from bench.workloads.everything import RUN_BYTES, WINDOW_LEAD_SECONDS, WINDOW_SECONDS
from bench.workloads.isolation import half_load, publish

BETWEEN = "alone, in windows between"
UPLOADING = "beside a splitter that splits and uploads, in windows"
SPLITTING = "beside a splitter that uploads nothing, in windows between"
OUT_BETWEEN = "store out: alone, in windows between"
OUT = "store out: beside a splitter that splits, in windows"
TAIL = "tail of "
WINDOWS = {"short": 32, "full": 100}
"""Of each kind, at most: less where all is uploaded before."""
LEAST_WINDOWS = 4
BEHIND_BYTES = 192 << 20
"""With this much unsplit the splitter goes on by itself: what is published meanwhile in some windows more is then below
what a trigger takes, beyond which it would not upload."""
CAUGHT_UP_BYTES = 32 << 20
CATCH_UP_SECONDS_MAX = 10.0
TIERED_BYTES = {"short": 2 << 30, "full": 12 << 30}
TIERED_QUEUES = 16
BUCKET = "bench"
UPLOAD_SECONDS_MAX = 120.0
"""Until the first part is uploaded, the start of Spark included."""


class NoCopyMetrics(BenchError):
    """The node does not say what it uploads."""


def _waiting_bytes(http: str | None) -> float:
    """That are to be uploaded, and do not count yet. Raises BenchError."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = [float(line.rpartition(" ")[2]) for line in lines if line.startswith("mainstem_remote_copy_lag_bytes")]
    if not found:
        raise NoCopyMetrics(f"http://{http}/metrics does not tell what is to be uploaded")
    return sum(found)


def _await_upload(s3: S3Server) -> None:
    """Return when something of the first file is there. Raises BenchError when nothing comes."""
    deadline = time.monotonic() + UPLOAD_SECONDS_MAX
    before = s3.counts()
    while s3.counts().since(before).received_bytes < MEGABYTE:
        if time.monotonic() > deadline:
            raise BenchError(f"nothing was uploaded within {UPLOAD_SECONDS_MAX:.0f} s")
        time.sleep(0.1)


def _fill(stage: Stage) -> None:
    """The files that may move lie merged on disk 2."""
    tiered = stage.create("tiered", TIERED_QUEUES, configs={"remote.storage.enable": "true"})
    load = stage.produce(tiered, record_bytes=1024, batch_records=100, queues_per_request=4,
                         bytes=TIERED_BYTES[stage.form.name], seconds=180.0)  # fmt: skip
    stage.finish(stage.begin(load))
    assert stage.node.http is not None
    with PlainSplitter(stage.node.http, RUN_BYTES) as splitter:
        splitter.split(merging=True)
        splitter.drain()


class _Windows:
    """Publishes and follows in windows, with the processes of the splitter and of the store stopped or not."""

    def __init__(self, stage: Stage, rate: float, s3: S3Server) -> None:
        self._stage = stage
        self._s3 = s3
        queues = stage.create("published", 16)
        self.load = dataclasses.replace(
            publish(stage, queues, rate), seconds=WINDOW_SECONDS, warmup_seconds=WINDOW_LEAD_SECONDS
        )
        self._reader = stage.fetch(queues, connections=1, in_flight=1, queues_per_request=16, from_="latest",
                                   min_bytes=1, max_wait_ms=500,
                                   seconds=WINDOW_SECONDS + WINDOW_LEAD_SECONDS)  # fmt: skip
        self.published: dict[str, list[ShortWindow]] = {}
        self.followed: dict[str, list[ShortWindow]] = {}
        self.uploaded_bytes = 0
        """In windows of `UPLOADING`."""

    def alone(self, title: str) -> None:
        self._signal(signal.SIGSTOP)
        self._record(title, self._one())

    def beside(self, title: str) -> None:
        """As `title`, or as `SPLITTING` where that is `UPLOADING` and nothing was uploaded."""
        self.go_on()
        self._catch_up()
        before = self._s3.counts()
        windows = self._one()
        uploaded = self._s3.counts().since(before).received_bytes
        if title == UPLOADING:
            title = UPLOADING if uploaded >= MEGABYTE else SPLITTING
            self.uploaded_bytes += uploaded
        self._record(title, windows)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _one(self) -> tuple[ShortWindow, ShortWindow]:
        """Of publishers and of the reader."""
        stolen = StolenTime(self._stage.bench.cpus.both)
        following = self._stage.begin(self._reader)
        published, followed = self._stage.finish(self._stage.begin(self.load)), self._stage.finish(following)
        seconds = stolen.most_seconds()
        return ShortWindow(published, seconds), ShortWindow(followed, seconds)

    def _record(self, title: str, windows: tuple[ShortWindow, ShortWindow]) -> None:
        for kept, window in zip((self.published, self.followed), windows, strict=True):
            kept.setdefault(title, []).append(window)

    def _signal(self, number: signal.Signals) -> None:
        self._stage.node.tree.signal_descendants(number)
        os.kill(self._s3.pid, number)

    def _catch_up(self) -> None:
        http = self._stage.node.http
        if lag_bytes(http) < BEHIND_BYTES:
            return
        deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
        while lag_bytes(http) >= CAUGHT_UP_BYTES and time.monotonic() < deadline:
            time.sleep(0.1)


def _tiering(stage: Stage) -> None:
    for name, value in CREDENTIALS.items():  # where S3's other tools look for them, too
        os.environ[f"AWS_{name.upper()}"] = value
    with s3_server(BUCKET, idle=True, light=True) as s3:
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
    windows = _Windows(stage, rate, s3)
    stage.rate_of(windows.load)  # the splitter starts for what is to be split
    _await_upload(s3)
    most = WINDOWS[stage.form.name]
    stage.window()
    try:
        for number in range(most):
            if number >= LEAST_WINDOWS and not _waiting_bytes(http):
                stage.bench.results.notes.append(f"11: all was uploaded after {number} windows of each kind")
                break
            _pair(windows, UPLOADING, BETWEEN, number)
        windows.go_on()
        s3.go_away()
        for number in range(most // 2):
            _pair(windows, OUT, OUT_BETWEEN, number)
    finally:
        windows.go_on()
    for title, published in windows.published.items():
        moved = {"uploaded_mb": windows.uploaded_bytes / MEGABYTE} if title == UPLOADING else {}
        stage.record(title, {**figures_of_windows(published), "rate_per_s": rate, **moved})
        stage.record(TAIL + title, figures_of_windows(windows.followed[title]))


def _pair(windows: _Windows, beside: str, alone: str, number: int) -> None:
    """A window of each kind; which comes first changes from pair to pair."""
    if number % 2:
        windows.alone(alone)
    windows.beside(beside)
    if not number % 2:
        windows.alone(alone)


def sessions(form: Form) -> list[Session]:
    settings = {"pipeline.start_age_seconds": "1"}
    return [Session(name="tiering", run=_tiering, durability=Durability.SYNC, systems=("mainstem",),
                    settings=settings, all_cores=True)]  # fmt: skip


WORKLOAD = Workload(
    "11",
    "Publish latency at half load, alone and while files move to an object store or cannot",
    sessions,
    shown=("rate_per_s", *SHOWN, "uploaded_mb"),
)
