"""2. Produce, 100-byte records in batches of 10, over more and more queues: what a queue costs.

Requests carry the same number of queues at every count: 16 (as brokers' own replication or a buffering client would),
and one, which is what librdkafka sends. Every queue is written to several times before it is measured. Kafka refuses
10,000 partitions in one request that creates topics, so 16,384 queues are two topics for both.
"""

from __future__ import annotations

from bench.session import MEETINGS, Form, Session, Stage, Workload
from bench.systems.system import Durability

RECORD_BYTES = 100
BATCH_RECORDS = 10
PER_REQUEST = (16, 1)
FIRST = "few"
"""The prefix of the topic on which a session warms its node."""
MILLION = (10, 100_000)
"""Topics × partitions of the largest row."""
ONCE_FROM = 1_000_000
"""Queues of which each is met once only: Kafka is not in that row, and eight times would be ten gigabytes."""
_MILLION_SECONDS = 5.0
"""At least: every queue should be met more than once."""


def series(per_request: int) -> str:
    return f"{per_request} per request"


def title(queues: int, per_request: int) -> str:
    return f"{queues:,} queues, {series(per_request)}"


def _measure(stage: Stage, prefix: str, topics: int, partitions: int, *, seconds: float = 0.0) -> None:
    queues = stage.create(prefix, partitions, topics_count=topics)
    for per_request in PER_REQUEST:
        load = stage.produce(
            queues,
            record_bytes=RECORD_BYTES,
            batch_records=BATCH_RECORDS,
            queues_per_request=per_request,
            seconds=max(stage.form.seconds, seconds),
        )
        if per_request == PER_REQUEST[0]:
            stage.meet_every_queue(load, times=1 if queues.count >= ONCE_FROM else MEETINGS)
        if prefix == FIRST:
            stage.warm(load)
        name = title(queues.count, per_request)
        stage.measure(name, load, series=series(per_request), queues=queues.count)


def _few_and_most(stage: Stage) -> None:
    """Together within 20,000 open files, which is as far as this goes without root."""
    stage.start()
    _measure(stage, FIRST, 1, 16)
    _measure(stage, "most", 2, 8_192)


def _between(stage: Stage) -> None:
    stage.start()
    _measure(stage, FIRST, 1, 256)
    _measure(stage, "some", 1, 4_096)


def _million(stage: Stage) -> None:
    stage.start()
    _measure(stage, "million", *MILLION, seconds=_MILLION_SECONDS)


def sessions(form: Form) -> list[Session]:
    found = [
        Session(name="16 and 16,384 queues", run=_few_and_most, durability=Durability.ASYNC),
        Session(name="1,000,000 queues", run=_million, durability=Durability.ASYNC, systems=("mainstem",)),
    ]
    if form.full:
        found += [
            Session(name="256 and 4,096 queues", run=_between, durability=Durability.ASYNC),
            Session(name="16 and 16,384 queues", run=_few_and_most, durability=Durability.SYNC),
        ]
    return found


WORKLOAD = Workload(
    "2",
    "Produce, 100-byte records, 10 in a batch, 16 to 1,000,000 queues",
    sessions,
    shown=("mb_per_s", "batches_per_s", "cpu_ms_per_mb", "cpu_us_per_batch"),
)
