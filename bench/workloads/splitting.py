"""7. Mainstem's split: how fast it is beside the node's own ingest, what it costs, and whether it keeps up.

The node, Spark and its workers share all cores with the load. A backlog is written without the splitter, which gives
the ingest; the node is started again with it, unpaced, and the backlog is drained. Then 100 MB/s are written on
schedule while it runs.
"""

from __future__ import annotations

import statistics
import time

from bench.load import Produce
from bench.metrics import MEGABYTE, Figures
from bench.session import Form, Session, Stage, Workload
from bench.store.split_watch import SplitCpu, await_lag, lag_bytes, split_cpu, split_seconds_max, split_view
from bench.systems.system import Durability
from bench.topics import Queues
from mainstem.pipeline.split.split_plan import GATHER_SECONDS

BACKLOG_BYTES = {"short": 768 << 20, "full": 4 << 30}
SUSTAINED_SECONDS = {"short": 12.0, "full": 120.0}
SUSTAINED_BYTES_PER_SECOND = 100e6
QUEUES = 1_000
INGEST = "ingest, 1,000 queues"
BACKLOG = "splitting a backlog"
WITHOUT = "100 MB/s without the splitter"
SUSTAINED = "splitting 100 MB/s as they come"
WITH_SPARK = "memory with Spark"
_DONE_BYTES = 1 << 20
_LOOK_SECONDS = 0.2
_REQUEST = {"record_bytes": 1024, "batch_records": 10, "queues_per_request": 10}


def _split(stage: Stage) -> None:
    """The node lives twice: without the splitter, then with it."""
    first = stage.start()
    queues = stage.create("split", QUEUES)
    stage.meet_every_queue(stage.produce(queues, **_REQUEST))
    stage.measure(WITHOUT, _offered(stage, queues, stage.form.seconds))
    load = stage.produce(queues, **_REQUEST, bytes=BACKLOG_BYTES[stage.form.name], seconds=120.0)
    stage.measure(INGEST, load, queues=QUEUES)
    first.stop()
    stage.start(splitter=True)
    _backlog(stage)
    _sustained(stage, queues)


def _offered(stage: Stage, queues: Queues, seconds: float) -> Produce:
    rate = round(SUSTAINED_BYTES_PER_SECOND / stage.pass_bytes(stage.produce(queues, **_REQUEST)) * QUEUES / 10)
    return stage.produce(queues, **_REQUEST, seconds=seconds, rate=rate)


def _backlog(stage: Stage) -> None:
    """Timed from the first progress: Spark's start is the cost of waking it, not of a byte."""
    http, tree = stage.node.http, stage.node.tree
    deadline = time.monotonic() + split_seconds_max(0)
    first = lag_bytes(http)
    while lag_bytes(http) >= first and time.monotonic() < deadline:
        time.sleep(0.05)
    begun, lag, before = time.perf_counter(), lag_bytes(http), split_cpu(tree)
    await_lag(http, below=_DONE_BYTES, seconds_max=split_seconds_max(lag))
    seconds, spent = time.perf_counter() - begun, split_cpu(tree).since(before)
    stage.record(WITH_SPARK, {"memory_mb": stage.node.memory().proportional / MEGABYTE})
    stage.record(BACKLOG, {"split_mb_per_s": lag / MEGABYTE / seconds, **_per_megabyte(spent, lag)})


def _per_megabyte(spent: SplitCpu, size: int) -> Figures:
    scale = 1000 * MEGABYTE / size
    return {
        "cpu_ms_per_mb": spent.node * scale,
        "driver_cpu_ms_per_mb": spent.driver * scale,
        "jvm_cpu_ms_per_mb": spent.jvm * scale,
        "worker_cpu_ms_per_mb": spent.workers * scale,
    }


def _sustained(stage: Stage, queues: Queues) -> None:
    """Keeps up if what is unsplit grows to what one trigger takes and no further: measured over the second half, as
    the trend of many looks, since every trigger's commit takes what came in over its second or two away at once."""
    seconds = SUSTAINED_SECONDS[stage.form.name]
    http, tree = stage.node.http, stage.node.tree
    before = split_cpu(tree)
    writing = stage.begin(_offered(stage, queues, seconds))
    time.sleep(seconds / 2)
    times: list[float] = []
    lags: list[int] = []
    begun = time.perf_counter()
    while (now := time.perf_counter()) < begun + seconds / 2:
        times.append(now)
        lags.append(lag_bytes(http))
        time.sleep(_LOOK_SECONDS)
    result = stage.finish(writing)
    unsplit = lag_bytes(http)
    growth = statistics.linear_regression(times, lags).slope
    stage.record(
        SUSTAINED,
        {
            "mb_per_s": result["mb_per_s"],
            "split_mb_per_s": result["mb_per_s"] - growth / MEGABYTE,
            "lag_mb": unsplit / MEGABYTE,
            "p99_ms": result["latency_us"]["p99"] / 1000,
            **_per_megabyte(split_cpu(tree).since(before), result["bytes"]),
        },
    )
    error = split_view(http)["last_error"]
    if error:
        stage.bench.results.notes.append(f"7: the splitter said {error}")


def sessions(form: Form) -> list[Session]:
    # The backlog's end does not wait for 64 MB; while 100 MB/s come, a trigger begins as it does by default.
    settings = {"pipeline.start_age_seconds": f"{GATHER_SECONDS}", "pipeline.bytes_per_second": "0"}
    return [Session(name="split", run=_split, durability=Durability.SYNC, systems=("mainstem",),
                    settings=settings, all_cores=True)]  # fmt: skip


WORKLOAD = Workload(
    "7",
    "The split: speed, cost, and whether it keeps up",
    sessions,
    shown=(
        "mb_per_s", "split_mb_per_s", "lag_mb", "p99_ms", "cpu_ms_per_mb", "driver_cpu_ms_per_mb",
        "jvm_cpu_ms_per_mb", "worker_cpu_ms_per_mb", "memory_mb",
    ),
)  # fmt: skip
