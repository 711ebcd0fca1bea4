"""6. What a node takes: memory idle, with many queues and under load; time to start, and to start after SIGKILL.

Memory is the node's own (PSS of all its processes) and, beside it, what its files hold in the page cache.
"""

from __future__ import annotations

import time

from bench.metrics import MEGABYTE
from bench.session import Form, Session, Stage, Workload
from bench.systems.system import Durability

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
    load = stage.produce(queues, record_bytes=1024, batch_records=100, queues_per_request=8,
                         bytes=UNSPLIT_BYTES, seconds=60.0)  # fmt: skip
    stage.finish(stage.begin(load))
    _memory(stage, LOADED)
    node.kill()
    again = stage.start()
    stage.meet_every_queue(load)  # it serves, and nothing is missing before what it takes now
    _memory(stage, RESTARTED, restart_s=again.start_seconds)


def _ten_thousand(stage: Stage) -> None:
    stage.start()
    begun = time.perf_counter()
    stage.create("idle", 10_000)
    created = time.perf_counter() - begun
    time.sleep(SETTLE_SECONDS)
    _memory(stage, TEN_THOUSAND, create_s=created)


def _million(stage: Stage) -> None:
    stage.start()
    begun = time.perf_counter()
    stage.create("idle", 100_000, topics_count=10)
    created = time.perf_counter() - begun
    time.sleep(SETTLE_SECONDS)
    _memory(stage, MILLION, create_s=created)


def sessions(form: Form) -> list[Session]:
    return [
        Session(name="idle, loaded, restarted", run=_idle_and_loaded, durability=Durability.ASYNC),
        Session(name=TEN_THOUSAND, run=_ten_thousand, durability=Durability.ASYNC),
        Session(name=MILLION, run=_million, durability=Durability.ASYNC, systems=("mainstem",)),
    ]


WORKLOAD = Workload(
    "6",
    "Memory, start and restart",
    sessions,
    shown=("memory_mb", "resident_mb", "cached_mb", "start_s", "restart_s", "create_s"),
)
