"""1. Produce, 1 KB records, requests of 1 MB, 10 queues: what a byte costs."""

from __future__ import annotations

import dataclasses

from bench.recycling import fill_pool, settings
from bench.session import Form, Session, Stage, Workload
from bench.systems.system import Durability

QUEUES = 10
RECORD_BYTES = 1024
BATCH_RECORDS = 100
POOL_BYTES = {"short": 2 << 30, "full": 8 << 30}
PAST_DIRTY = 1.25
"""Of the kernel's dirty threshold: what the long form writes."""
LONGEST_SECONDS = 120.0
TITLE = "1 KB records, 1 MB requests, 10 queues"
_REQUEST = {"record_bytes": RECORD_BYTES, "batch_records": BATCH_RECORDS, "queues_per_request": QUEUES}


def _fresh(stage: Stage) -> None:
    stage.start()
    queues = stage.create("large", QUEUES)
    load = stage.produce(queues, **_REQUEST)
    stage.warm(load)
    if stage.form.full:
        size = int(stage.bench.dirty_bytes * PAST_DIRTY)
        load = dataclasses.replace(load, bytes=size, seconds=LONGEST_SECONDS)
    stage.measure(TITLE, load, queues=QUEUES)


def _recycled(stage: Stage) -> None:
    """No more than the pool holds."""
    pool = POOL_BYTES[stage.form.name]
    stage.start()
    fill_pool(stage, pool)
    queues = stage.create("large", QUEUES)
    load = stage.produce(queues, **_REQUEST, bytes=pool * 8 // 10, seconds=LONGEST_SECONDS)
    stage.measure(TITLE, load, queues=QUEUES)


def sessions(form: Form) -> list[Session]:
    recycled = settings(POOL_BYTES[form.name])
    found = []
    for durability in (Durability.ASYNC, Durability.SYNC):
        found.append(Session(name="1 MB requests", run=_fresh, durability=durability))
        if form.full or durability is Durability.ASYNC:
            found.append(
                Session(
                    name="1 MB requests",
                    run=_recycled,
                    durability=durability,
                    systems=("mainstem",),
                    variant="recycled",
                    settings=recycled,
                )
            )
    return found


WORKLOAD = Workload(
    "1",
    "Produce, 1 KB records, 1 MB requests, 10 queues",
    sessions,
    shown=("mb_per_s", "cpu_ms_per_mb", "p99_ms"),
)
