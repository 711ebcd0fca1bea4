"""A node is added to three, and one of the three is drained, gets a share again, is drained, stopped and removed, under
the load of an idempotent producer."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.clients.drivers import kafka_python
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import goes_on, load_on
from tests.end_to_end.shell import mainstem, mainstem_json
from tests.harness.free_port import HOST, free_port
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

from mainstem.protocol.error_codes import ErrorCode

TOPIC = "staying"
DRAINED, NEW = 3, 4
SETTINGS = ("pipeline.mode=off", "nameserver.write_groups=3", "nameserver.room_percent_min=0")


def held_by(cluster: Cluster, node_id: int) -> int:
    """The write groups in which the node has a vote."""
    groups = cluster.get("/v1/cluster", 1)["write_groups"]
    return sum(one["node"] == node_id and one["voter"] for group in groups for one in group["replicas"])


def write_groups(cluster: Cluster) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = cluster.get("/v1/cluster", 1)["write_groups"]
    return groups


def is_led_well(group: dict[str, Any]) -> bool:
    return bool(group["leader"] == group["preferred_leader"])


def test_a_node_is_drained_into_a_new_one_and_nothing_is_lost(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, *SETTINGS)
    peers = {str(node_id): node.rpc for node_id, node in cluster.nodes.items()}
    new = Serving(tmp_path / f"node-{NEW}", f"node_id={NEW}", f"nameserver.peers={json.dumps(peers)}", *SETTINGS)
    new.kafka, new.http, new.rpc = (f"{HOST}:{free_port()}" for _ in range(3))
    drained = cluster.nodes[DRAINED]
    try:
        cluster.start().wait_until_well()
        with load_on(cluster, TOPIC) as load, ExitStack() as closing:
            asked = cluster.nodes[1]
            admin = kafka_python.admin(asked.kafka)
            closing.callback(admin.close)
            mainstem(asked, "cluster", "drain", str(DRAINED))
            eventually(
                lambda: "add a node" in mainstem(asked, "cluster", "status"),
                seconds=PATIENCE_SECONDS,
                what="a drain that says what it waits for",
            )
            cluster.nodes[NEW] = new
            cluster.start(NEW)
            eventually(
                lambda: any(
                    NEW in one["adding_replicas"] and DRAINED in one["removing_replicas"]
                    for one in admin.list_partition_reassignments().values()
                ),
                seconds=PATIENCE_SECONDS,
                what="replicas on their way, as Kafka's clients are told",
            )
            told = mainstem_json(asked, "cluster", "drain", str(DRAINED), "--wait")
            assert admin.list_partition_reassignments() == {}
            assert told == {"node": DRAINED, "draining": True, "empty": True}
            mainstem(asked, "cluster", "drain", str(DRAINED), "--cancel")
            planned = mainstem_json(asked, "cluster", "rebalance", "--dry-run")["moves"]
            assert len(planned) == 2
            assert all(move["bytes"] > 0 for move in planned), "as the nodes tell that would give them away"
            assert mainstem_json(asked, "cluster", "rebalance") == {"moved": 2, "leaders": 0}
            assert held_by(cluster, DRAINED) == 2
            assert "nothing is to move" in mainstem(asked, "cluster", "rebalance", "--dry-run")
            mainstem(asked, "cluster", "drain", str(DRAINED), "--wait")
            view = cluster.get("/v1/cluster", 1)
            for group in view["write_groups"]:
                assert {one["node"] for one in group["replicas"] if one["voter"]} == {1, 2, NEW}
                assert group["leader"] != DRAINED
            assert all(node["load"]["write_total_bytes"] > 0 for node in view["nodes"]), "each tells the leader"
            assert any(group["load"]["bytes_in"] > 0 for group in view["write_groups"])
            told = mainstem_json(asked, "cluster", "explain", f"{TOPIC}:0")
            reasons = [move["why"] for move in told["begun"]]
            assert f"node {DRAINED} is drained" in reasons, "whoever leads the metadata, somebody remembers"
            assert {one["node"] for one in told["replicas"]} == {1, 2, NEW}
            assert f"Node {DRAINED} is drained and empty" in mainstem(
                asked, "cluster", "explain", "--node", str(DRAINED)
            )
            eventually(lambda: all(map(is_led_well, write_groups(cluster))), what="leaders that are preferred")
            first = write_groups(cluster)[0]
            other = next(one["node"] for one in first["replicas"] if one["node"] != first["leader"])
            mainstem(asked, "cluster", "transfer-leader", str(first["group"]), str(other))
            eventually(lambda: write_groups(cluster)[0]["leader"] == other, what="a leader that is not preferred")
            elected = admin.elect_leaders(0).replica_election_results
            codes = {part.error_code for topic in elected for part in topic.partition_result}
            assert codes == {ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED}
            assert all(map(is_led_well, write_groups(cluster)))
            goes_on(load, TOPIC)
            cluster.stop(DRAINED)
            mainstem(asked, "cluster", "remove", str(DRAINED))
            assert DRAINED not in {node["node_id"] for node in cluster.get("/v1/cluster", 1)["nodes"]}
            assert mainstem_json(asked, "cluster", "add", str(tmp_path / "next"))["node"] == NEW + 1
            cluster.nodes.pop(DRAINED)
            drained.start()
            eventually(lambda: drained.output_lines("was removed from this cluster"), what="a removed node that ends")
            goes_on(load, TOPIC)
            cluster.kill(1)
            goes_on(load, TOPIC)  # by two of three, the new one among them
            cluster.start(1)
    finally:
        cluster.close()
        new.close()
        drained.close()
