"""kernel: Mainstem's compiled hot path without a node, beside a plain C rendition of the same work.

Measured by `bench.kernel`, in a process of its own on the node's core: checks, queue lookup, the copy into the block,
the directory row and the queue table, and the index when the block is applied.
"""

from __future__ import annotations

import json
import subprocess
import sys

from bench.errors import BenchError
from bench.results import Row
from bench.session import Form, Session, Stage, Workload
from bench.systems.system import Durability

SECONDS_MAX = 600.0
PLAIN_C = "plain C"


def title(queues: int, batch_bytes: int) -> str:
    return f"append and apply, {batch_bytes}-byte batches, {queues:,} queues"


def _kernel(stage: Stage) -> None:
    cores = ",".join(map(str, stage.bench.cpus.broker))
    command = ["taskset", "-c", cores, sys.executable, "-m", "bench.kernel", "--compiled-only", "--json",
               "--seconds", str(stage.form.seconds)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
    if done.returncode != 0:
        raise BenchError(f"bench.kernel: {done.stderr.strip()[-300:]}")
    for found in json.loads(done.stdout):
        name = title(found["queues"], found["batch_bytes"])
        nanoseconds = found["ns_per_batch"]
        stage.record(name, {"ns_per_batch": nanoseconds["compiled"], "to_plain_c": found["compiled_to_c"]},
                     queues=found["queues"])  # fmt: skip
        row = Row("kernel", name, stage.session.durability.value, queues=found["queues"])
        stage.bench.results.add(row, PLAIN_C, {"ns_per_batch": nanoseconds["plain C"]})


def sessions(form: Form) -> list[Session]:
    return [Session(name="kernel", run=_kernel, durability=Durability.NONE, systems=("mainstem",))]


WORKLOAD = Workload("kernel", "The kernel alone beside plain C", sessions, shown=("ns_per_batch", "to_plain_c"))
