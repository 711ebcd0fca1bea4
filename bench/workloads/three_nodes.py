"""Three nodes on this machine, every queue on all of them, acks=all: what replication costs.

The loads of workloads 1 to 3, and the same on one node in the same run. Nodes and load share all cores, so that rates
say little beside another machine's; the CPU time of all nodes together for what was acknowledged says more. Each
request goes to the leader of its queues. 2,048 queues where one node has 16,384: creating three replicas of those
takes Kafka minutes here. On disk a few rows only.
"""

from __future__ import annotations

from typing import Any

from bench.metrics import MEGABYTE
from bench.session import Form, Session, Stage, Workload
from bench.systems.system import Durability
from bench.topics import Queues

NODES = {1: "one node", 3: "three nodes"}
HEAP = "512m"
"""Of each of Kafka's JVMs: three share the memory of one machine."""
CONNECTIONS = (3, 24, 63)
"""Of small requests; as many to each node."""
TIMES = 3
"""Each row is measured, within one life of the nodes."""
WARM_SECONDS = 8.0
"""Of small requests at least, and half of that of large ones: three JVMs compile on the cores of one."""
SATURATING = 6
"""Connections of the other loads."""
LARGE: dict[str, Any] = {
    "record_bytes": 1024, "batch_records": 100, "queues_per_request": 10, "connections": SATURATING,
}  # fmt: skip
MANY: dict[str, Any] = {"record_bytes": 100, "batch_records": 10, "connections": SATURATING}
SMALL: dict[str, Any] = {"record_bytes": 100, "batch_records": 1, "queues_per_request": 1, "in_flight": 1}
LARGE_TITLE = "1 KB records, 1 MB requests"


def small_title(connections: int) -> str:
    return f"100-byte requests, {connections} connections"


def many_title(per_request: int) -> str:
    return f"2,048 queues, {per_request} per request"


def _measure(stage: Stage, load_title: str, queues: Queues, load: dict[str, Any]) -> None:
    title = f"{load_title}, {NODES[stage.session.nodes]}"
    results, durability = stage.bench.results, stage.session.durability.value
    alone = results.find(WORKLOAD.number, f"{load_title}, {NODES[1]}", durability)
    one = results.median(alone, stage.label, "cpu_us_per_batch")
    for _ in range(TIMES):
        figures = stage.measure(title, stage.produce(queues, **load), queues=queues.count)
        if stage.session.nodes > 1 and one:
            stage.record(title, {"to_one_node": figures["cpu_us_per_batch"] / one}, queues=queues.count)


def _memory(stage: Stage, when: str) -> None:
    memory = stage.node.memory()
    figures = {"memory_mb": memory.proportional / MEGABYTE, "start_s": stage.node.start_seconds}
    stage.record(f"{when}, {NODES[stage.session.nodes]}", figures)


def _large_and_small(stage: Stage, small_connections: tuple[int, ...]) -> None:
    small = stage.create("small", 64)
    load = SMALL | {"connections": CONNECTIONS[-1]}
    stage.warm(stage.produce(small, **load), seconds_least=WARM_SECONDS)
    for connections in small_connections:
        _measure(stage, small_title(connections), small, SMALL | {"connections": connections})
    large = stage.create("large", 96)
    stage.warm(stage.produce(large, **LARGE), seconds_least=WARM_SECONDS / 2)
    _measure(stage, LARGE_TITLE, large, LARGE)


def _page_cache(stage: Stage) -> None:
    stage.start()
    _memory(stage, "idle")
    _large_and_small(stage, CONNECTIONS)
    many = stage.create("many", 2_048)
    stage.meet_every_queue(stage.produce(many, **MANY, queues_per_request=16))
    for per_request in (16, 1):
        _measure(stage, many_title(per_request), many, MANY | {"queues_per_request": per_request})
    _memory(stage, "after these loads")


def _on_disk(stage: Stage) -> None:
    stage.start()
    _large_and_small(stage, CONNECTIONS[-1:])


def sessions(form: Form) -> list[Session]:
    return [
        Session(name=name, run=run, durability=durability, nodes=nodes, heap=HEAP, all_cores=True)
        for durability, run in ((Durability.ASYNC, _page_cache), (Durability.SYNC, _on_disk))
        for nodes, name in NODES.items()
    ]


WORKLOAD = Workload(
    "cluster",
    "Three nodes beside one",
    sessions,
    shown=(
        "mb_per_s", "requests_per_s", "cpu_ms_per_mb", "cpu_us_per_batch", "to_one_node", "p50_ms", "p99_ms",
        "memory_mb", "start_s",
    ),
)  # fmt: skip
