"""A share group whose partition's leader dies, with the state of the group: another node goes on from what was
acknowledged."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from tests.clients.drivers import librdkafka
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.clients.drivers.share_offsets import ShareOffsets
from tests.clients.drivers.sharing import Sharing
from tests.end_to_end.cluster import Cluster, well
from tests.end_to_end.shell import mainstem
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually

RECORDS = 600


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(
        tmp_path_factory.mktemp("cluster"),
        "pipeline.mode=off",
        "shares.auto_offset_reset=earliest",
        "shares.lock_duration_ms=15000",
        "shares.record_locks_max=200",
        "groups.consumer_heartbeat_interval_ms=200",
    )
    with well(cluster):
        yield cluster


def leader_of(cluster: Cluster, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **KEEP_TRYING})
    found: int = admin.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions[0].leader
    return found


def test_the_coordinator_asks_the_leaders_of_all_partitions(cluster: Cluster) -> None:
    cluster.create_topic("spread", 8)
    sender = librdkafka.producer(cluster.bootstrap)
    for number in range(80):
        sender.produce("spread", b"%d" % number, partition=number % 8)
    assert sender.flush(PATIENCE_SECONDS) == 0
    first = cluster.get("/v1/cluster")["write_groups"][0]
    other = next(one["node"] for one in first["replicas"] if one["node"] != first["leader"])
    mainstem(cluster.nodes[min(cluster.running)], "cluster", "transfer-leader", str(first["group"]), str(other))
    eventually(
        lambda: len({cluster.leader("spread", index) for index in range(8)}) > 1, what="partitions of several leaders"
    )
    deadline = time.monotonic() + PATIENCE_SECONDS
    with Sharing(cluster.bootstrap, "wide", "spread") as member:
        while len(member.accepted) < 80:
            assert time.monotonic() < deadline, f"{len(member.accepted)} of 80"
            member.take()
    with ShareOffsets(cluster.bootstrap, "wide") as offsets:
        found = offsets.described()
        assert {at: (row.start_offset, row.lag) for at, row in found.items()} == {
            ("spread", index): (10, 0) for index in range(8)
        }
        answer = offsets.altered("spread", *((index, index) for index in range(8)))
        assert {row.error_code for row in answer.responses[0].partitions} == {0}
        found = offsets.described(("spread", tuple(range(8))))
        assert [(row.start_offset, row.lag) for row in found.values()] == [(index, 10 - index) for index in range(8)]
        assert offsets.deleted("spread").responses[0].error_code == 0
        assert offsets.described() == {}


def test_another_node_goes_on_when_the_partitions_leader_is_killed(cluster: Cluster) -> None:
    cluster.create_topic("shared", 1)
    sender = librdkafka.producer(cluster.bootstrap, **{"enable.idempotence": True, "batch.num.messages": 10})
    for number in range(RECORDS):
        sender.produce("shared", b"%d" % number)
    assert sender.flush(PATIENCE_SECONDS) == 0
    with Sharing(cluster.bootstrap, "heirs", "shared") as one, Sharing(cluster.bootstrap, "heirs", "shared") as two:
        deadline = time.monotonic() + PATIENCE_SECONDS
        before: set[tuple[int, int]] = set()
        while len(one.accepted | two.accepted) < RECORDS:
            assert time.monotonic() < deadline, f"{len(one.accepted | two.accepted)} of {RECORDS}"
            if not before and len(one.accepted | two.accepted) >= 100:
                before = one.accepted | two.accepted
                cluster.kill(leader_of(cluster, "shared"))
            one.take()
            two.take()
        times = one.seen + two.seen
        assert all(times[record] == 1 for record in before), "what was accepted does not come again"
