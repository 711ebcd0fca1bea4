"""Real nodes that have only some of the roles."""

from __future__ import annotations

from pathlib import Path
from urllib.error import HTTPError

import pytest
from tests.clients.drivers import librdkafka
from tests.end_to_end.cluster import Cluster
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually

RECORDS = 200


def test_a_node_for_the_metadata_alone_beside_two_that_store_and_serve(tmp_path: Path) -> None:
    roles = {1: "nameserver", 2: "broker,storage", 3: "broker,storage"}
    cluster = Cluster(tmp_path, "pipeline.mode=off", "nameserver.replication_factor=2", roles=roles)
    try:
        cluster.start()
        view = cluster.get("/v1/cluster", 1)
        assert {node["node_id"]: ",".join(node["roles"]) for node in view["nodes"]} == roles
        assert all({one["node"] for one in group["replicas"]} == {2, 3} for group in view["write_groups"])
        assert cluster.nodes[1].output_lines("ready kafka=- "), "it serves no Kafka clients"
        cluster.create_topic("stored", 4)
        sender = librdkafka.producer(cluster.bootstrap)
        for number in range(RECORDS):
            sender.produce("stored", b"%d" % number, partition=number % 4)
        assert sender.flush(PATIENCE_SECONDS) == 0
        reader = librdkafka.consumer(cluster.bootstrap, "readers")
        reader.subscribe(["stored"])
        assert {int(message.value() or b"") for message in librdkafka.take(reader, RECORDS)} == set(range(RECORDS))
        reader.close()
        with pytest.raises(HTTPError, match="404"):
            cluster.get("/v1/split", 1)
        assert not (tmp_path / "node-1/write/journal").exists()
        cluster.stop(1)
        cluster.nodes[1].settings += ("roles=nameserver,broker,storage",)
        cluster.start(1)
        eventually(
            lambda: {node["node_id"]: len(node["roles"]) for node in cluster.get("/v1/cluster", 2)["nodes"]}[1] == 3,
            seconds=PATIENCE_SECONDS,
            what="node 1 with all roles",
        )
    finally:
        cluster.close()
