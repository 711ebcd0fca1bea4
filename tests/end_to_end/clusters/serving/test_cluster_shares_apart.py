"""Share groups through brokers without storage, over queues of old and of added write groups: the window of a group
over a partition is with any of the brokers, and goes on with another one when that dies, or the leader of its log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka.admin import AdminClient
from tests.clients.drivers import librdkafka
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.clients.drivers.share_offsets import ShareOffsets
from tests.clients.drivers.sharing import Sharing
from tests.end_to_end.cluster import Cluster, well
from tests.end_to_end.shell import mainstem
from tests.harness.patience import PATIENCE_SECONDS

STORES, BROKERS = (1, 2, 3), (4, 5)
ROLES = dict.fromkeys(STORES, "storage,nameserver") | dict.fromkeys(BROKERS, "broker")
PARTITIONS = 48
"""So many that some of them hash to slots of each write group."""
RECORDS = PARTITIONS * 10


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The topic of states was made with two write groups; there are four."""
    cluster = Cluster(
        tmp_path_factory.mktemp("cluster"),
        "pipeline.mode=off",
        "nameserver.write_groups=2",
        "shares.auto_offset_reset=earliest",
        "shares.lock_duration_ms=15000",
        "shares.record_locks_max=100",
        "groups.consumer_heartbeat_interval_ms=200",
        count=5,
        roles=ROLES,
    )
    with well(cluster):
        filled(cluster, "first", 1, 1)
        consumed(cluster, "first", "first", 1)
        mainstem(cluster.nodes[1], "cluster", "write-groups", "4")
        cluster.wait_until_well()
        yield cluster


def filled(cluster: Cluster, topic: str, partitions: int, records: int) -> None:
    cluster.create_topic(topic, partitions)
    sender = librdkafka.producer(cluster.bootstrap, **{"enable.idempotence": True, "batch.num.messages": 10})
    for number in range(records):
        sender.produce(topic, b"%d" % number, partition=number % partitions)
    assert sender.flush(PATIENCE_SECONDS) == 0


def consumed(
    cluster: Cluster, group: str, topic: str, records: int, at_third: Callable[[], None] | None = None
) -> Counter[tuple[int, int]]:
    """How often each record came, once all are accepted. A record whose acceptance was confirmed does not come again;
    one whose owner changed before that does. Locks last longer than a member may take to look at what it has fetched:
    it would find there what the other one has accepted since."""
    seen: Counter[tuple[int, int]] = Counter()
    accepted: set[tuple[int, int]] = set()
    with ExitStack() as opened:
        members = [opened.enter_context(Sharing(cluster.bootstrap, group, topic)) for _ in range(2)]
        deadline = time.monotonic() + 2 * PATIENCE_SECONDS
        while len(accepted) < records:
            assert time.monotonic() < deadline, f"{len(accepted)} of {records}"
            if at_third is not None and len(accepted) >= records // 3:
                at_third()
                at_third = None
            for member in members:
                taken = member.take()
                assert accepted.isdisjoint(taken), "what was accepted does not come again"
                seen.update(taken)
                accepted |= member.accepted
    assert at_third is None, "it happened while records were left"
    return seen


def test_records_of_old_and_added_write_groups_are_shared_through_brokers(cluster: Cluster) -> None:
    filled(cluster, "wide", PARTITIONS, RECORDS)
    found = cluster.get("/v1/topics/wide", 1)["partitions"]
    assert {one["write_group"] for one in found} == {0, 1, 2, 3}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **KEEP_TRYING})
    sent_to = admin.list_topics("wide", timeout=PATIENCE_SECONDS).topics["wide"].partitions.values()
    assert {each.leader for each in sent_to} == set(BROKERS)
    seen = consumed(cluster, "all", "wide", RECORDS)
    assert set(seen) == {(number % PARTITIONS, number // PARTITIONS) for number in range(RECORDS)}
    with ShareOffsets(cluster.bootstrap, "all") as offsets:
        described = {at: (row.start_offset, row.lag) for at, row in offsets.described().items()}
        assert described == {("wide", index): (10, 0) for index in range(PARTITIONS)}


def test_nothing_is_lost_when_a_broker_dies_and_what_was_accepted_does_not_come_again(cluster: Cluster) -> None:
    filled(cluster, "brokers", 2, 1_200)
    seen = consumed(cluster, "heirs", "brokers", 1_200, lambda: cluster.kill(4))
    assert set(seen) == {(partition, offset) for partition in range(2) for offset in range(600)}
    cluster.start(4)
    cluster.wait_until_well()


def test_nothing_is_lost_when_a_leader_of_write_groups_dies_behind_the_brokers(cluster: Cluster) -> None:
    filled(cluster, "leaders", 2, 1_200)
    victim = cluster.get("/v1/cluster", 1)["write_groups"][-1]["leader"]
    seen = consumed(cluster, "behind", "leaders", 1_200, lambda: cluster.kill(victim))
    assert set(seen) == {(partition, offset) for partition in range(2) for offset in range(600)}
    cluster.start(victim)
    cluster.wait_until_well()
