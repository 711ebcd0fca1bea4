"""A load on a cluster from before to after whatever is done to it, and the proof that nothing of it was lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.end_to_end.cluster import Cluster
from tests.end_to_end.load import GIVES_UP_MS, Load, Queue
from tests.end_to_end.readers import read_all
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually

PARTITIONS = 8
MESSAGES_PER_SECOND = 400
GIVES_UP_SOON_MS = 3_000
"""For tests that wait for a client who asked a node that does not answer any more, and asks another one then."""
NEVER = b"acknowledged by nobody"
"""Requests to a node that must not take it."""


@contextmanager
def load_on(
    cluster: Cluster,
    topic: str,
    partitions: int = PARTITIONS,
    *,
    copies: int = -1,
    by_leader: bool = False,
    gives_up_ms: int = GIVES_UP_MS,
) -> Iterator[Load]:
    """A load from before to after what is done within; then everything acknowledged is read back. `by_leader`: the
    client is told no other node than the one that leads partition 0. `gives_up_ms`: after which it asks again what a
    node does not answer."""
    cluster.create_topic(topic, partitions, copies=copies)
    bootstrap = cluster.nodes[cluster.leader(topic, 0)].kafka if by_leader else cluster.bootstrap
    load = Load(bootstrap, [topic], MESSAGES_PER_SECOND, gives_up_ms)
    load.start()
    try:
        goes_on(load, topic, range(partitions))
        yield load
        goes_on(load, topic, range(partitions))
        load.finish()
    finally:
        load.stop()
    cluster.wait_until_well()
    check(cluster, load)


def goes_on(load: Load, topic: str, partitions: range = range(PARTITIONS)) -> None:
    """Wait until every partition has got more than it has now."""
    before = counts(load, topic, partitions)
    eventually(
        lambda: all(now > then for now, then in zip(counts(load, topic, partitions), before, strict=True)),
        seconds=PATIENCE_SECONDS,
        what=f"acknowledgements in every partition of {topic}, {before} before",
    )


def counts(load: Load, topic: str, partitions: range) -> list[int]:
    return [load.count(Queue(topic, partition)) for partition in partitions]


def check(cluster: Cluster, load: Load) -> None:
    load.check_order()
    expected = load.expected()
    assert read_all(cluster.bootstrap, {queue: len(records) for queue, records in expected.items()}) == expected
