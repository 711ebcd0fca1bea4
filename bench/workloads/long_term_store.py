"""9. The long-term store: how many files there are, what is written for a byte, and how fast Spark's passes are.

*A long life in a 64th.* A node whose merges come together at a 64th of the usual bytes (`bench.nodes.scaled_node`)
takes messages in, and the tasks of its splitter run one after the other without Spark (`bench.store.plain_splitter`):
planner, tasks and the node's part are the real ones. Runs have 1 MiB, and a million queues are 15,625. In the life with
large queues these fill segments of 16 MiB; in that with small ones packed files have their usual size, a merge makes
one of them instead of 64, and a queue has as many bytes in as many files as it would have otherwise. Merged files are
counted when the node would stop asking for merges, and told per TiB of the full size. Runs that still wait are counted
apart: there are 2,048 at the most, however much is stored. The writes to disk 2 are counted when those are merged, too:
runs, outputs of merges, their indexes, the copy of the manifest.

In the life with many queues a hundred of them get 600 KB each, a little at a time. At its end the node starts anew,
and they are read one by one, evicted, with memory for what one of them needs.

*Reads at full size.* The files that 10,000 runs of a million queues are merged into, with holes for batches that
nobody reads (`bench.store.reads.store_reads`): the store's part of such a read.

*Passes of Spark.* `mainstem store merge --once` and `mainstem store compact --once` for a node as it is, with all
cores: bytes per second, and per second of processor time of all processes, Spark's and the node's. Spark's start is
told apart.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from typing import NamedTuple

from bench.errors import BenchError
from bench.metrics import MEGABYTE, Figures
from bench.nodes.scaled_node import WHOLE
from bench.session import Form, Session, Stage, Workload
from bench.store.keyed_records import write_keyed
from bench.store.plain_splitter import PlainSplitter
from bench.store.spark_pass import Pass, run_pass
from bench.systems.mainstem import MERGE_SCALE
from bench.systems.system import Durability, Node
from bench.topics import Queues

SCALE = 64
SEGMENT_BYTES = (1 << 30) // SCALE
TEBIBYTE = 1 << 40
MEBIBYTE = 1 << 20
RUN_BYTES = 64 * MEBIBYTE // SCALE
ROUNDS = 20
"""In which a life is written and split."""


class Life(NamedTuple):
    title: str
    queues: int
    bytes: dict[str, int]
    """By the form's name."""
    batch_records: int
    """Of 1 KiB."""
    queues_per_request: int
    scale: str
    """Of the node's merges."""
    file_scale: int
    """Of its merged files."""


LARGE = Life("20 queues that fill segments", 20, {"short": 1 << 30, "full": 6 << 30}, 10, 5, str(SCALE), SCALE)
SMALL = Life(
    "a million small queues", 1_000_000 // SCALE, {"short": 5 << 28, "full": 10 << 30}, 1, 100, f"{SCALE}{WHOLE}", 1
)
LIVES = (LARGE, SMALL)

PROBES = 100
PROBE_BYTES = 600_000
READ = "a queue of 600 KB after all these merges, evicted, its indexes not in memory"
COLD = {"queue_store.index_cache_bytes": str(1 << 20), "queue_store.read_cache_bytes": str(8 << 20)}
"""Memory for what one queue needs, which is not there any more when it is needed again."""
READ_RUNS = 10_000
READ_STORE = f"a queue of 600 KB after {READ_RUNS:,} runs were merged, evicted: the store's part"
READ_SECONDS_MAX = 600.0
ROUND_SECONDS_MAX = 300.0

PASS_BYTES = {"short": 1024 * MEBIBYTE, "full": 4096 * MEBIBYTE}
"""Of each."""
MERGE_LARGE = "merge by Spark, 4 queues, batches of 10 KiB"
MERGE_SMALL = "merge by Spark, 20,000 queues, batches of 1.1 KB"
COMPACT = "compaction by Spark, 16 queues, records of 1 KiB, a quarter of them goes"
KEYED_QUEUES = 16
SETTLE_SECONDS = 1.0


def _lives(life: Life) -> Session:
    def run(stage: Stage) -> None:
        _live(stage, life)

    return Session(name=f"life, {life.title}", run=run, durability=Durability.ASYNC, systems=("mainstem",),
                   settings={MERGE_SCALE: life.scale}, all_cores=True)  # fmt: skip


def _live(stage: Stage, life: Life) -> None:
    node = stage.start()
    queues = stage.create("life", life.queues, configs={"segment.bytes": str(SEGMENT_BYTES)})
    probes = stage.create("probe", PROBES) if life is SMALL else None
    with PlainSplitter(_http(node), RUN_BYTES) as splitter:
        for _ in range(ROUNDS):
            _write(stage, queues, life.bytes[stage.form.name] // ROUNDS, life.batch_records, life.queues_per_request)
            if probes is not None:
                _write(stage, probes, PROBES * PROBE_BYTES // ROUNDS, 1, PROBES // 4)
            splitter.split(merging=True)
        figures = file_figures(_levels(node), life.file_scale)
        splitter.drain()
        figures["written_per_byte"] = splitter.written_bytes / splitter.taken_bytes
        figures["runs_written"] = splitter.runs
    stage.record(life.title, figures)
    if probes is not None:
        node.stop()
        _read_probes(stage, probes, splitter.runs)


def _write(stage: Stage, queues: Queues, size: int, batch_records: int, queues_per_request: int) -> None:
    """One request at a time, so that blocks and runs are small."""
    load = stage.produce(queues, record_bytes=1024, batch_records=batch_records, queues_per_request=queues_per_request,
                         connections=1, in_flight=1, bytes=size, seconds=ROUND_SECONDS_MAX)  # fmt: skip
    stage.finish(stage.begin(load))


def file_figures(levels: list[dict[str, int | str]], scale: int) -> Figures:
    """The sums over the levels of a store, as `/v1/store` tells them, where merged files have a part of their size
    (`scale`). A segment with its indexes counts once. Raises BenchError where nothing was merged."""
    merged = [level for level in levels if level["kind"] != "run"]
    size = sum(int(level["batch_bytes"]) for level in merged)
    if not size:
        raise BenchError("nothing was merged: the life was too short")
    return {
        "files_per_tib": sum(int(level["files"]) for level in merged) * TEBIBYTE / scale / size,
        "runs_waiting": sum(int(level["files"]) for level in levels if level["kind"] == "run"),
    }


def _read_probes(stage: Stage, probes: Queues, runs: int) -> None:
    node = stage.start(settings=COLD)
    load = stage.fetch(probes, connections=1, in_flight=1, queues_per_request=1, max_bytes=50 << 20,
                       partition_max_bytes=1 << 20, until_end=True, seconds=60.0)  # fmt: skip
    stage.finish(stage.begin(load))  # each file's index is read and checked as a whole once
    stage.rest()
    node.forget_past()
    figures = stage.measure(READ, load, queues=probes.count)
    per_queue = figures["cpu_ms_per_mb"] * PROBE_BYTES / MEGABYTE
    stage.record(READ, {"cpu_ms_per_queue": per_queue, "runs_written": runs}, queues=probes.count)


def _read_store(stage: Stage) -> None:
    """Without a node, in a process of its own."""
    command = [sys.executable, "-m", "bench.store.reads.store_reads", "--json", "--runs", str(READ_RUNS),
               "--directory", str(stage.bench.directory)]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=READ_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise BenchError(f"bench.store.reads.store_reads was not over after {READ_SECONDS_MAX:.0f} s") from None
    if done.returncode != 0:
        raise BenchError(f"bench.store.reads.store_reads: {done.stderr.strip()[-300:]}")
    found = json.loads(done.stdout)
    stage.record(READ_STORE, {"cpu_ms_per_queue": found["cpu_ms"], "files_per_queue": found["spans"]})


def _passes(stage: Stage) -> None:
    """Merges of large queues, then of small ones and of those with keys, which are compacted at last."""
    node = stage.start()
    size = PASS_BYTES[stage.form.name]
    large = stage.create("large", 4, configs={"segment.bytes": str(128 * MEBIBYTE)})
    small = stage.create("small", 20_000)
    keyed = stage.create("keyed", KEYED_QUEUES, configs={"cleanup.policy": "compact"})
    stage.finish(stage.begin(stage.produce(large, record_bytes=1024, batch_records=10, queues_per_request=4,
                                           bytes=size, seconds=ROUND_SECONDS_MAX)))  # fmt: skip
    _split(node)
    _record_pass(stage, MERGE_LARGE, "store", "merge")
    stage.finish(stage.begin(stage.produce(small, record_bytes=1024, batch_records=1, queues_per_request=100,
                                           bytes=size, seconds=ROUND_SECONDS_MAX)))  # fmt: skip
    _split(node)
    _record_pass(stage, MERGE_SMALL, "store", "merge")
    write_keyed(node.address, keyed, size)
    _split(node)
    merged = run_pass(node.tree, _http(node), "store", "merge")
    assert merged.bytes
    _record_pass(stage, COMPACT, "store", "compact")


def _split(node: Node) -> None:
    """In runs of the usual size, which nobody merges yet."""
    with PlainSplitter(_http(node), RUN_BYTES * SCALE) as splitter:
        splitter.split(merging=False)


def _record_pass(stage: Stage, title: str, *command: str) -> None:
    time.sleep(SETTLE_SECONDS)
    window = stage.window()
    done = run_pass(stage.node.tree, _http(stage.node), *command)
    stage.record(title, {**pass_figures(done), "others_cores": window.others_cores()})


def pass_figures(done: Pass) -> Figures:
    size = done.bytes / MEGABYTE
    return {
        "mb_per_s": size / done.seconds,
        "mb_per_cpu_s": size / done.cpu_seconds,
        "cpu_ms_per_mb": 1000 * done.cpu.node / size,
        "driver_cpu_ms_per_mb": 1000 * done.cpu.driver / size,
        "jvm_cpu_ms_per_mb": 1000 * done.cpu.jvm / size,
        "worker_cpu_ms_per_mb": 1000 * done.cpu.workers / size,
        "spark_start_cpu_s": done.start_cpu_seconds,
    }


def _levels(node: Node) -> list[dict[str, int | str]]:
    with urllib.request.urlopen(f"http://{_http(node)}/v1/store", timeout=60) as answer:
        return list(json.load(answer)["levels"])


def _http(node: Node) -> str:
    assert node.http is not None
    return node.http


def sessions(form: Form) -> list[Session]:
    passes = Session(name="passes of Spark", run=_passes, durability=Durability.ASYNC, systems=("mainstem",),
                     all_cores=True)  # fmt: skip
    reads = Session(name="reads", run=_read_store, durability=Durability.ASYNC, systems=("mainstem",))
    return [*map(_lives, LIVES), reads, passes]


WORKLOAD = Workload(
    "9",
    "The long-term store: files, bytes, speed",
    sessions,
    shown=(
        "files_per_tib", "runs_waiting", "runs_written", "written_per_byte", "files_per_queue", "cpu_ms_per_queue",
        "mb_per_s",
        "mb_per_cpu_s", "cpu_ms_per_mb", "driver_cpu_ms_per_mb", "jvm_cpu_ms_per_mb", "worker_cpu_ms_per_mb",
        "spark_start_cpu_s",
    ),
)  # fmt: skip
