"""5. Publish latency while others want the disk: a reader that catches up, and Mainstem's own split.

Publishers run on schedule at half of what the node takes saturated, first alone, then beside the disturbance, in turn
and several times in the life of one node; what counts is the ratio of the two within a system. The reader of the past
runs unpaced and at low priority on the load's core, so that it does not hold up the publishers' own clock.
"""

from __future__ import annotations

import dataclasses
import time

from bench.load import Produce
from bench.session import Form, Session, Stage, Workload
from bench.store.split_watch import await_first_progress, lag_bytes
from bench.systems.system import Durability
from bench.topics import Queues

PAST_BYTES = {"short": 1 << 30, "full": 12 << 30}
"""Written before it is read or split: at the splitter's pace of 100 MB/s, two minutes' work in the full form."""
ROUNDS = {"short": 2, "full": 10}
ALONE = "alone"
BESIDE_READER = "beside a catch-up reader"
ALONE_TWO_CORES = "alone, two cores"
BESIDE_START = "beside the start of the splitter, two cores"
BESIDE_SPLIT = "beside the split, two cores"
BUSY_BYTES = 256 << 20
"""With less unsplit than that, the split would end within a measurement."""
READER_NICE = 19
SETTLE_SECONDS = 1.0
READER_LEAD_SECONDS = 0.2
"""From the reader's start to the publishers'."""


def publish(stage: Stage, queues: Queues, rate: float | None = None) -> Produce:
    """10 KB in each request, from eight connections."""
    return stage.produce(queues, record_bytes=1024, batch_records=10, connections=8,
                         in_flight=1 if rate is None else 5, rate=rate)  # fmt: skip


def half_load(stage: Stage, queues: Queues) -> Produce:
    saturating = publish(stage, queues)
    stage.warm(saturating)
    return publish(stage, queues, round(stage.rate_of(saturating) / 2))


def fill_past(stage: Stage) -> Queues:
    queues = stage.create("past", 16)
    load = stage.produce(queues, record_bytes=1024, batch_records=100, queues_per_request=4,
                         bytes=PAST_BYTES[stage.form.name], seconds=180.0)  # fmt: skip
    stage.finish(stage.begin(load))
    return queues


def _settle(stage: Stage, load: Produce) -> None:
    """The past leaves memory, and publishers find again what they need there."""
    stage.node.forget_past()
    stage.rate_of(dataclasses.replace(load, seconds=SETTLE_SECONDS))


def _beside_reader(stage: Stage) -> None:
    stage.start()
    past = fill_past(stage)
    published = stage.create("published", 16)
    load = half_load(stage, published)
    reader = stage.fetch(past, connections=1, in_flight=1, queues_per_request=16, max_bytes=16 << 20,
                         partition_max_bytes=1 << 20, until_end=True, seconds=stage.form.seconds + 2.0)  # fmt: skip
    for _ in range(ROUNDS[stage.form.name]):
        _settle(stage, load)
        stage.measure(ALONE, load)
        _settle(stage, load)
        reading = stage.begin(reader, nice=READER_NICE, timed=False)
        time.sleep(READER_LEAD_SECONDS)
        stage.measure(BESIDE_READER, load)
        read = stage.finish(reading)
        stage.record(BESIDE_READER, {"reader_mb_per_s": read["mb_per_s"]})
        if read["seconds"] < stage.form.seconds + READER_LEAD_SECONDS:
            stage.bench.results.notes.append(
                f"5: {stage.label}'s reader had read everything after {read['seconds']:.1f} s"
            )


def _beside_split(stage: Stage) -> None:
    """The node lives twice: without the splitter, then with it and everything the first life wrote to be split."""
    rounds = ROUNDS[stage.form.name]
    first = stage.start()
    published = stage.create("published", 16)
    load = half_load(stage, published)
    for _ in range(rounds):
        stage.measure(ALONE_TWO_CORES, load)
    fill_past(stage)
    first.stop()
    node = stage.start(splitter=True)
    load = publish(stage, published, load.rate)
    stage.measure(BESIDE_START, load)
    await_first_progress(node.http)
    for _ in range(rounds):
        if lag_bytes(node.http) < BUSY_BYTES:
            stage.bench.results.notes.append("5: the split was over before the last of its rounds")
            return
        stage.measure(BESIDE_SPLIT, load)


def sessions(form: Form) -> list[Session]:
    durabilities = (Durability.SYNC, Durability.ASYNC) if form.full else (Durability.SYNC,)
    systems = ("mainstem", "kafka") if form.full else ("mainstem",)
    found = [
        Session(name="catch-up reader", run=_beside_reader, durability=one, systems=systems) for one in durabilities
    ]
    found.append(Session(name="split", run=_beside_split, durability=Durability.SYNC, systems=("mainstem",),
                         settings={"pipeline.start_age_seconds": "1"}, all_cores=True))  # fmt: skip
    return found


WORKLOAD = Workload(
    "5",
    "Publish latency at half load, alone and beside readers of the past and the split",
    sessions,
    shown=("rate_per_s", "p50_ms", "p99_ms", "p999_ms", "reader_mb_per_s"),
)
