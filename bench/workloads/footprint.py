"""6. The footprint of a node: memory idle, with many queues and under load; time to start, and to start after SIGKILL.

Memory is the node's own (PSS of all its processes) and, beside it, what its files hold in the page cache.
"""

from __future__ import annotations

import time

from bench.metrics import MEGABYTE
from bench.session import Form, Session, Stage, Workload
from bench.systems.system import Durability

_REQUEST = {"record_bytes": 1024, "batch_records": 100, "queues_per_request": 8}
UNSPLIT_BYTES = 1 << 30
SETTLE_SECONDS = 2.0
IDLE = "idle"
TEN_THOUSAND = "10,000 idle queues"
MILLION = "1,000,000 idle queues"
LOADED = "under load, 16 queues"
RESTARTED = "restart after SIGKILL, 1 GiB in the log"


def _memory(stage: Stage, title: str, **figures: float) -> None:
    memory = stage.node.memory()
    stage.record(
        title,
        {
            "memory_mb": memory.proportional / MEGABYTE,
            "resident_mb": memory.resident / MEGABYTE,
            "cached_mb": stage.node.cached_bytes() / MEGABYTE,
            **figures,
        },
    )


def _idle_and_loaded(stage: Stage) -> None:
    node = stage.start()
    time.sleep(SETTLE_SECONDS)
    _memory(stage, IDLE, start_s=node.start_seconds)
    queues = stage.create("loaded", 16)
    stage.finish(stage.begin(stage.produce(queues, **_REQUEST, bytes=UNSPLIT_BYTES, seconds=60.0)))
    _memory(stage, LOADED)
    node.kill()
    again = stage.start()
    stage.finish(stage.begin(stage.fetch(queues, queues_per_request=16, max_bytes=50 << 20, in_flight=1,
                                         partition_max_bytes=1 << 20, until_end=True, seconds=120.0)))  # fmt: skip
    _memory(stage, RESTARTED, restart_s=again.start_seconds)


def _idle_queues(stage: Stage, title: str, topics: int, partitions: int) -> None:
    stage.start()
    begun = time.perf_counter()
    stage.create("idle", partitions, topics_count=topics)
    created = time.perf_counter() - begun
    time.sleep(SETTLE_SECONDS)
    _memory(stage, title, create_s=created)


def _ten_thousand(stage: Stage) -> None:
    _idle_queues(stage, TEN_THOUSAND, 2, 5_000)


def _million(stage: Stage) -> None:
    _idle_queues(stage, MILLION, 10, 100_000)


def sessions(form: Form) -> list[Session]:
    found = [
        Session(name="idle, loaded, restarted", run=_idle_and_loaded, durability=Durability.ASYNC),
        Session(name=MILLION, run=_million, durability=Durability.ASYNC, systems=("mainstem",)),
    ]
    if form.full:
        found.append(Session(name=TEN_THOUSAND, run=_ten_thousand, durability=Durability.ASYNC))
    return found


WORKLOAD = Workload(
    "6",
    "Memory, start and restart",
    sessions,
    shown=("memory_mb", "resident_mb", "cached_mb", "start_s", "restart_s", "create_s"),
)
