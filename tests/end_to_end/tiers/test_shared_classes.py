"""Write groups with one replica beside those with three, in a cluster whose queue store is one bucket: what a topic of
either class has is split into the bucket, its write groups go from node to node with their unsplit tails alone, and
clients read all of it in order."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from bench.store.plain_splitter import PlainSplitter
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import check, goes_on, load_on
from tests.end_to_end.shell import mainstem
from tests.end_to_end.tiering import RUN_BYTES, unsplit_bytes
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually
from tools.s3_server import CREDENTIALS, S3Server, s3_server

from mainstem.pipeline.errors import MergeFailed, NamesRefused

pytest.importorskip("obstore")

SAFE, SINGLE = "kept-thrice", "kept-once"
SINGLES = {2, 3, 4}
DRAINED = 3


def settings_with(s3: S3Server) -> tuple[str, ...]:
    return (
        "pipeline.mode=off", "journal.segment_bytes=1048576", "journal.segment_age_seconds=1",
        "storage.write_cache_bytes=0", "storage.checkpoint_seconds=1", "storage.prune_seconds=0.3",
        "nameserver.write_groups=2", f"store_dir=s3://{s3.bucket}/store", f"object_store.endpoint={s3.endpoint}",
        *(f"object_store.options.{key}={CREDENTIALS[key]}" for key in CREDENTIALS),
    )  # fmt: skip


def split(cluster: Cluster) -> None:
    """Leaderships of each node, as far as it keeps them meanwhile."""
    for node_id in sorted(cluster.running):
        with suppress(NamesRefused, MergeFailed), PlainSplitter(cluster.nodes[node_id].http, RUN_BYTES) as splitter:
            splitter.split(merging=False)


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

            def settled() -> bool:
                split(cluster)
                return not any(map(unsplit_bytes, cluster.nodes.values()))

            eventually(settled, seconds=PATIENCE_SECONDS, what="everything in the bucket alone")
            for load in (safe, single):
                check(cluster, load)
        finally:
            cluster.close()
