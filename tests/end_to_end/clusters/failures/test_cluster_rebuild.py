"""A node dies for good: what it held is rebuilt on a node that holds nothing, under load, and nobody is asked."""

from __future__ import annotations

import json
from pathlib import Path

from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import goes_on, load_on
from tests.end_to_end.shell import mainstem
from tests.harness.free_port import HOST, free_port
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

TOPIC = "staying"
LOST, NEW = 3, 4
SETTINGS = ("pipeline.mode=off", "nameserver.write_groups=3", "nameserver.rebuild_after_seconds=2")


def test_what_a_dead_node_held_is_rebuilt_on_another_and_nothing_is_lost(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, *SETTINGS)
    peers = {str(node_id): node.rpc for node_id, node in cluster.nodes.items()}
    new = Serving(tmp_path / f"node-{NEW}", f"node_id={NEW}", f"nameserver.peers={json.dumps(peers)}", *SETTINGS)
    new.kafka, new.http, new.rpc = (f"{HOST}:{free_port()}" for _ in range(3))
    lost = cluster.nodes[LOST]
    try:
        cluster.start().wait_until_well()
        with load_on(cluster, TOPIC) as load:
            cluster.kill(LOST)
            eventually(
                lambda: "add a node" in mainstem(cluster.nodes[1], "cluster", "status"),
                seconds=PATIENCE_SECONDS,
                what="a lost node for which there is no other",
            )
            cluster.nodes.pop(LOST)
            cluster.nodes[NEW] = new
            cluster.start(NEW)

            def voters() -> list[set[int]]:
                groups = cluster.get("/v1/cluster", 1)["write_groups"]
                return [{one["node"] for one in group["replicas"] if one["voter"]} for group in groups]

            eventually(lambda: voters() == [{1, 2, NEW}] * 3, seconds=PATIENCE_SECONDS, what="replicas on the new node")
            eventually(lambda: not cluster.get("/v1/cluster", 1)["lost_nodes"], what="a lost node that holds nothing")
            goes_on(load, TOPIC)
            cluster.kill(1)
            cluster.start(1)
            goes_on(load, TOPIC)
    finally:
        cluster.close()
        new.close()
        lost.close()
