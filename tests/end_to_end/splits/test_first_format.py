"""Disk 2 of the version before there were levels: it opens as it is, is merged and compacted once the feature level
lets it, and nothing of it is left then, whoever dies at which step of that.

That version's own node and splitter write it, out of the history of the repository.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest
from tests.end_to_end.odd_nodes.old_version import BEFORE_LEVELS, sources_of
from tests.end_to_end.splits.test_doomed_jobs import (
    DRIVER,
    NODE,
    Doomed,
    Template,
    die_at,
    places_to_die,
    steps_of,
)
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import SOURCE, Serving, eventually

from mainstem.console.token_file import read_token
from mainstem.model import FeatureLevel
from mainstem.storage.extents.aborted import ABORTED_MAGIC

SPLIT = """
import sys
from mainstem.pipeline.journal_slice import slice_bytes
from mainstem.pipeline.node_link import NodeLink
from mainstem.pipeline.split_slice import split_slice
from mainstem.rpc.split import HeldLease
from mainstem.storage.queue_store.run_target import LocalRunTarget

rpc, runs = sys.argv[1:]
link = NodeLink(rpc, "splitter")
lease = link.acquire("splitter", wait_seconds=30, yields=False)
held = HeldLease(lease.lease_id, lease.epoch)
groups = link.positions().groups
after, upto = ({group.group: getattr(group, name) for group in groups} for name in ("split", "durable"))
for work in link.slices(after, upto, 1 << 20).slices:
    with slice_bytes(work, link.read, local=False) as buffer:
        done = split_slice(work, buffer, link.retention_classes(), lambda name: LocalRunTarget(runs, name))
    outcomes = link.commit(held, done)
    assert set(outcomes) == {"committed"}, outcomes
link.release(held)
link.close()
"""
"""Splits all there is, in that version's words."""


class FirstFormat(Template):
    """The directories of a node of that version."""

    def __init__(self, directory: Path, old: Path) -> None:
        self._old = old
        super().__init__(directory)

    def serving(self, directory: Path) -> Serving:
        node = super().serving(directory)
        node.source = self._old
        return node

    def split(self, node: Serving) -> None:
        words = [sys.executable, "-c", SPLIT, node.rpc, str(node.store_dir / "runs")]
        environment = {"PYTHONPATH": str(self._old), "PATH": ""}
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr

    def leave_the_journal(self, node: Serving) -> None:
        """Nothing: that version keeps its last segment until it writes another one."""

    def start(self, node: Serving) -> None:
        node.source = SOURCE
        node.start()
        eventually(lambda: raised(node), seconds=PATIENCE_SECONDS, what="the newest feature level")
        eventually(
            lambda: node.get("/v1/store/usage")["journal_bytes"] == 0,
            seconds=PATIENCE_SECONDS,
            what="a journal without batches, which are all split",
        )

    def runs(self) -> list[Path]:
        return sorted((self.directory / "store" / "runs").glob("*.run"))


def raised(node: Serving) -> bool:
    """Whether the feature level is the newest: not before the metadata knows what the node can do."""
    token = read_token(node.write_dir)
    assert token is not None
    request = urllib.request.Request(
        f"http://{node.http}/v1/cluster/feature-level",
        json.dumps({"level": FeatureLevel.newest()}).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {token}"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS):
            return True
    except HTTPError:
        return False


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FirstFormat]:
    try:
        old = sources_of(BEFORE_LEVELS, tmp_path_factory.mktemp("before-levels"))
    except (LookupError, OSError) as reason:
        pytest.skip(f"the history of the repository is needed (git fetch --unshallow): {reason}")
    directory = tmp_path_factory.mktemp("first-format")
    made = FirstFormat(directory, old)
    try:
        made.make()
        yield made
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(old.parent, ignore_errors=True)


def test_it_opens_as_it_is_and_is_read_before_the_level_is_raised(template: FirstFormat, tmp_path: Path) -> None:
    runs = {path.name: path.read_bytes() for path in template.runs()}
    assert runs, "all is split"
    magic = ABORTED_MAGIC.to_bytes(8, "little")
    assert not any(magic in content for content in runs.values()), "the format is that of then"
    node = template.node(tmp_path / "node")
    node.source = SOURCE
    try:
        node.start()
        assert Doomed(node).read() == template.told
        assert node.stop() == 0, node.output
        assert {path.name: path.read_bytes() for path in (node.store_dir / "runs").glob("*.run")} == runs
    finally:
        node.close()


def test_a_node_that_dies_as_a_merge_is_recorded_has_all_of_it(template: FirstFormat, tmp_path: Path) -> None:
    die_at(template, tmp_path / "node", NODE, "merge.commit has begun#1")


@pytest.mark.long
@pytest.mark.parametrize("victim", [DRIVER, NODE])
def test_who_dies_at_any_step_leaves_all_of_it(template: FirstFormat, tmp_path: Path, victim: str) -> None:
    for number, step in enumerate(places_to_die(steps_of(template, tmp_path / "whole"))):
        die_at(template, tmp_path / str(number), victim, step)
