"""A node whose disk 1 turns read-only: others lead what it led, it ends and says why, and comes back with the disk.

The disk is a file system of its own, which only root can mount. It turns read-only as one does that has met an error:
at once, whatever is open, and until it is unmounted, which takes that nobody has a file of it open.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import PARTITIONS, goes_on, load_on
from tests.harness.serving import eventually

MEBIBYTE = 1 << 20
DISK_BYTES = 128 * MEBIBYTE
FAILING = 2
DISK_FAILED = 3
"""The exit code."""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0,
    reason="a disk that turns read-only is a file system of its own, which only root can mount",
)


class Disk:
    """An ext4 in a file."""

    def __init__(self, image: Path, directory: Path) -> None:
        self._image = image
        self.directory = directory
        self._mounted = False

    def make(self) -> None:
        with self._image.open("wb") as file:
            file.truncate(DISK_BYTES)
        run_or_skip("mkfs.ext4", "-q", "-F", str(self._image))
        self.directory.mkdir()
        run_or_skip("mount", "-o", "loop", str(self._image), str(self.directory))
        self._mounted = True

    def turn_read_only(self) -> None:
        run_or_skip("mount", "-o", "remount,abort", str(self.directory))

    def mend(self) -> None:
        """Check it, and mount it anew."""
        self.unmount()
        subprocess.run(["fsck.ext4", "-p", str(self._image)], capture_output=True, check=False)
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self.directory)], check=True)
        self._mounted = True

    def unmount(self) -> None:
        if self._mounted:
            subprocess.run(["umount", str(self.directory)], check=True)
            self._mounted = False


def run_or_skip(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"there is no {command[0]} here")
    if done.returncode != 0:
        pytest.skip(f"`{' '.join(command)}` is not allowed here: {done.stderr.strip()}")


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    root = tmp_path_factory.mktemp("disk")
    disk = Disk(root / "image", root / "mounted")
    disk.make()
    try:
        yield disk
    finally:
        disk.unmount()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, disk: Disk) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(
        root, "pipeline.mode=off", f"journal.segment_bytes={2 * MEBIBYTE}",
        write_dir=lambda node_id: disk.directory / "write" if node_id == FAILING else root / f"write-{node_id}",
    )  # fmt: skip
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def test_a_node_whose_disk_turns_read_only_makes_way_ends_and_comes_back(cluster: Cluster, disk: Disk) -> None:
    cluster.wait_until_well()
    if cluster.metadata_leader() == FAILING:  # who leads the metadata hears the last word of the others
        cluster.stop(FAILING)
        cluster.start(FAILING)
        cluster.wait_until_well()
    failing, other = cluster.nodes[FAILING], cluster.others(FAILING)[0]
    with load_on(cluster, "read-only") as load:
        eventually(lambda: cluster.led_by(FAILING, "read-only"), what="a partition that the failing node leads")
        disk.turn_read_only()
        assert cluster.ended(FAILING) == DISK_FAILED
        assert failing.output_lines("mainstem: disk 1 failed, and the node has ended")
        assert failing.output_lines("put the disk of write_dir right")
        eventually(lambda: not cluster.led_by(FAILING, "read-only"), what="other leaders than the node that failed")
        goes_on(load, "read-only", range(PARTITIONS))
        eventually(lambda: FAILING not in cluster.not_dead(other), what="others to take it for dead")
        (seen,) = (node for node in cluster.get("/v1/cluster", other)["nodes"] if node["node_id"] == FAILING)
        assert "disk 1 failed: " in seen["reason"]
        assert "put the disk of write_dir right" in seen["reason"]
        with pytest.raises(AssertionError, match="did not start"):
            failing.start()
        assert failing.wait() == DISK_FAILED
        assert failing.output_lines("mainstem: the node cannot start: ")
        disk.mend()
        cluster.start(FAILING)
