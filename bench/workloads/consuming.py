"""4. Consume at the tail and from the past, 1 and 1,000 queues.

At the tail: what was just written, which both systems have in memory, read several times over; and a reader that
follows a producer. From the past: more than the caches hold, after every page of it was evicted from the page cache;
Mainstem reads it from its journal, and in a variant of its own from the queue store after the split.
"""

from __future__ import annotations

import time

from bench.load import Fetch
from bench.session import Form, Session, Stage, Workload
from bench.store.split_watch import await_lag, split_seconds_max
from bench.systems.system import Durability
from bench.topics import Queues

RECENT_BYTES = 160 << 20
"""Within Mainstem's write cache of 256 MiB, which is its default."""
RECENT_PASSES = 4
PAST_BYTES = {"short": 512 << 20, "full": 4 << 30}
PAST_CACHE_BYTES = 32 << 20
"""Mainstem's write cache in sessions that read the past, so that hardly any of it is in there."""
FOLLOW_REQUESTS_PER_S = 300.0
SPLIT = "split"
"""The variant that reads from the queue store."""
COUNTS = (1, 1_000)


def tail(queues: int) -> str:
    return f"tail, from memory, {queues:,} queue{'s' if queues > 1 else ''}"


def follow(queues: int) -> str:
    return f"tail, behind a producer of 48 MB/s, {queues:,} queue{'s' if queues > 1 else ''}"


def past(queues: int) -> str:
    return f"past, evicted, {queues:,} queue{'s' if queues > 1 else ''}"


def _fetch(stage: Stage, queues: Queues) -> Fetch:
    """As consumers ask by default: 1 MiB of a queue, 50 MiB at most."""
    connections = 1 if queues.count == 1 else 4
    return stage.fetch(queues, connections=connections, in_flight=1, queues_per_request=queues.count // connections,
                       max_bytes=50 << 20, partition_max_bytes=1 << 20, until_end=True, seconds=60.0)  # fmt: skip


def _fill(stage: Stage, prefix: str, count: int, size: int) -> Queues:
    queues = stage.create(prefix, count)
    load = stage.produce(queues, record_bytes=1024, batch_records=10, queues_per_request=min(10, count),
                         bytes=size, seconds=120.0)  # fmt: skip
    stage.finish(stage.begin(load))
    return queues


def _tail(stage: Stage) -> None:
    stage.start()
    warm = _fill(stage, "warm", 16, RECENT_BYTES)
    for _ in range(3):
        stage.finish(stage.begin(_fetch(stage, warm)))
    for count in COUNTS:
        queues = _fill(stage, f"recent{count}", count, RECENT_BYTES)
        stage.measure(tail(count), _fetch(stage, queues), passes=RECENT_PASSES, queues=count)
        _follow(stage, count)


def _follow(stage: Stage, count: int) -> None:
    """CPU of the node for taking in and giving out, per MB taken in."""
    queues = stage.create(f"followed{count}", count)
    per_request = min(16, count)
    produce = stage.produce(queues, record_bytes=1024, batch_records=160 // per_request,
                            queues_per_request=per_request, rate=FOLLOW_REQUESTS_PER_S)  # fmt: skip
    stage.meet_every_queue(produce)
    reader = stage.fetch(queues, connections=min(4, count), in_flight=1,
                         queues_per_request=max(1, count // 4), from_="latest", min_bytes=1, max_wait_ms=500,
                         seconds=stage.form.seconds + 1.0)  # fmt: skip
    following = stage.begin(reader)
    time.sleep(0.3)  # until it waits at the tail
    stage.measure(follow(count), produce, queues=count)
    stage.finish(following)


def _past(stage: Stage) -> None:
    split = stage.session.variant == SPLIT
    stage.start(splitter=split)
    warm = _fill(stage, "warm", 16, RECENT_BYTES)
    for _ in range(3):
        stage.finish(stage.begin(_fetch(stage, warm)))
    filled = {count: _fill(stage, f"past{count}", count, PAST_BYTES[stage.form.name] // 2) for count in COUNTS}
    if split:
        size = PAST_BYTES[stage.form.name]
        await_lag(stage.node.http, below=1 << 20, seconds_max=split_seconds_max(size))
    for count, queues in filled.items():
        stage.node.forget_past()
        stage.measure(past(count), _fetch(stage, queues), queues=count)


def sessions(form: Form) -> list[Session]:
    cache = {"storage.write_cache_bytes": str(PAST_CACHE_BYTES)}
    found = [
        Session(name="tail", run=_tail, durability=Durability.ASYNC),
        Session(name="past", run=_past, durability=Durability.ASYNC, settings=cache),
    ]
    if form.full:
        split = {**cache, "pipeline.start_age_seconds": "1", "pipeline.bytes_per_second": "0"}
        found.append(Session(name="past", run=_past, durability=Durability.ASYNC, systems=("mainstem",),
                             variant=SPLIT, settings=split))  # fmt: skip
    return found


WORKLOAD = Workload(
    "4", "Consume at the tail and from the past", sessions, shown=("mb_per_s", "cpu_ms_per_mb", "p99_ms")
)
