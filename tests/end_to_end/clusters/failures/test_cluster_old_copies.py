"""A node is started on an older copy of its two directories, beside one that has missed what it acknowledged since: the
two make a majority, and must not make one that has forgotten. And a node goes on alone, whose cluster is lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.load import Queue, Record
from tests.end_to_end.readers import read_all
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

TOPIC = "remembered"
BEFORE, SINCE = 50, 100


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, "pipeline.mode=off")
    try:
        yield cluster.start()
    finally:
        cluster.close()


def produce(cluster: Cluster, first: int, count: int) -> None:
    """Acknowledged by a majority, one and all."""
    failures: list[str] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", **KEEP_TRYING})

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    for number in range(first, first + count):
        producer.produce(TOPIC, b"%d" % number, partition=0, on_delivery=delivered)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert not failures


def directories(node: Serving) -> list[Path]:
    return [node.write_dir, node.store_dir]


def test_an_older_copy_of_both_directories_forgets_nothing_that_was_acknowledged(
    cluster: Cluster, tmp_path: Path
) -> None:
    holder, late, forgetful = 1, 2, 3
    cluster.create_topic(TOPIC, 1)
    produce(cluster, 0, BEFORE)
    cluster.stop(forgetful)
    copies = [tmp_path / "copies" / path.name for path in directories(cluster.nodes[forgetful])]
    for path, copy in zip(directories(cluster.nodes[forgetful]), copies, strict=True):
        shutil.copytree(path, copy)
    cluster.start(forgetful)
    cluster.wait_until_well()
    cluster.kill(late)
    produce(cluster, BEFORE, SINCE)
    cluster.kill(holder, forgetful)
    for path, copy in zip(directories(cluster.nodes[forgetful]), copies, strict=True):
        shutil.rmtree(path)
        shutil.copytree(copy, path)

    with ThreadPoolExecutor(2) as threads:
        starting = threads.submit(cluster.start, late, forgetful)
        told = "it runs on an older copy of its directories"
        eventually(
            lambda: starting.done() or cluster.nodes[forgetful].output_lines(told), what="a node that knows what it is"
        )
        assert not starting.done(), "a majority that has forgotten what was acknowledged serves"
        waits = "waits for a majority of the other members"
        eventually(lambda: starting.done() or cluster.nodes[forgetful].output_lines(waits), what="a node that waits")
        assert not starting.done()
        cluster.start(holder)
        starting.result()
    cluster.wait_until_well()
    expected = [Record(number, None, b"%d" % number) for number in range(BEFORE + SINCE)]
    queue = Queue(TOPIC, 0)
    assert read_all(cluster.bootstrap, {queue: len(expected)}) == {queue: expected}

    eventually(
        lambda: not any(node["not_back"] for node in cluster.get("/v1/cluster", holder)["nodes"]),
        what="a node that has got everything back",
    )
    cluster.kill(holder)  # now it counts, and all is on the other two
    assert read_all(cluster.bootstrap, {queue: len(expected)}) == {queue: expected}
    cluster.start(holder)
    cluster.wait_until_well()


def test_one_node_goes_on_alone_when_somebody_says_that_the_others_are_lost(cluster: Cluster) -> None:
    last = 3
    cluster.create_topic(TOPIC, 1)
    produce(cluster, 0, BEFORE)
    cluster.wait_until_well()
    # a follower may hear last of what the others have decided
    eventually(lambda: len(cluster.get("/v1/cluster", last)["nodes"]) == 3, what="a node that knows the others")
    cluster.kill(*cluster.nodes)
    command = [sys.executable, "-m", "mainstem.cli.main", "cluster", "recover", "--alone", "--yes"]
    directory = str(cluster.nodes[last].write_dir)
    said = subprocess.run([*command, "--write-dir", directory], capture_output=True, text=True, check=True).stdout
    assert "Nodes 1, 2 are given up for good" in said, said
    for _ in range(2):  # and again when it was started once
        cluster.start(last)
        produce(cluster, BEFORE, SINCE)
        cluster.kill(last)
    cluster.start(last)
    expected = [*range(BEFORE), *range(BEFORE, BEFORE + SINCE), *range(BEFORE, BEFORE + SINCE)]
    found = read_all(cluster.bootstrap, {Queue(TOPIC, 0): len(expected)})[Queue(TOPIC, 0)]
    assert [int(record.value or b"") for record in found] == expected
    groups = cluster.get("/v1/cluster", last)["write_groups"]
    assert {group["leader"] for group in groups} == {last}
