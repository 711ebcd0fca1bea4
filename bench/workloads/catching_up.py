"""8. Catch up from the long-term store, 1 and 1,000 queues: merged files of Mainstem, closed segments of Kafka.

Both systems take the same messages in, and more of other queues behind them, so that none of what is read is in a file
that is still written to. Mainstem splits and merges all of it (`mainstem split run --once`, `mainstem store merge
--once`: Spark, not measured here). Then the node starts anew, so that its own caches are as empty as the page cache,
which is evicted before each pass. One queue of Mainstem's has segments of its own, a thousand are neighbours in packed
files.

Then the bench reads the files of the one queue itself, past the page cache: what the disk brings without a system.

At last Mainstem's node reads the thousand queues one by one, about 600 KB each, without keeping any index in memory: as
one small queue is read among so much data that its file's index has long left memory.
"""

from __future__ import annotations

import re
import urllib.request

from bench.errors import BenchError
from bench.load import Fetch
from bench.session import Form, Session, Stage, Workload
from bench.store.reads import disk_itself
from bench.store.run_spark import run_spark
from bench.systems.system import Durability
from bench.topics import Queues

COUNTS = (1, 1_000)
STORED_BYTES = {"short": 512 << 20, "full": 2 << 30}
"""Of each row."""
BEHIND_BYTES = 192 << 20
"""Of other queues, written behind what is read: three segments of Mainstem's journal."""
SEGMENT_BYTES = 128 << 20
"""A queue with less than this has no segments of its own in Mainstem."""
PASSES = {"short": 3, "full": 5}
WARM_BYTES = 64 << 20
WARM_PASSES = 3
STORED_SHARE_MIN = 0.95
"""Of the bytes read, those that came from merged files; otherwise another tier was measured."""
ONE_BY_ONE = "a small queue a request, evicted, no index in memory"
DISK_ITSELF = "the disk itself, the segments of 1 queue, 4 requests of 1 MiB at a time"
_READ = re.compile(r'^mainstem_fetch_bytes_total\{tier="(\w+)"\} (\S+)$', re.MULTILINE)
_STORE_TIERS = ("queue_store", "read_cache")


def cold(queues: int) -> str:
    return f"from segments, evicted, {queues:,} queue{'s' if queues > 1 else ''}"


def fetch(stage: Stage, queues: Queues) -> Fetch:
    """As consumers ask by default: 1 MiB of a queue, 50 MiB at most."""
    connections = 1 if queues.count == 1 else 4
    return stage.fetch(queues, connections=connections, in_flight=1,
                       queues_per_request=max(1, queues.count // connections), max_bytes=50 << 20,
                       partition_max_bytes=1 << 20, until_end=True, seconds=60.0)  # fmt: skip


def fill(stage: Stage, prefix: str, count: int, size: int) -> Queues:
    queues = stage.create(prefix, count, configs={"segment.bytes": str(SEGMENT_BYTES)})
    load = stage.produce(queues, record_bytes=1024, batch_records=10, queues_per_request=min(10, count),
                         bytes=size, seconds=120.0)  # fmt: skip
    stage.finish(stage.begin(load))
    return queues


def _catch_up(stage: Stage) -> None:
    node = stage.start()
    size = STORED_BYTES[stage.form.name]
    stored = {count: fill(stage, f"stored{count}", count, size) for count in COUNTS}
    warm = fill(stage, "warm", 16, WARM_BYTES)
    fill(stage, "behind", 16, BEHIND_BYTES)
    if node.http is not None:
        run_spark(node.http, "split", "run")
        run_spark(node.http, "store", "merge")
    node.stop()
    node = stage.start()
    for _ in range(WARM_PASSES):
        stage.finish(stage.begin(fetch(stage, warm)))
    before = _read_bytes(node.http)
    for count, queues in stored.items():
        for _ in range(PASSES[stage.form.name]):
            stage.rest()
            node.forget_past()
            stage.measure(cold(count), fetch(stage, queues), queues=count)
    _check_tiers(before, _read_bytes(node.http))
    _disk_itself(stage, stored[COUNTS[0]])
    if node.http is not None:
        node.stop()
        _one_by_one(stage, stored[COUNTS[-1]])


def _disk_itself(stage: Stage, queues: Queues) -> None:
    """The rate of the disk for the segments of the one queue, which both systems keep in files of their own."""
    (name,) = queues.names
    files = sorted(
        path
        for path in stage.node.setup.directory.rglob("*.log")
        if any(part == name or part.startswith(f"{name}-") for part in path.parts)
    )
    for _ in range(PASSES[stage.form.name]):
        stage.rest()
        stage.record(DISK_ITSELF, {"mb_per_s": disk_itself.read_rate(files)}, queues=queues.count)


def _one_by_one(stage: Stage, queues: Queues) -> None:
    """CPU time of a read of one queue: a request each, whole, in the order of their numbers, which is not that of their
    files."""
    node = stage.start(settings={"queue_store.index_cache_bytes": "0"})
    load = stage.fetch(queues, connections=1, in_flight=1, queues_per_request=1, max_bytes=50 << 20,
                       partition_max_bytes=1 << 20, until_end=True, seconds=60.0)  # fmt: skip
    stage.rest()
    node.forget_past()
    figures = stage.measure(ONE_BY_ONE, load, queues=queues.count)
    per_request = 1000 * figures["node_cores"] / figures["requests_per_s"]
    stage.record(ONE_BY_ONE, {"cpu_ms_per_request": per_request}, queues=queues.count)


def _read_bytes(http: str | None) -> dict[str, float]:
    """Bytes of batches that the node has read so far, by tier; empty for a system without tiers."""
    if http is None:
        return {}
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as answer:
        return {tier: float(size) for tier, size in _READ.findall(answer.read().decode())}


def _check_tiers(before: dict[str, float], after: dict[str, float]) -> None:
    """Raises BenchError unless the long-term store served nearly all of what was read in between."""
    read = {tier: size - before.get(tier, 0.0) for tier, size in after.items()}
    total, stored = sum(read.values()), sum(read.get(tier, 0.0) for tier in _STORE_TIERS)
    if stored < total * STORED_SHARE_MIN:
        told = ", ".join(f"{tier} {size / 1e6:.0f} MB" for tier, size in read.items() if size)
        raise BenchError(f"what was read did not come from merged files alone: {told}")


def sessions(form: Form) -> list[Session]:
    return [Session(name="catch up", run=_catch_up, durability=Durability.ASYNC)]


WORKLOAD = Workload(
    "8",
    "Catch up from the long-term store, evicted",
    sessions,
    shown=("mb_per_s", "cpu_ms_per_mb", "cpu_ms_per_request", "p99_ms"),
)
