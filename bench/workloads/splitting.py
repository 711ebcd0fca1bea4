"""7. Mainstem's split: how fast it is beside the node's own ingest, what it costs, and whether it keeps up.

The node, Spark and its workers share all cores with the load. A backlog is written with the splitter asleep, which
gives the ingest; passing the threshold wakes it. Then 100 MB/s are written on schedule while it runs.
"""

from __future__ import annotations

import time

from bench.metrics import MEGABYTE
from bench.session import Form, Session, Stage, Workload
from bench.split_watch import await_lag, lag_bytes, split_cpu, split_seconds_max, split_view
from bench.systems.system import Durability
from bench.topics import Queues

BACKLOG_BYTES = {"short": 768 << 20, "full": 4 << 30}
SUSTAINED_SECONDS = {"short": 12.0, "full": 120.0}
SUSTAINED_BYTES_PER_SECOND = 100e6
QUEUES = 1_000
INGEST = "ingest, 1,000 queues"
BACKLOG = "splitting a backlog"
SUSTAINED = "splitting 100 MB/s as they come"
WITH_SPARK = "memory with Spark"
_DONE_BYTES = 1 << 20
_REQUEST = {"record_bytes": 1024, "batch_records": 10, "queues_per_request": 10}


def _split(stage: Stage) -> None:
    stage.start()
    queues = stage.create("split", QUEUES)
    backlog = BACKLOG_BYTES[stage.form.name]
    load = stage.produce(queues, **_REQUEST, bytes=backlog, seconds=120.0)
    stage.measure(INGEST, load, queues=QUEUES)
    _backlog(stage)
    _sustained(stage, queues)


def _backlog(stage: Stage) -> None:
    """Timed from the first progress: Spark's start is the cost of waking it, not of a byte."""
    http = stage.node.http
    deadline = time.monotonic() + split_seconds_max(0)
    first = lag_bytes(http)
    while lag_bytes(http) >= first and time.monotonic() < deadline:
        time.sleep(0.05)
    begun, lag, before = time.perf_counter(), lag_bytes(http), split_cpu(stage.node.tree)
    await_lag(http, below=_DONE_BYTES, seconds_max=split_seconds_max(lag))
    seconds, spent = time.perf_counter() - begun, split_cpu(stage.node.tree).since(before)
    megabytes = lag / MEGABYTE
    memory = stage.node.memory()
    stage.record(WITH_SPARK, {"memory_mb": memory.proportional / MEGABYTE})
    stage.record(
        BACKLOG,
        {
            "split_mb_per_s": megabytes / seconds,
            "cpu_ms_per_mb": spent.node * 1000 / megabytes,
            "driver_cpu_ms_per_mb": spent.driver * 1000 / megabytes,
            "jvm_cpu_ms_per_mb": spent.jvm * 1000 / megabytes,
            "worker_cpu_ms_per_mb": spent.workers * 1000 / megabytes,
        },
    )


def _sustained(stage: Stage, queues: Queues) -> None:
    """Keeps up if what is unsplit grows to what one trigger takes and no further: measured over the second half."""
    seconds = SUSTAINED_SECONDS[stage.form.name]
    http = stage.node.http
    request_bytes = 10 * (61 + 10 * (1024 + 8))
    load = stage.produce(
        queues, **_REQUEST, seconds=seconds, rate=round(SUSTAINED_BYTES_PER_SECOND / request_bytes)
    )
    before = split_cpu(stage.node.tree)
    writing = stage.begin(load)
    time.sleep(seconds / 2)
    halfway = lag_bytes(http)
    result = stage.finish(writing)
    growth = (lag_bytes(http) - halfway) / (result["seconds"] / 2)
    spent = split_cpu(stage.node.tree).since(before)
    megabytes = result["bytes"] / MEGABYTE
    stage.record(
        SUSTAINED,
        {
            "mb_per_s": result["mb_per_s"],
            "split_mb_per_s": result["mb_per_s"] - growth / MEGABYTE,
            "lag_mb": lag_bytes(http) / MEGABYTE,
            "p99_ms": result["latency_us"]["p99"] / 1000,
            "cpu_ms_per_mb": spent.node * 1000 / megabytes,
            "driver_cpu_ms_per_mb": spent.driver * 1000 / megabytes,
            "jvm_cpu_ms_per_mb": spent.jvm * 1000 / megabytes,
            "worker_cpu_ms_per_mb": spent.workers * 1000 / megabytes,
        },
    )
    view = split_view(http)
    if view["last_error"]:
        stage.bench.results.notes.append(f"7: the splitter said {view['last_error']}")


def sessions(form: Form) -> list[Session]:
    settings = {
        "pipeline.start_bytes": str(BACKLOG_BYTES[form.name] * 98 // 100),
        "pipeline.start_age_seconds": "3600",
        "pipeline.bytes_per_second": "0",
    }
    return [Session(name="split", run=_split, durability=Durability.SYNC, systems=("mainstem",),
                    settings=settings, splitter=True, all_cores=True)]  # fmt: skip


WORKLOAD = Workload(
    "7",
    "The split: speed, cost, and whether it keeps up",
    sessions,
    shown=(
        "mb_per_s", "split_mb_per_s", "lag_mb", "p99_ms", "cpu_ms_per_mb", "driver_cpu_ms_per_mb",
        "jvm_cpu_ms_per_mb", "worker_cpu_ms_per_mb", "memory_mb",
    ),
)  # fmt: skip
