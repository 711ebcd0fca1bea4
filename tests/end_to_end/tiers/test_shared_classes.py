"""Write groups with one replica beside those with three, in a cluster whose queue store is one bucket: what a topic of
either class has is split into the bucket, its write groups go from node to node with their unsplit tails alone, queues
move between these, and clients read all of it in order, also when all disks are lost but the bucket."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from bench.store.plain_splitter import PlainSplitter
from tests.clients.drivers import librdkafka
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import PARTITIONS, check, goes_on, load_on
from tests.end_to_end.load import Record
from tests.end_to_end.shell import mainstem, mainstem_json
from tests.end_to_end.tiering import RUN_BYTES, unsplit_bytes
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually
from tools.s3_server import CREDENTIALS, S3Server, s3_server

from mainstem.pipeline.errors import MergeFailed, NamesRefused

pytest.importorskip("obstore")

SAFE, SINGLE = "kept-thrice", "kept-once"
SINGLES = {2, 3, 4}
DRAINED = 3


def settings_with(s3: S3Server, write_groups: int = 2) -> tuple[str, ...]:
    return (
        "pipeline.mode=off", "journal.segment_bytes=1048576", "journal.segment_age_seconds=1",
        "storage.write_cache_bytes=0", "storage.checkpoint_seconds=1", "storage.prune_seconds=0.3",
        f"nameserver.write_groups={write_groups}", f"store_dir=s3://{s3.bucket}/store",
        f"object_store.endpoint={s3.endpoint}",
        *(f"object_store.options.{key}={CREDENTIALS[key]}" for key in CREDENTIALS),
    )  # fmt: skip


def split(cluster: Cluster) -> None:
    """Leaderships of each node, as far as it keeps them meanwhile."""
    for node_id in sorted(cluster.running):
        with suppress(NamesRefused, MergeFailed), PlainSplitter(cluster.nodes[node_id].http, RUN_BYTES) as splitter:
            splitter.split(merging=False)


def all_have_moved_beside_splits(cluster: Cluster) -> None:
    """A node that followed a write group before follows it again once what is older than its queues is split there."""

    def moved() -> bool:
        split(cluster)
        return not mainstem_json(cluster.nodes[1], "cluster", "status")["slot_moves"]

    eventually(moved, seconds=PATIENCE_SECONDS, what="the end of all moves")


def all_is_split(cluster: Cluster) -> None:
    def settled() -> bool:
        split(cluster)
        return not any(map(unsplit_bytes, cluster.nodes.values()))

    eventually(settled, seconds=PATIENCE_SECONDS, what="everything in the bucket alone")


def leaders(cluster: Cluster) -> dict[int, int]:
    return {group: leader for group, (leader, _term) in cluster.terms(1).items() if group in SINGLES}


@pytest.mark.long
def test_both_classes_lie_in_one_bucket(tmp_path: Path) -> None:
    with s3_server("mainstem-classes") as s3:
        cluster = Cluster(tmp_path, *settings_with(s3))
        try:
            cluster.start().wait_until_well()
            mainstem(cluster.nodes[1], "cluster", "write-groups", "5", "--replication-factor", "1")
            cluster.wait_until_well()
            with load_on(cluster, SAFE, copies=3) as safe, load_on(cluster, SINGLE, copies=1) as single:
                split(cluster)
                mainstem(cluster.nodes[1], "cluster", "drain", str(DRAINED))
                eventually(
                    lambda: not {DRAINED, -1} & set(leaders(cluster).values()),
                    seconds=PATIENCE_SECONDS,
                    what="every write group with one replica on the nodes that stay",
                )
                goes_on(single, SINGLE)
                goes_on(safe, SAFE)
                split(cluster)

            all_is_split(cluster)
            for load in (safe, single):
                check(cluster, load)
        finally:
            cluster.close()


@pytest.mark.parametrize("adopts", [False, pytest.param(True, marks=pytest.mark.long)])
def test_queues_move_to_other_nodes_over_one_bucket(tmp_path: Path, *, adopts: bool) -> None:
    """`adopts`: in the end all disks are lost, and nodes are made anew."""
    with s3_server("mainstem-moves") as s3:
        cluster = Cluster(tmp_path, *settings_with(s3))
        try:
            cluster.start().wait_until_well()
            asked = cluster.nodes[1]
            mainstem(asked, "cluster", "write-groups", "5", "--replication-factor", "1")
            cluster.wait_until_well()

            def move(partition: int, steps: int) -> None:
                now = mainstem_json(asked, "cluster", "explain", f"{SINGLE}:{partition}")["group"]
                to = min(SINGLES) + (now - min(SINGLES) + steps) % len(SINGLES)
                mainstem(asked, "cluster", "move-queue", f"{SINGLE}:{partition}", "--to", str(to))

            with load_on(cluster, SINGLE, copies=1) as load:
                split(cluster)
                for partition in range(PARTITIONS):
                    move(partition, 1)
                all_have_moved_beside_splits(cluster)
                goes_on(load, SINGLE)
                split(cluster)
                for partition in range(0, PARTITIONS, 2):  # back to where it was
                    move(partition, -1)
                all_have_moved_beside_splits(cluster)
                goes_on(load, SINGLE)
            all_is_split(cluster)
            check(cluster, load)
            if not adopts:
                return
            cluster.kill(*cluster.nodes)
            for node in cluster.nodes.values():
                shutil.rmtree(node.write_dir)
                settings = [word for setting in node.settings for word in ("--set", setting)]
                mainstem(node, "store", "adopt", f"s3://{s3.bucket}/store", "--into", str(node.write_dir), *settings)
            cluster.start().wait_until_well()
            for queue, records in load.expected().items():  # they go on far behind these
                read = librdkafka.consume(cluster.bootstrap, queue.topic, len(records), queue.partition)
                assert [Record(one.offset, one.key, one.value) for one in read] == records
        finally:
            cluster.close()
