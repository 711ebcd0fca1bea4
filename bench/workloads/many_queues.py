"""2. Produce, 100-byte records in batches of 10, over more and more queues: what a queue costs.

Requests carry the same number of queues at every count: 16 (as brokers' own replication or a buffering client would),
and one, which is what librdkafka sends. Every queue is written to several times before it is measured. Kafka refuses
10,000 partitions in one request that creates topics, so 16,384 queues are two topics for both.

Few queues and many are measured on the same node, the few before and after the many: a node that writes new files pays
more for each byte the longer it does (the system's memory has pages at hand at first and must get them later), whatever
queues the bytes are of. Measured one after the other, the many queues would be charged for that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bench.recycling import fill_pool, settings
from bench.session import MEETINGS, Form, Session, Stage, Workload
from bench.systems.system import Durability
from bench.topics import Queues

RECORD_BYTES = 100
BATCH_RECORDS = 10
PER_REQUEST = (16, 1)
MILLION = (10, 100_000)
"""Topics × partitions of the largest row."""
ONCE_FROM = 1_000_000
"""Queues of which each is met once only: Kafka is not in that row, and eight times would be ten gigabytes."""
_MILLION_SECONDS = 5.0
"""At least: every queue should be met more than once."""
_POOL_BYTES = 4 << 30
"""Of recycled files; a session on them writes no more than the part below."""
_POOL_SHARE = 0.8


def series(per_request: int) -> str:
    return f"{per_request} per request"


def title(queues: int, per_request: int) -> str:
    return f"{queues:,} queues, {series(per_request)}"


def of_million(per_request: int) -> str:
    """The row of few queues on the node that has 1,000,000, which is as many as a cluster may have."""
    return f"16 of 1,000,000 queues, {series(per_request)}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Count:
    """Queues to measure; `titles` of their rows, by `PER_REQUEST`."""

    queues: Queues
    titles: Sequence[str]
    part: bool = False
    """The first queues of a topic that has more: no plot has their rows, and the load is not to look for others."""
    seconds_least: float = 0.0


def _count(stage: Stage, prefix: str, topics: int, partitions: int) -> _Count:
    queues = stage.create(prefix, partitions, topics_count=topics)
    return _Count(queues, [title(queues.count, per_request) for per_request in PER_REQUEST])


def _compare(stage: Stage, few: _Count, many: _Count, *, bytes_max: int | None = None) -> None:
    """Measure both, the few in two halves around the many. `bytes_max`: what may be written in all."""
    size = {"record_bytes": RECORD_BYTES, "batch_records": BATCH_RECORDS}
    turns = 3 * len(PER_REQUEST)
    bound = None if bytes_max is None else bytes_max // (turns + 2)
    """Of a turn; meeting the queues takes two turns' worth at the most."""
    for at, per_request in enumerate(PER_REQUEST):
        size |= {"queues_per_request": per_request}
        if bound is None:
            stage.warm(stage.produce(few.queues, **size, no_check=few.part))
        if at == 0:
            for count in (few, many):
                times = 1 if count.queues.count >= ONCE_FROM else MEETINGS
                stage.meet_every_queue(stage.produce(count.queues, **size, no_check=count.part), times=times)
        stage.rest()
        for count, part in ((few, 0.5), (many, 1.0), (few, 0.5)):
            seconds = max(stage.form.seconds * part, count.seconds_least)
            load = stage.produce(count.queues, **size, seconds=seconds, bytes=bound, no_check=count.part)
            drawn = "" if count.part else series(per_request)
            stage.measure(count.titles[at], load, series=drawn, queues=count.queues.count)


def _few_and_most(stage: Stage) -> None:
    """Together within 20,000 open files, which is as far as this goes without root."""
    stage.start()
    _compare(stage, _count(stage, "few", 1, 16), _count(stage, "most", 2, 8_192))


def _recycled(stage: Stage) -> None:
    """No more than the pool holds, so that no byte goes to a file that was never written before."""
    stage.start()
    fill_pool(stage, _POOL_BYTES)
    few, most = _count(stage, "few", 1, 16), _count(stage, "most", 2, 8_192)
    _compare(stage, few, most, bytes_max=int(_POOL_BYTES * _POOL_SHARE))


def _between(stage: Stage) -> None:
    stage.start()
    _compare(stage, _count(stage, "fewer", 1, 256), _count(stage, "some", 1, 4_096))


def _million(stage: Stage) -> None:
    stage.start()
    million = dataclasses.replace(_count(stage, "million", *MILLION), seconds_least=_MILLION_SECONDS)
    few = _Count(Queues("million", 1, 16), [of_million(per_request) for per_request in PER_REQUEST], part=True)
    _compare(stage, few, million)


def sessions(form: Form) -> list[Session]:
    name = "16 and 16,384 queues"
    found = [
        Session(name=name, run=_few_and_most, durability=Durability.ASYNC),
        Session(name="1,000,000 queues", run=_million, durability=Durability.ASYNC, systems=("mainstem",)),
    ]
    if form.full:
        found += [
            Session(name="256 and 4,096 queues", run=_between, durability=Durability.ASYNC),
            Session(name=name, run=_few_and_most, durability=Durability.SYNC),
            Session(
                name=name,
                run=_recycled,
                durability=Durability.ASYNC,
                systems=("mainstem",),
                variant="recycled",
                settings=settings(_POOL_BYTES),
            ),
        ]
    return found


WORKLOAD = Workload(
    "2",
    "Produce, 100-byte records, 10 in a batch, 16 to 1,000,000 queues",
    sessions,
    shown=("mb_per_s", "batches_per_s", "cpu_ms_per_mb", "cpu_us_per_batch"),
)
