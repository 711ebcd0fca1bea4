"""13. Transactions: 100 batches over 10 queues, committed; and what readers of committed transactions cost.

A transaction is timed by librdkafka's producers (`bench.transactional_clients`), one or sixteen of them, on the load's
core: from its beginning until its commit is acknowledged, messages handed over from Python included.

The messages to be read were written in transactions of a hundred batches, one in five of them aborted. The node starts
anew, so that its caches are empty, and is read in turn by readers of everything and of what was committed: they get the
same batches, the latter a list of the aborted transactions besides. Mainstem reads from the journal; then from runs
after a split, and from merged files (`mainstem split run --once`, `mainstem store merge --once`).
"""

from __future__ import annotations

import json
import subprocess
import sys

from bench.errors import LoadFailed
from bench.load import Fetch
from bench.session import Form, Session, Stage, Workload
from bench.store.run_spark import run_spark
from bench.systems.system import Durability
from bench.topics import Queues

QUEUES = 10
BATCHES = 100
BATCH_RECORDS = 10
RECORD_BYTES = 100
PRODUCERS = (1, 16)
WARM_PRODUCERS = 4
CLIENT_SECONDS_MAX = 300.0

STORED_PRODUCERS = 4
STORED_TRANSACTIONS = {"short": 40, "full": 160}
"""Of each of these producers."""
STORED_RECORD_BYTES = 1_000
ABORT_EVERY = 5
READ_ROUNDS = {"short": 6, "full": 20}
READ_PASSES = 3
"""One is over in a quarter of a second."""
CACHE_BYTES = 32 << 20
"""Mainstem's write cache where the past is read, so that hardly any of it is in there."""
JOURNAL, RUNS, MERGED = "read back", "read back, split", "read back, merged"


def transaction(producers: int) -> str:
    return f"transactions of {producers} producer{'s' if producers > 1 else ''}"


def read(tier: str, *, committed: bool) -> str:
    return f"{tier}, {'committed' if committed else 'everything'}"


def _transact(stage: Stage) -> None:
    stage.start()
    queues = stage.create("transactions", QUEUES)
    stage.warm(stage.produce(queues, record_bytes=RECORD_BYTES, batch_records=BATCH_RECORDS))
    _play(stage, queues, WARM_PRODUCERS, "--seconds", str(stage.form.warm_seconds_max))
    for producers in PRODUCERS:
        window = stage.window()
        told = _play(stage, queues, producers, "--seconds", str(2 * stage.form.seconds))
        cpu = window.node_cpu_seconds()
        stage.record(
            transaction(producers),
            {
                "transactions_per_s": told["transactions"] / told["seconds"],
                "p50_ms": told["p50_ms"],
                "p99_ms": told["p99_ms"],
                "cpu_ms_per_transaction": 1000 * cpu / told["transactions"],
                "others_cores": window.others_cores(),
            },
            queues=QUEUES,
        )


def _play(
    stage: Stage, queues: Queues, producers: int, *options: str, record_bytes: int = RECORD_BYTES
) -> dict[str, float]:
    """The clients' figures. Raises LoadFailed when one of them fails."""
    command = [
        "taskset", "-c", ",".join(map(str, stage.bench.cpus.load)),
        sys.executable, "-m", "bench.transactional_clients", "--address", stage.node.address,
        "--topic", queues.names[0], "--queues", str(QUEUES), "--producers", str(producers),
        "--batches", str(BATCHES), "--batch-records", str(BATCH_RECORDS), "--record-bytes", str(record_bytes), *options,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise LoadFailed(f"{stage.label}: transactions were not over after {CLIENT_SECONDS_MAX:.0f} s") from None
    if done.returncode != 0:
        raise LoadFailed(f"{stage.label}: transactional producers failed: {done.stderr.strip()[-500:]}")
    told: dict[str, float] = json.loads(done.stdout)
    return told


def _read_back(stage: Stage) -> None:
    node = stage.start()
    queues = stage.create("stored", QUEUES)
    _play(
        stage, queues, STORED_PRODUCERS, "--count", str(STORED_TRANSACTIONS[stage.form.name]),
        "--abort-every", str(ABORT_EVERY), record_bytes=STORED_RECORD_BYTES,
    )  # fmt: skip
    tiers = [(JOURNAL, "")] if node.http is None else [(JOURNAL, ""), (RUNS, "split run"), (MERGED, "store merge")]
    for tier, command in tiers:
        if command:
            assert node.http is not None
            run_spark(node.http, *command.split())
        node.stop()
        node = stage.start()
        for committed in (False, True):
            stage.finish(stage.begin(_fetch(stage, queues, committed=committed)))
        for number in range(READ_ROUNDS[stage.form.name]):
            for committed in (False, True) if number % 2 else (True, False):
                load = _fetch(stage, queues, committed=committed)
                stage.measure(read(tier, committed=committed), load, passes=READ_PASSES, queues=QUEUES)


def _fetch(stage: Stage, queues: Queues, *, committed: bool) -> Fetch:
    """As consumers ask by default: 1 MiB of a queue, 50 MiB at most."""
    return stage.fetch(queues, connections=2, in_flight=1, queues_per_request=QUEUES // 2, max_bytes=50 << 20,
                       partition_max_bytes=1 << 20, until_end=True, seconds=60.0, committed=committed)  # fmt: skip


def sessions(form: Form) -> list[Session]:
    cache = {"storage.write_cache_bytes": str(CACHE_BYTES)}
    found = [Session(name="transactions", run=_transact, durability=one) for one in (Durability.ASYNC, Durability.SYNC)]
    found.append(Session(name="read back", run=_read_back, durability=Durability.ASYNC, settings=cache))
    return found


WORKLOAD = Workload(
    "13",
    "Transactions of 100 batches over 10 queues, and readers of committed ones",
    sessions,
    shown=("transactions_per_s", "p50_ms", "p99_ms", "cpu_ms_per_transaction", "mb_per_s", "cpu_ms_per_mb"),
)
