"""Leaderships are handed over under the load of an idempotent producer, and no request of it is refused."""

from __future__ import annotations

from pathlib import Path

from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import goes_on, load_on
from tests.end_to_end.shell import mainstem
from tests.harness.serving import eventually

TOPIC = "given"
SETTINGS = ("pipeline.mode=off", "nameserver.write_groups=1")
"""One write group, so that all partitions are handed over each time."""


def test_no_producer_is_refused_while_leaderships_are_handed_over(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, *SETTINGS)

    def leader() -> int:
        led: int = cluster.get("/v1/cluster", 1)["write_groups"][0]["leader"]
        return led

    def passed_on() -> float:
        return sum(node.metric("mainstem_append_passed_on_batches_total") for node in cluster.nodes.values())

    def refused() -> float:
        return sum(
            node.metric("mainstem_request_errors_total", api="Produce", error="NOT_LEADER_OR_FOLLOWER")
            for node in cluster.nodes.values()
        )

    try:
        cluster.start().wait_until_well()
        with load_on(cluster, TOPIC) as load:
            before = refused()
            for _ in range(4):
                to = leader() % 3 + 1
                mainstem(cluster.nodes[1], "cluster", "transfer-leader", "0", str(to))
                eventually(lambda to=to: leader() == to, what=f"a leadership of node {to}")  # type: ignore[misc]
                goes_on(load, TOPIC)
            assert passed_on() > 0
            assert refused() == before
    finally:
        cluster.close()
