"""A cluster under `async` durability loses its power, on a majority of its nodes: what these had not synced is gone,
while somebody was told that it is safe. If a node kept all of it, nothing is lost; if none did, the longest log there
is leads, says what may be missing, and readers get the beginning of what was acknowledged.

A node that loses power is one whose directories are as they were at an earlier moment of the same life, but for
what is always synced: votes, starts, and the metadata. And the machine has started anew.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.clients.drivers import librdkafka
from tests.clients.drivers.message import Message
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.load import Queue
from tests.end_to_end.odd_nodes.hasty_node import HASTY_NODE
from tests.end_to_end.readers import read_all
from tests.harness.serving import eventually

from mainstem.nameserver.disk.starts_file import StartsFile
from mainstem.storage.disks.disk_files import DiskFiles

TOPIC = "unsynced"
SETTINGS = (
    "pipeline.mode=off", "journal.durability=async", "journal.segment_bytes=1048576", "nameserver.write_groups=1",
    "groups.offsets_topic_partitions=1",
)  # fmt: skip
ALWAYS_SYNCED = ("hard_states", "starts", "metadata")
LONGEST = "this one has the longest log"
EACH = 60


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, *SETTINGS, program=HASTY_NODE)
    try:
        yield cluster.start()
    finally:
        cluster.close()


class Story:
    """The node that leads keeps its power; of the others one has got further than the other before the power went."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self._directory = directory
        self.sent = 0
        cluster.create_topic(TOPIC, 1)
        cluster.wait_until_well()
        self.keeps = cluster.leader(TOPIC, 0)
        self.behind, self.ahead = cluster.others(self.keeps)
        self.produce()
        self._photograph(self.behind)
        self.behind_has = self.sent
        self.produce()
        self._photograph(self.ahead)
        self.ahead_has = self.sent
        self.produce()
        assert cluster.leader(TOPIC, 0) == self.keeps

    def produce(self) -> None:
        """Acknowledged by all replicas, each of which has it in its page cache."""
        numbers = range(self.sent, self.sent + EACH)
        librdkafka.produce(self.cluster.bootstrap, TOPIC, [Message(b"%d" % number) for number in numbers])
        self.sent += EACH
        eventually(self._all_have_it, what="replicas that lack nothing")

    def _all_have_it(self) -> bool:
        (group,) = self.cluster.get("/v1/cluster")["write_groups"]
        replicas = group["replicas"]
        return len(replicas) == 3 and not any(replica["lag_blocks"] for replica in replicas)

    def lose_power(self) -> None:
        """On two of three; the third is killed in the same moment, its machine goes on."""
        self.cluster.kill(*self.cluster.nodes)
        for node_id in (self.behind, self.ahead):
            node = self.cluster.nodes[node_id]
            lost, photograph = node.write_dir, self._photograph_of(node_id)
            for name in ALWAYS_SYNCED:
                if (photograph / name).is_dir():
                    shutil.rmtree(photograph / name)
                    shutil.copytree(lost / name, photograph / name)
                else:
                    shutil.copy2(lost / name, photograph / name)
            shutil.rmtree(lost)
            shutil.copytree(photograph, lost)
            asyncio.run(_start_the_machine_anew(lost))

    def read(self, count: int) -> list[int]:
        queue = Queue(TOPIC, 0)
        return [int(it.value or b"") for it in read_all(self.cluster.bootstrap, {queue: count})[queue]]

    def _photograph(self, node_id: int) -> None:
        self.cluster.freeze(node_id)
        try:
            shutil.copytree(self.cluster.nodes[node_id].write_dir, self._photograph_of(node_id))
        finally:
            self.cluster.thaw(node_id)

    def _photograph_of(self, node_id: int) -> Path:
        return self._directory / f"photograph-{node_id}"


async def _start_the_machine_anew(write_dir: Path) -> None:
    files = DiskFiles(write_dir)
    try:
        starts = await StartsFile.open(files, None)
        assert starts.remembers.boot, "a machine whose starts cannot be told apart"
        assert not starts.remembers.ended_well
        await starts.change(lambda before: msgspec.structs.replace(before, boot="the start before this one"))
        await starts.close()
    finally:
        await files.close()


def test_a_node_that_kept_everything_leads_although_it_is_no_majority(cluster: Cluster, tmp_path: Path) -> None:
    story = Story(cluster, tmp_path)
    story.lose_power()
    cluster.start()
    cluster.wait_until_well()
    for node_id in (story.behind, story.ahead):
        assert cluster.nodes[node_id].output_lines("durability = async"), "it knows what it may lack"
        assert not cluster.nodes[node_id].output_lines(LONGEST)
    assert story.read(story.sent) == list(range(story.sent))
    eventually(
        lambda: not any(node["not_back"] for node in cluster.get("/v1/cluster")["nodes"]), what="nodes that are back"
    )
    cluster.kill(story.keeps)  # the others have got it all
    assert story.read(story.sent) == list(range(story.sent))


@pytest.mark.long  # the test before has the commands, the simulation what they do
def test_the_longest_log_that_is_left_leads_and_says_what_may_be_missing(cluster: Cluster, tmp_path: Path) -> None:
    story = Story(cluster, tmp_path)
    story.lose_power()
    cluster.start(story.behind, story.ahead)
    # they wait for the third, which may have a longer one
    (told,) = eventually(lambda: cluster.nodes[story.ahead].output_lines(LONGEST), what="a node that stands first")
    assert "is lost" in told
    eventually(lambda: cluster.leader(TOPIC, 0, asked=story.behind) == story.ahead, what="the longest log to lead")
    assert not cluster.nodes[story.behind].output_lines(LONGEST)
    assert story.read(story.ahead_has) == list(range(story.ahead_has)), "the beginning of what was acknowledged"
    lost = story.sent - story.ahead_has
    assert lost == EACH

    story.sent = story.ahead_has
    librdkafka.produce(cluster.bootstrap, TOPIC, [Message(b"%d" % (story.sent + number)) for number in range(EACH)])
    story.sent += EACH
    cluster.start(story.keeps)  # with what nobody else has any more
    cluster.wait_until_well()
    assert story.read(story.sent) == list(range(story.sent))
    cluster.kill(story.ahead)  # and with what the others agreed upon instead
    assert story.read(story.sent) == list(range(story.sent))
