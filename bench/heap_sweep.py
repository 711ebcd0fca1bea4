"""Which heap is Kafka's best here: held once before the long form, and the best is kept for all of its rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from bench.runner import Runner
from bench.session import Bench, Form, Session, Stage, Workload
from bench.systems.system import Durability

HEAPS = ("512m", "1g", "2g")
NUMBER = "heap"
FEW, MANY = "16 queues", "4,096 queues"


def best_heap(bench: Bench, tell: Callable[[str], None]) -> str:
    """The heap with the highest product of Kafka's rates on few and on many queues. The rates are kept as rows."""
    for heap in HEAPS:
        once = dataclasses.replace(bench, heap=heap, form=dataclasses.replace(bench.form, repetitions=1))
        Runner(once, ["kafka"], tell, lambda: None).run([WORKLOAD])

    def product(heap: str) -> float:
        rate = 1.0
        for row in bench.results.of(NUMBER):
            rate *= bench.results.median(row, f"kafka {heap}", "mb_per_s") or 0.0
        return rate

    return max(HEAPS, key=product)


def _measure(stage: Stage) -> None:
    stage.label = f"kafka {stage.bench.heap}"
    stage.start()
    for title, partitions in ((FEW, 16), (MANY, 4_096)):
        queues = stage.create(f"heap{partitions}", partitions)
        load = stage.produce(queues, record_bytes=100, batch_records=10, queues_per_request=16)
        stage.meet_every_queue(load)
        stage.warm(load)
        stage.measure(title, load, queues=partitions)


def _sessions(form: Form) -> list[Session]:
    return [Session(name="heap", run=_measure, durability=Durability.ASYNC, systems=("kafka",))]


WORKLOAD = Workload(NUMBER, "Kafka by the heap of its JVM", _sessions, shown=("mb_per_s", "cpu_ms_per_mb"))
