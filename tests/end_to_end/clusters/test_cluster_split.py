"""Every node of a cluster splits its own copy, whoever led when; and a node that died is replaced by one with empty
disks, which gets runs and state from its peers, then the log, and counts as one of three from then on.

The story is told once (Spark starts in it) and keeps its evidence; the tests below examine it. In it, in
this order, under a load: node 3 is killed for good; the others split and prune, so that the log alone could not make
a replica whole; node 4 takes its place; node 1 is killed, so that node 4 counts, and comes back; all split.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import PARTITIONS, goes_on, load_on
from tests.end_to_end.load import Load, Queue, Record
from tests.end_to_end.odd_nodes.hasty_node import HASTY_NODE
from tests.end_to_end.readers import Reading, read_all
from tests.end_to_end.shell import replace_member
from tests.end_to_end.splitters.one_spark import OneSpark
from tests.end_to_end.store import Recorded, recorded, records_in_runs, runs_of_group
from tests.harness.free_port import HOST, free_port
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

TOPIC = "moving"
LOST, NEW = 3, 4
GROUPS = range(3)
SETTINGS = (
    "pipeline.mode=off", "journal.segment_bytes=1048576", "journal.segment_age_seconds=1",
    "storage.write_cache_bytes=262144", "storage.checkpoint_seconds=1", "storage.prune_seconds=0.3",
    f"nameserver.write_groups={len(GROUPS)}",
)  # fmt: skip


class Story:
    """The events, and the evidence of them."""

    def __init__(self, directory: Path, spark: OneSpark) -> None:
        self.cluster = Cluster(directory, *SETTINGS)
        self.spark = spark
        self.newcomer = newcomer(self.cluster, directory / f"node-{NEW}")
        self.reply = ""
        """The output of `mainstem cluster replace`."""
        self.snapshots = 0.0
        """Those that the newcomer installed."""
        self.again: Reading = {}
        self.by_the_lost: Reading = {}
        """The same, asked of the node that was replaced and is back."""
        self.recorded: dict[int, Recorded] = {}
        """Node -> what its manifest says at the end."""
        self.stored: dict[int, dict[int, list[list[Record]]]] = {}
        """Node -> write group -> the queues in the runs that count for it."""
        self.values: dict[int, Counter[bytes | None]] = {}
        """Node -> value of a message -> how often it lies in the runs, whichever group they count for."""
        self.group_of: list[int] = []
        """Partition -> write group."""
        self.load: Load

    def tell(self) -> None:
        cluster = self.cluster
        cluster.start().wait_until_well()
        with load_on(cluster, TOPIC) as self.load:
            cluster.kill(LOST)
            self.lost = cluster.nodes.pop(LOST)
            goes_on(self.load, TOPIC)
            with ThreadPoolExecutor(1) as threads:
                starting = threads.submit(self.newcomer.start)  # it asks the dead node first, for some seconds
                self._split()
                for node in cluster.nodes.values():
                    eventually(partial(is_pruned, node), seconds=PATIENCE_SECONDS, what="a journal that begins later")
                starting.result()
            cluster.nodes[NEW] = self.newcomer
            cluster.running.add(NEW)
            self.reply = replace_member(cluster.nodes[1], LOST, NEW)
            eventually(self._is_replaced, seconds=PATIENCE_SECONDS, what="a new member of every write group")
            self.snapshots = self.newcomer.metric("mainstem_snapshots_installed_total")
            goes_on(self.load, TOPIC)
            cluster.kill(1)
            goes_on(self.load, TOPIC)  # by two of three, the new one among them
            cluster.start(1)
        self._split()
        for node_id, node in cluster.nodes.items():
            eventually(partial(is_split, node), seconds=PATIENCE_SECONDS, what="everything split and pruned")
            self.recorded[node_id] = recorded(node)
            self.stored[node_id] = {
                group: list(records_in_runs(node, runs_of_group(node, group)).values()) for group in GROUPS
            }
            self.values[node_id] = Counter(
                record.value for records in records_in_runs(node).values() for record in records
            )
        self.group_of = [view["write_group"] for view in cluster.get(f"/v1/topics/{TOPIC}")["partitions"]]
        wanted = {queue: len(records) for queue, records in self.load.expected().items()}
        self.again = read_all(cluster.bootstrap, wanted)
        self.lost.start()
        eventually(partial(has_nothing, self.lost), seconds=PATIENCE_SECONDS, what="a replaced node that holds nothing")
        self.by_the_lost = read_all(self.lost.kafka, wanted)
        eventually(self._all_are_known_to_live, seconds=PATIENCE_SECONDS, what="a replaced node that is known to live")

    def close(self) -> None:
        if hasattr(self, "load"):
            self.load.stop()
        self.cluster.close()
        self.newcomer.close()
        if hasattr(self, "lost"):
            self.lost.close()

    def _split(self) -> None:
        """Every node splits what it has."""
        for node in self.cluster.nodes.values():
            self.spark.run(node, "--once")

    def _all_are_known_to_live(self) -> bool:
        """A node hears it from the leader of the metadata, a heartbeat or two after that has heard it."""
        views = [self.cluster.get("/v1/cluster", node_id)["nodes"] for node_id in (1, 2)]
        alive = [{node["node_id"] for node in view if node["state"] == "alive"} for view in views]
        return alive == [{1, 2, LOST, NEW}] * 2

    def _is_replaced(self) -> bool:
        """Every group has its votes on the nodes that are left, and none of them lacks anything."""
        return all(
            {replica["node"] for replica in group["replicas"] if replica["voter"] and replica["active"]} == {1, 2, NEW}
            and not any(replica["lag_blocks"] for replica in group["replicas"])
            for group in self.cluster.get("/v1/cluster")["write_groups"]
        )


def newcomer(cluster: Cluster, directory: Path) -> Serving:
    """A node that is told of the same `nameserver.peers` as those that founded the cluster."""
    peers = {str(node_id): node.rpc for node_id, node in cluster.nodes.items()}
    node = Serving(directory, f"node_id={NEW}", f"nameserver.peers={json.dumps(peers)}", *SETTINGS)
    node.program = HASTY_NODE  # it waits for the lost one
    node.kafka, node.http, node.rpc = (f"{HOST}:{free_port()}" for _ in range(3))
    return node


def is_pruned(node: Serving) -> bool:
    return all(group["pruned"] for group in node.get("/v1/split")["groups"].values())


def is_split(node: Serving) -> bool:
    groups = node.get("/v1/split")["groups"].values()
    topics = node.get("/v1/topics")["topics"]
    return all(group["split"] == group["committed"] and not group["lag_bytes"] for group in groups) and not any(
        topic["unsplit_bytes"] for topic in topics
    )


def has_nothing(node: Serving) -> bool:
    return not any(group["committed"] or group["files"] for group in node.get("/v1/split")["groups"].values())


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, one_spark: OneSpark) -> Iterator[Story]:
    story = Story(tmp_path_factory.mktemp("cluster"), one_spark)
    try:
        story.tell()
        yield story
    finally:
        story.close()


@pytest.fixture(scope="module")
def expected(story: Story) -> dict[Queue, list[Record]]:
    return story.load.expected()


def test_the_newcomer_began_with_its_peers_runs(story: Story) -> None:
    assert "taking the place" in story.reply
    assert story.snapshots == len(GROUPS)


@pytest.mark.parametrize("node_id", [1, 2, NEW])
def test_each_node_has_every_queue_in_its_own_store_once_in_order(
    story: Story, expected: dict[Queue, list[Record]], node_id: int
) -> None:
    """F, without the nodes: the runs of a group, in the order of the manifest."""
    for partition in range(PARTITIONS):
        records = expected[Queue(TOPIC, partition)]
        stored = story.stored[node_id][story.group_of[partition]]
        assert [queue for queue in stored if queue[0] == records[0]] == [records], partition


@pytest.mark.parametrize("node_id", [1, 2, NEW])
def test_each_node_stores_every_message_once_and_nothing_else(
    story: Story, expected: dict[Queue, list[Record]], node_id: int
) -> None:
    """Of the runs that hold several write groups the newcomer copied for each what is its own."""
    assert story.values[node_id] == Counter(record.value for records in expected.values() for record in records)


@pytest.mark.parametrize("node_id", [1, 2, NEW])
def test_every_block_of_a_journal_was_split_once(story: Story, node_id: int) -> None:
    final = story.recorded[node_id]
    for group in GROUPS:
        reached = 0
        for entry in (entry for entry in final.ranges if entry.group == group):
            assert reached <= entry.after < entry.upto <= final.positions[group]
            reached = entry.upto


def test_everything_is_read_back_from_the_stores(story: Story, expected: dict[Queue, list[Record]]) -> None:
    assert story.again == expected


def test_who_was_replaced_comes_back_without_a_say_and_shows_clients_the_way(
    story: Story, expected: dict[Queue, list[Record]]
) -> None:
    """Its own log says that it is a member of everything."""
    assert "was replaced in the metadata quorum" in story.lost.output
    assert story.lost.output.count("this node is no member any more") == len(GROUPS)
    assert story.by_the_lost == expected
