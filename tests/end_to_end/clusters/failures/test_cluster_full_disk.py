"""A node whose disk 1 is full: what it led is led by others, and it goes on when there is room again.

The disk is a tmpfs of its own, which only root can mount.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import NEVER, PARTITIONS, goes_on, load_on
from tests.end_to_end.raw_producer import RawProducer
from tests.harness.serving import eventually

from mainstem.protocol.error_codes import ErrorCode

MEBIBYTE = 1 << 20
DISK_BYTES = 48 * MEBIBYTE
SMALL = 2
TOPICS = 100
"""More than the last page of a log has room for, in one entry."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is a tmpfs, which only root can mount")


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "mainstem-test", str(directory)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs here: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, small_disk: Path) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(
        root, "pipeline.mode=off", f"journal.segment_bytes={2 * MEBIBYTE}", "storage.disk_check_seconds=0.2",
        write_dir=lambda node_id: small_disk / "write" if node_id == SMALL else root / f"write-{node_id}",
    )  # fmt: skip
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def test_a_leader_whose_disk_is_full_makes_way_and_comes_back(cluster: Cluster, small_disk: Path) -> None:
    cluster.wait_until_well()
    with load_on(cluster, "full") as load:
        led = eventually(lambda: cluster.led_by(SMALL, "full"), what="a partition that the small node leads")
        ballast = small_disk / "ballast"
        with ballast.open("wb") as file:
            usage = os.statvfs(small_disk)
            os.posix_fallocate(file.fileno(), 0, usage.f_bavail * usage.f_frsize)
        eventually(lambda: not cluster.led_by(SMALL, "full"), what="other leaders than the full node")
        with RawProducer(cluster.nodes[SMALL].kafka) as producer:
            for partition in led:
                producer.send("full", partition, NEVER)
                assert producer.answer() == ErrorCode.NOT_LEADER_OR_FOLLOWER, "clients look elsewhere only then"
        goes_on(load, "full", range(PARTITIONS))
        assert all(cluster.get("/v1/cluster", node_id) for node_id in cluster.nodes)
        names = [f"meanwhile-{number}" for number in range(TOPICS)]
        create(cluster, names)
        full = cluster.nodes[SMALL]
        eventually(lambda: full.output_lines("no room on disk 1 for"), what="a word of the full node")
        assert not set(names) & topics_known_to(cluster, SMALL), "it has nothing that is not on its disk"
        ballast.unlink()
        eventually(lambda: set(names) <= topics_known_to(cluster, SMALL), what="the full node to catch up")
        assert full.output_lines("there is room on disk 1 again")
        create(cluster, ["afterwards"])
        eventually(lambda: "afterwards" in topics_known_to(cluster, SMALL), what="the node to take part again")


def create(cluster: Cluster, names: list[str]) -> None:
    """The full node may be the one that is asked first: what it is asked is made by others, but it cannot tell. Each
    time there is more time for an answer: nobody knows how long this machine needs for one."""
    seconds = itertools.count(1)

    def created() -> bool:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **KEEP_TRYING})
        topics = [NewTopic(name, 1) for name in names]
        return all(made(done) for done in admin.create_topics(topics, request_timeout=next(seconds)).values())

    def made(done: Future[None]) -> bool:
        try:
            done.result()
        except KafkaException as error:
            return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)
        return True

    eventually(created, what=f"topics {names[0]} to {names[-1]}")


def topics_known_to(cluster: Cluster, node_id: int) -> set[str]:
    return {topic["name"] for topic in cluster.get("/v1/topics", node_id)["topics"]}
