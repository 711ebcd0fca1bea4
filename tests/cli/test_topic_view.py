"""Topics over Kafka alone, and with what HTTP adds."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console
from tests.console.views import FLIGHTS

from mainstem.cli.topic.describe import drawn
from mainstem.cli.topic.view import PartitionTree, TopicLine, TopicTree, with_bytes, with_files
from mainstem.console.views import TopicSummary

BARE = TopicTree(
    name="flights",
    topic_id=FLIGHTS.topic_id,
    internal=False,
    configs={"retention.ms": "60000"},
    partitions=[
        PartitionTree(partition=0, leader=1, leader_epoch=4, log_start=10, high_watermark=100),
        PartitionTree(partition=1, leader=1, leader_epoch=4, log_start=0, high_watermark=5),
    ],
)


def text(topic: TopicTree) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(drawn(topic))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_draws_offsets_bytes_and_files() -> None:
    full = text(with_files(BARE, FLIGHTS))
    for part in (
        "flights  2 partitions, 95 offsets, 2.5 KiB in the journal, 1.0 MiB in the queue store",
        "retention.ms=60000",
        "partition 0  offsets 10..100, leader 1, write group 2",
        "journal      2.0 KiB, offsets 80..100 unsplit",
        "queue store  1.0 MiB, offsets 10..80 in 1 file",
        "run runs/00000007.run  offsets 10..79, 1.0 MiB of 3.0 MiB",
    ):
        assert part in full


def test_says_when_nothing_is_left_to_split() -> None:
    split = msgspec.structs.replace(
        FLIGHTS, partitions=[msgspec.structs.replace(FLIGHTS.partitions[0], split_end=100)]
    )
    assert "journal      2.0 KiB, nothing unsplit" in text(with_files(BARE, split))


def test_kafka_alone_leaves_out_what_it_does_not_know() -> None:
    bare = text(BARE)
    assert "partition 0  offsets 10..100, leader 1" in bare
    assert "disk" not in bare
    assert "journal" not in bare


def test_a_partition_that_the_node_does_not_know_yet_stays_bare() -> None:
    known = msgspec.structs.replace(FLIGHTS, partitions=FLIGHTS.partitions[:1])
    first, second = with_files(BARE, known).partitions
    assert first.unsplit_bytes == 2048
    assert second == BARE.partitions[1]


def test_bytes_of_another_cluster_are_not_put_beside_ours() -> None:
    ours = TopicLine(name="flights", topic_id="a", partitions=2, internal=False)
    theirs = TopicSummary(
        name="flights", topic_id="b", partitions=2, internal=False, unsplit_bytes=1, stored_bytes=2
    )
    assert with_bytes([ours], [theirs]) == [ours]
    same = msgspec.structs.replace(theirs, topic_id="a")
    assert with_bytes([ours], [same])[0].stored_bytes == 2
