"""12. Workloads 1 to 4 in the clear and over TLS 1.3, in turns on the same node: what encryption costs.

Clients come by a listener of their own, with TLS alone. OpenSSL makes the load generator's records, of 16 KiB, on the
core of the load; what is counted is the node's processor time. Each row of one kind is measured in the clear first.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from bench.load import Fetch, Produce
from bench.session import Form, Session, Stage, Workload
from bench.systems.system import Durability
from bench.topics import Queues

Load = TypeVar("Load", Produce, Fetch)

CLEAR, ENCRYPTED = "in the clear", "over TLS"
LARGE, MANY, SMALL = "1 MB requests", "1,000 queues, 100-byte records", "one record per request, 64 connections"
RECENT_BYTES = 160 << 20
"""Within Mainstem's write cache."""
RECENT_PASSES = 3
PAST_BYTES = 512 << 20


def title(what: str, how: str) -> str:
    return f"{what}, {how}"


def _tail(queues: int) -> str:
    return f"tail, {queues:,} queue{'s' if queues > 1 else ''}"


def _past(queues: int) -> str:
    return f"past, {queues:,} queue{'s' if queues > 1 else ''}"


def _both(stage: Stage, load: Load) -> dict[str, Load]:
    assert stage.node.guarded is not None
    return {CLEAR: load, ENCRYPTED: dataclasses.replace(load, tls_address=stage.node.guarded)}


def _produce(stage: Stage) -> None:
    stage.start()
    few, many = stage.create("few", 10), stage.create("many", 1_000)
    loads = {
        LARGE: stage.produce(few, record_bytes=1024, batch_records=100, queues_per_request=10),
        MANY: stage.produce(many, record_bytes=100, batch_records=10, queues_per_request=100),
        SMALL: stage.produce(few, record_bytes=100, batch_records=1, connections=64, in_flight=1),
    }
    for what, load in loads.items():
        for one in _both(stage, load).values():
            stage.warm(one)
        if what == MANY:
            stage.meet_every_queue(load)
        for how, one in _both(stage, load).items():
            stage.rest()
            stage.measure(title(what, how), one)


def _fill(stage: Stage, prefix: str, count: int, size: int) -> Queues:
    queues = stage.create(prefix, count)
    load = stage.produce(queues, record_bytes=1024, batch_records=10, queues_per_request=min(10, count),
                         bytes=size, seconds=120.0)  # fmt: skip
    stage.finish(stage.begin(load))
    return queues


def _reading(stage: Stage, queues: Queues) -> Fetch:
    connections = 1 if queues.count == 1 else 4
    return stage.fetch(queues, connections=connections, in_flight=1, queues_per_request=queues.count // connections,
                       max_bytes=50 << 20, partition_max_bytes=1 << 20, until_end=True, seconds=60.0)  # fmt: skip


def _consume(stage: Stage) -> None:
    stage.start()
    for count in (1, 1_000):
        recent = _fill(stage, f"recent{count}", count, RECENT_BYTES)
        for how, load in _both(stage, _reading(stage, recent)).items():
            for _ in range(2):
                stage.finish(stage.begin(load))
            stage.measure(title(_tail(count), how), load, passes=RECENT_PASSES)
    for count in (1, 1_000):
        old = _fill(stage, f"old{count}", count, PAST_BYTES)
        for how, load in _both(stage, _reading(stage, old)).items():
            stage.node.forget_past()
            stage.measure(title(_past(count), how), load)


def sessions(form: Form) -> list[Session]:
    return [
        Session(name="produce", run=_produce, durability=Durability.ASYNC, guarded=True),
        Session(name="consume", run=_consume, durability=Durability.ASYNC, guarded=True),
    ]


WORKLOAD = Workload(
    "12", "Workloads 1 to 4 over TLS", sessions,
    shown=("mb_per_s", "requests_per_s", "cpu_ms_per_mb", "cpu_us_per_batch", "p99_ms"),
)  # fmt: skip
