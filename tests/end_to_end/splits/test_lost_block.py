"""A block goes bad on every disk that has it: its write group waits until an operator gives up what is lost, and real
clients then read everything else. While one node may have it nothing is given up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.clients.drivers import librdkafka
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.shell import mainstem
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

from mainstem.storage.journal.encoding.format import BLOCK_HEADER

PARTITIONS = 8
LOST = b"went-bad-on-disk"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Serving]:
    node = Serving(tmp_path, "pipeline.mode=off")
    try:
        yield node.start()
    finally:
        node.close()


def send(producer: Producer, topic: str, values: list[bytes], partitions: range = range(PARTITIONS)) -> None:
    """Each value to each partition, one block after the other."""
    for value in values:
        for partition in partitions:
            producer.produce(topic, value, partition=partition)
            assert producer.flush(PATIENCE_SECONDS) == 0


def spoil(write_dir: Path) -> None:
    """One bit of the header of the block with the lost message."""
    for path in sorted((write_dir / "journal").glob("*.wal")):
        content = path.read_bytes()
        place = content.find(LOST)
        if place < 0:
            continue
        magic = BLOCK_HEADER.unpack_from(content, 4096)[0].to_bytes(4, "little")
        start = content.rindex(magic, 0, place)
        with path.open("r+b") as file:
            file.seek(start)
            file.write(bytes([content[start] ^ 1]))
        return
    raise AssertionError("the message is not in the journal")


def test_what_is_lost_is_given_up_and_everything_else_is_read(node: Serving) -> None:
    producer = librdkafka.producer(node.kafka)
    mainstem(node, "topic", "create", "busy", "--partitions", str(PARTITIONS))
    mainstem(node, "topic", "create", "idle", "--partitions", str(PARTITIONS))
    send(producer, "busy", [b"0"])
    send(producer, "idle", [b"0", b"1"])
    send(producer, "busy", [LOST], range(1))
    send(producer, "busy", [b"1", b"2"])
    node.kill()
    spoil(node.write_dir)
    node.start()
    waits = [group for group in range(4) if node.metric("mainstem_write_group_waits", group=str(group))]
    assert len(waits) == 1, node.output
    node.stop()

    told = mainstem(node, "cluster", "recover", "--write-dir", str(node.write_dir), "--lost")
    assert "busy-0: offset 1\n" in told
    (name,) = [line.split()[1] for line in told.splitlines() if line.strip().startswith("--give-up")]
    assert name.startswith(f"{waits[0]}:")
    recover = ("cluster", "recover", "--write-dir", str(node.write_dir), "--give-up", name)
    assert "nothing was changed" in mainstem(node, *recover)
    assert "done: start the node" in mainstem(node, *recover, "--yes")
    node.start()
    assert not node.metric("mainstem_write_group_waits")
    producer = librdkafka.producer(node.kafka)
    send(producer, "busy", [b"3"])
    send(producer, "idle", [b"2"])
    for partition in range(PARTITIONS):
        busy = librdkafka.consume(node.kafka, "busy", 4, partition)
        assert [message.value for message in busy] == [b"0", b"1", b"2", b"3"]
        first = 1 if partition == 0 else 0
        assert [message.offset for message in busy] == [0, *range(1 + first, 4 + first)]
        idle = librdkafka.consume(node.kafka, "idle", 3, partition)
        assert [message.value for message in idle] == [b"0", b"1", b"2"], "the gap is passed over"
    assert [it.value for it in librdkafka.consume(node.kafka, "busy", 1, 0, 1)] == [b"1"], (
        "from the gap to what is next"
    )
    higher = [librdkafka.consume(node.kafka, "idle", 3, partition)[2].offset > 2 for partition in range(PARTITIONS)]
    assert any(higher), "queues of the write group go on behind whatever was lost"
    assert not all(higher), "those of others do not"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, "pipeline.mode=off")
    try:
        yield cluster.start()
    finally:
        cluster.close()


def lost_by(node: Serving) -> str:
    """The name by which the one lost block is given up."""
    told = mainstem(node, "cluster", "recover", "--write-dir", str(node.write_dir), "--lost")
    (name,) = [line.split()[1] for line in told.splitlines() if line.strip().startswith("--give-up")]
    return name


def test_three_nodes_give_up_only_what_none_of_them_has(cluster: Cluster) -> None:
    cluster.create_topic("busy", PARTITIONS, min_insync_replicas="3")
    cluster.wait_until_well()
    producer = librdkafka.producer(cluster.bootstrap)
    send(producer, "busy", [b"0"])
    send(producer, "busy", [LOST], range(1))
    send(producer, "busy", [b"1", b"2"])
    cluster.wait_until_well()
    cluster.kill(1, 2, 3)
    for node in cluster.nodes.values():
        spoil(node.write_dir)
    first = cluster.nodes[1]
    cluster.start(1, 2)
    cluster.stop(1)
    name = lost_by(first)
    recover = ("cluster", "recover", "--write-dir", str(first.write_dir), "--give-up", name, "--yes")
    assert "Nodes 2, 3 are asked first" in mainstem(first, *recover)
    cluster.start(1)
    assert "not replaced: node 3, which may have block" in first.output
    cluster.stop(1)
    assert lost_by(first) == name, "it is given up though a node that may have it is away"

    cluster.start(3)
    cluster.start(1)
    for node_id in (2, 3):
        cluster.stop(node_id)
        cluster.start(node_id)
    cluster.wait_until_well()
    producer = librdkafka.producer(cluster.bootstrap)
    send(producer, "busy", [b"3"])
    for partition in range(PARTITIONS):
        busy = librdkafka.consume(cluster.bootstrap, "busy", 4, partition)
        assert [message.value for message in busy] == [b"0", b"1", b"2", b"3"]
        shift = 1 if partition == 0 else 0
        assert [message.offset for message in busy] == [0, *range(1 + shift, 4 + shift)]
