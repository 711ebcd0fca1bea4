"""A node whose disk 1 is full: what it led is led by others, and it goes on when there is room again.

The disk is a tmpfs of its own, which only root can mount.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import PARTITIONS, goes_on, load_on
from tests.serving import eventually

MEBIBYTE = 1 << 20
DISK_BYTES = 48 * MEBIBYTE
SMALL = 2

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="a small disk is a tmpfs, which only root can mount"
)


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
        eventually(lambda: cluster.led_by(SMALL, "full"), what="a partition that the small node leads")
        ballast = small_disk / "ballast"
        with ballast.open("wb") as file:
            usage = os.statvfs(small_disk)
            os.posix_fallocate(file.fileno(), 0, usage.f_bavail * usage.f_frsize)
        eventually(lambda: not cluster.led_by(SMALL, "full"), what="other leaders than the full node")
        goes_on(load, "full", range(PARTITIONS))
        assert all(cluster.get("/v1/cluster", node_id) for node_id in cluster.nodes)
        ballast.unlink()
