"""Mainstem's journal on files it has used before, which is the state it works in once the split has caught up.

A first pass writes to new files; a recycled segment overwrites pages that the kernel still holds. Tables show both.
To get there without the split (which would take CPU time meanwhile), topics are filled and deleted: what they
occupied in the journal is then recycled.
"""

from __future__ import annotations

import re
import time
import urllib.request

from bench import topics
from bench.errors import BenchError
from bench.session import Stage

SEGMENT_BYTES = 64 << 20
WAIT_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.1


def settings(pool_bytes: int) -> dict[str, str]:
    """Of a node whose pool is to hold that much, and which looks often enough for what it can recycle."""
    return {
        "journal.pool_segments_max": str(pool_bytes // SEGMENT_BYTES),
        "storage.prune_seconds": "0.2",
        "storage.checkpoint_seconds": "1",
    }


def fill_pool(stage: Stage, pool_bytes: int) -> None:
    """Returns when nine tenths of the pool are recycled files. Raises BenchError when that does not happen."""
    segments = pool_bytes // SEGMENT_BYTES
    queues = stage.create("recycled", 16)
    load = stage.produce(queues, record_bytes=1024, batch_records=100, queues_per_request=8,
                         seconds=120.0, bytes=pool_bytes + 4 * SEGMENT_BYTES)  # fmt: skip
    stage.finish(stage.begin(load))
    topics.delete(stage.node.address, queues)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while (ready := metric(stage.node.http, "mainstem_journal_pool_segments")) < segments * 0.9:
        if time.monotonic() > deadline:
            raise BenchError(f"only {ready:.0f} of {segments} journal segments were recycled")
        time.sleep(_POLL_SECONDS)


def metric(http: str | None, name: str) -> float:
    """The value of one unlabelled metric of a node. Raises BenchError when there is none."""
    assert http is not None
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{name}(?:_total)? (\S+)$", text, re.MULTILINE)
    if found is None:
        raise BenchError(f"the node has no metric {name}")
    return float(found[1])
