"""1. Produce, 1 KB records, requests of 1 MB, 10 queues: what a byte costs."""

from __future__ import annotations

from bench.recycling import fill_pool, settings
from bench.session import Form, Session, Stage, Workload
from bench.systems.system import Durability

QUEUES = 10
RECORD_BYTES = 1024
BATCH_RECORDS = 100
POOL_BYTES = {"short": 2 << 30, "full": 8 << 30}
TITLE = "1 KB records, 1 MB requests, 10 queues"


def _measure(stage: Stage) -> None:
    queues = stage.create("large", QUEUES)
    options: dict[str, object] = {
        "record_bytes": RECORD_BYTES, "batch_records": BATCH_RECORDS, "queues_per_request": QUEUES,
    }  # fmt: skip
    stage.warm(stage.produce(queues, **options))
    stage.measure(TITLE, stage.produce(queues, **options), queues=QUEUES)


def _fresh(stage: Stage) -> None:
    stage.start()
    _measure(stage)


def _recycled(stage: Stage) -> None:
    pool = POOL_BYTES[stage.form.name]
    stage.start()
    fill_pool(stage, pool)
    queues = stage.create("large", QUEUES)
    load = stage.produce(queues, record_bytes=RECORD_BYTES, batch_records=BATCH_RECORDS, queues_per_request=QUEUES,
                         bytes=pool * 8 // 10)  # fmt: skip
    stage.measure(TITLE, load, queues=QUEUES)


def sessions(form: Form) -> list[Session]:
    recycled = settings(POOL_BYTES[form.name])
    return [
        session
        for durability in (Durability.ASYNC, Durability.SYNC)
        for session in (
            Session(name=durability.value, run=_fresh, durability=durability),
            Session(name=durability.value, run=_recycled, durability=durability, systems=("mainstem",),
                    variant="recycled", settings=recycled),
        )
    ]  # fmt: skip


WORKLOAD = Workload(
    "1",
    "Produce, 1 KB records, 1 MB requests, 10 queues",
    sessions,
    shown=("mb_per_s", "cpu_ms_per_mb", "p99_ms"),
)
