"""Three nodes that keep the metadata, three that store and two brokers, over one bucket, are a cluster that grows and
shrinks under idempotent loads of librdkafka and kafka-python: brokers and a leader die, a node that stores comes,
another one is drained, stopped and removed, write groups grow from four to eight, and all of it is split beside. No
acknowledged record is lost, repeated or reordered."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from bench.store.plain_splitter import PlainSplitter
from tests.end_to_end.both_loads import PYTHON, both_load
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import check, goes_on, load_on
from tests.end_to_end.shell import mainstem
from tests.end_to_end.tiering import RUN_BYTES, unsplit_bytes
from tests.end_to_end.tiers.test_shared_classes import settings_with
from tests.harness.free_port import HOST, free_port
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually
from tools.s3_server import s3_server

from mainstem.pipeline.errors import MergeFailed, NamesRefused

pytest.importorskip("obstore")

NAMESERVERS, STORES, BROKERS = (1, 2, 3), (4, 5, 6), (7, 8)
ROLES = dict.fromkeys(NAMESERVERS, "nameserver") | dict.fromkeys(STORES, "storage") | dict.fromkeys(BROKERS, "broker")
DRAINED, NEW = 6, 9
OLD_TOPIC, NEW_TOPIC = "grown", "later"
MANY = 32
"""Partitions: so many that some of them hash to slots of each of eight write groups."""


def storing(cluster: Cluster) -> list[int]:
    return sorted(cluster.running - {*NAMESERVERS, *BROKERS})


def split(cluster: Cluster) -> None:
    """Leaderships of each node, as far as it keeps them meanwhile."""
    for node_id in storing(cluster):
        with suppress(NamesRefused, MergeFailed), PlainSplitter(cluster.nodes[node_id].http, RUN_BYTES) as splitter:
            splitter.split(merging=False)


def all_is_split(cluster: Cluster) -> None:
    def settled() -> bool:
        split(cluster)
        return not any(unsplit_bytes(cluster.nodes[node_id]) for node_id in storing(cluster))

    eventually(settled, seconds=PATIENCE_SECONDS, what="everything in the bucket alone")


@pytest.mark.long
def test_a_cluster_of_all_roles_grows_and_shrinks_under_load(tmp_path: Path) -> None:
    with s3_server("mainstem-elastic") as s3:
        settings = settings_with(s3, write_groups=4)
        cluster = Cluster(tmp_path, *settings, count=8, roles=ROLES)
        peers = json.dumps({str(node_id): cluster.nodes[node_id].rpc for node_id in NAMESERVERS})
        new = Serving(
            tmp_path / f"node-{NEW}", f"node_id={NEW}", f"nameserver.peers={peers}", *settings, "roles=storage"
        )
        new.kafka, new.http, new.rpc = (f"{HOST}:{free_port()}" for _ in range(3))
        removed = cluster.nodes[DRAINED]
        try:
            cluster.start().wait_until_well()
            cluster.create_topic(PYTHON, 1)
            asked = cluster.nodes[NAMESERVERS[0]]
            with both_load(cluster, OLD_TOPIC) as load:
                cluster.kill(BROKERS[0])
                goes_on(load, OLD_TOPIC)
                cluster.start(BROKERS[0])
                split(cluster)

                cluster.nodes[NEW] = new
                cluster.start(NEW)
                mainstem(asked, "cluster", "drain", str(DRAINED), "--wait")
                goes_on(load, OLD_TOPIC)
                cluster.stop(DRAINED)
                del cluster.nodes[DRAINED]
                mainstem(asked, "cluster", "remove", str(DRAINED))
                split(cluster)

                mainstem(asked, "cluster", "write-groups", "8")
                cluster.wait_until_well()
                with load_on(cluster, NEW_TOPIC, MANY) as later:
                    placed = cluster.get(f"/v1/topics/{NEW_TOPIC}")["partitions"]
                    assert {one["write_group"] for one in placed} == set(range(8))
                    cluster.kill(BROKERS[1])
                    goes_on(load, OLD_TOPIC)
                    goes_on(later, NEW_TOPIC, range(MANY))
                    cluster.start(BROKERS[1])
                    leader = cluster.leader(OLD_TOPIC, 0)
                    cluster.kill(leader)
                    goes_on(load, OLD_TOPIC)
                    goes_on(later, NEW_TOPIC, range(MANY))
                    cluster.start(leader)
                    split(cluster)
            all_is_split(cluster)
            for done in (load, later):
                check(cluster, done)
        finally:
            cluster.close()
            removed.close()
            new.close()
