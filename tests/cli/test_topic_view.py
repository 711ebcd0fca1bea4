"""Topics over Kafka alone, and with what HTTP adds."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import msgspec
import pytest
from tests.broker.harness import Serving, serving
from tests.console.views import FLIGHTS

from mainstem.cli.clients import kafka_node
from mainstem.cli.topic.describe import print_topic
from mainstem.cli.topic.view import PartitionTree, TopicLine, TopicTree, only, tree, with_bytes, with_files
from mainstem.console.views.of_topics import TopicSummary
from mainstem.model import queue_id_of

BARE = TopicTree(
    name="flights",
    topic_id=FLIGHTS.topic_id,
    internal=False,
    configs={"retention.ms": "60000"},
    partitions=[
        PartitionTree(
            partition=0, leader=1, leader_epoch=4, replicas=[1], in_sync=[1], log_start=10, high_watermark=100
        ),
        PartitionTree(partition=1, leader=1, leader_epoch=4, replicas=[1], in_sync=[1], log_start=0, high_watermark=5),
    ],
)


@pytest.fixture
def text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[TopicTree], str]:
    """The text printed of a topic for a terminal of 80 columns, spaces made one."""
    monkeypatch.setenv("COLUMNS", "80")

    def shown(topic: TopicTree) -> str:
        print_topic(topic, all_files=False)
        return re.sub(" +", " ", capsys.readouterr().out)

    return shown


def test_shows_offsets_bytes_segments_runs_and_indexes(text: Callable[[TopicTree], str]) -> None:
    full = text(with_files(BARE, FLIGHTS))
    for part in (
        "flights: 2 partitions, 95 offsets\n",
        "journal 2.5 KiB",
        "store 1.0 MiB",
        "retention.ms=60000",
        "PARTITION LEADER GROUP START SPLIT END JOURNAL STORE FILES",
        "0 1 2 10 80 100 2.0 KiB 1.0 MiB 2",
        "PARTITION IN FILE START END BYTES INDEX",
        "0 store runs/00000007.run 10 80 1.0 MiB 3",
        "0 journal 00000000000000000004.wal 80 100 2.0 KiB 7",
    ):
        assert part in full


def test_many_files_are_counted_and_shown_when_a_partition_is_asked_for(
    text: Callable[[TopicTree], str], capsys: pytest.CaptureFixture[str]
) -> None:
    many = with_files(BARE, FLIGHTS)
    first = msgspec.structs.replace(many.partitions[0], files=[FLIGHTS.partitions[0].files[0]] * 30)
    many = msgspec.structs.replace(many, partitions=[first])
    assert "31 entries in files; --partition N shows those of a partition" in text(many)
    print_topic(only(many, [0]), all_files=True)
    assert capsys.readouterr().out.count("runs/00000007.run") == 30


def test_kafka_alone_leaves_out_what_it_does_not_know(text: Callable[[TopicTree], str]) -> None:
    bare = text(BARE)
    assert "PARTITION LEADER EPOCH START END" in bare
    assert "0 1 4 10 100" in bare
    assert "JOURNAL" not in bare
    assert "journal" not in bare


def test_partitions_with_the_same_replicas_share_a_line(text: Callable[[TopicTree], str]) -> None:
    assert "REPLICAS" not in text(BARE)
    nodes = [((1, 2, 3), (1, 2, 3)), ((2, 3, 1), (2, 1)), ((1, 2, 3), (1, 2, 3)), ((2, 3, 1), ())]
    partitions = [
        msgspec.structs.replace(BARE.partitions[0], partition=number, replicas=replicas, in_sync=in_sync)
        for number, (replicas, in_sync) in enumerate(nodes)
    ]
    shown = text(msgspec.structs.replace(BARE, partitions=partitions))
    assert "REPLICAS IN SYNC PARTITIONS\n1, 2, 3 1, 2, 3 0, 2\n2, 3, 1 none 3\n2, 3, 1 2, 1 1\n\n" in shown


def test_a_partition_without_a_leader_is_shown_as_such(text: Callable[[TopicTree], str]) -> None:
    """The others have their offsets all the same, over Kafka alone and with what HTTP adds."""
    lost = msgspec.structs.replace(
        BARE.partitions[0], leader=-1, leader_epoch=None, log_start=None, high_watermark=None
    )
    topic = msgspec.structs.replace(BARE, partitions=[lost, BARE.partitions[1]])
    bare, full = text(topic), text(with_files(topic, FLIGHTS))
    assert "flights: 2 partitions, 5 offsets, 1 partition without a leader\n" in bare
    assert " 0 none - - -\n 1 1 4 0 5\n" in bare
    assert " 0 none 2 - 80 - 2.0 KiB 1.0 MiB 2\n" in full


async def _described(served: Serving, *lost: int) -> TopicTree:
    topic = await served.topic("orders", partitions=3)
    served.metadata.leaders |= {queue_id_of(topic.number, partition): -1 for partition in lost}
    return await asyncio.to_thread(lambda: tree(kafka_node.admin(str(served.server.addresses[0])), "orders"))


@pytest.mark.parametrize("lost", [(), (1,), (0, 1, 2)])
def test_a_client_gets_the_offsets_of_partitions_that_have_a_leader(lost: tuple[int, ...]) -> None:
    """librdkafka waits for the leader of each partition that it is asked for, and answers for none without."""

    async def story() -> None:
        async with serving() as served:
            described = await _described(served, *lost)
            assert [(it.partition, it.leader, it.log_start, it.high_watermark) for it in described.partitions] == [
                (partition, -1, None, None) if partition in lost else (partition, 1, 0, 0) for partition in range(3)
            ]

    asyncio.run(story())


def test_a_partition_that_the_node_does_not_know_yet_stays_bare() -> None:
    known = msgspec.structs.replace(FLIGHTS, partitions=FLIGHTS.partitions[:1])
    first, second = with_files(BARE, known).partitions
    assert first.unsplit_bytes == 2048
    assert second == BARE.partitions[1]


def test_bytes_of_another_cluster_are_not_put_beside_ours() -> None:
    ours = TopicLine(
        name="flights", topic_id="a", partitions=2, replication_factor=1, under_replicated_partitions=0, internal=False
    )
    theirs = TopicSummary(name="flights", topic_id="b", partitions=2, internal=False, unsplit_bytes=1, stored_bytes=2)
    assert with_bytes([ours], [theirs]) == [ours]
    same = msgspec.structs.replace(theirs, topic_id="a")
    assert with_bytes([ours], [same])[0].stored_bytes == 2
