"""3. One 100-byte record per request on 1, 8 and 64 connections: what a request costs, and how long it takes.

First saturated, each connection waiting for its answer; then, in nodes of their own, on a schedule: half of what the
slower system managed, for all systems alike, latency counted from when a request was due.
"""

from __future__ import annotations

from bench.errors import BenchError
from bench.session import Form, Session, Stage, Workload
from bench.systems.system import Durability
from bench.topics import Queues

QUEUES = 64
CONNECTIONS = (1, 8, 64)
RATE_CONNECTIONS = 64
_ONE = {"record_bytes": 100, "batch_records": 1, "queues_per_request": 1}


def saturated(connections: int) -> str:
    return f"saturated, {connections} connection{'s' if connections > 1 else ''}"


HALF_LOAD = "on schedule at half load, 64 connections"


def _warmed(stage: Stage) -> Queues:
    stage.start()
    queues = stage.create("small", QUEUES)
    stage.warm(stage.produce(queues, **_ONE, connections=RATE_CONNECTIONS, in_flight=1))
    return queues


def _saturate(stage: Stage) -> None:
    queues = _warmed(stage)
    for connections in CONNECTIONS:
        load = stage.produce(queues, **_ONE, connections=connections, in_flight=1)
        stage.measure(saturated(connections), load, queues=QUEUES)


def _on_schedule(stage: Stage) -> None:
    results, durability = stage.bench.results, stage.session.durability.value
    row = results.find("3", saturated(RATE_CONNECTIONS), durability)
    rates = [results.median(row, system, "requests_per_s") for system in stage.session.systems]
    known = [rate for rate in rates if rate is not None]
    if not known:
        raise BenchError("there is no saturated rate to take half of")
    queues = _warmed(stage)
    load = stage.produce(queues, **_ONE, connections=RATE_CONNECTIONS, rate=round(min(known) / 2))
    stage.measure(HALF_LOAD, load, queues=QUEUES)


def sessions(form: Form) -> list[Session]:
    found = [Session(name="saturated", run=_saturate, durability=one) for one in (Durability.ASYNC, Durability.SYNC)]
    found.append(Session(name="half load", run=_on_schedule, durability=Durability.SYNC))
    if form.full:
        found.append(Session(name="half load", run=_on_schedule, durability=Durability.ASYNC))
    return found


WORKLOAD = Workload(
    "3",
    "One 100-byte record per request",
    sessions,
    shown=("requests_per_s", "cpu_us_per_batch", "p50_ms", "p99_ms", "p999_ms", "rate_per_s"),
)
