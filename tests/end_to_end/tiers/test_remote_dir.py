"""A node opens the object store of `remote_dir`, measures it, and starts without it while it is out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.end_to_end.shell import mainstem, mainstem_json
from tests.harness.serving import Serving, eventually


def test_the_store_is_opened_and_measured(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    node = Serving(tmp_path / "node", "pipeline.mode=off", f"remote_dir={tmp_path / 'remote'}")
    try:
        node.start()
        assert node.metric("mainstem_remote_files") == 0
        assert node.metric("mainstem_object_store_requests_in_flight_bound") > 0
        assert node.metric("mainstem_object_store_requests_total") == 0, "nothing was asked of it yet"
        assert node.stop() == 0
    finally:
        node.close()


def test_the_store_has_the_topics_of_a_cluster_that_moves_any(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    remote.mkdir()
    node = Serving(tmp_path / "node", "pipeline.mode=off", f"remote_dir={remote}")
    try:
        node.start()
        mainstem(node, "topic", "create", "plain", "--partitions", "3")
        config = ("--config", "remote.storage.enable=true")
        mainstem(node, "topic", "create", "moved", "--partitions", "2", *config)
        eventually(lambda: list(remote.glob("*/topics/head")), what="the list of topics")
        assert node.stop() == 0
        (cluster,) = mainstem_json(node, "store", "adopt", str(remote), "--list")["clusters"]
        topics = {topic["name"]: topic for topic in cluster["topics"] if not topic["internal"]}
        assert {name: topic["partition_count"] for name, topic in topics.items()} == {"plain": 3, "moved": 2}
        assert topics["moved"]["configs"] == {"remote.storage.enable": "true"}
        assert [group["files"] for group in cluster["groups"]] == [0, 0, 0, 0]
    finally:
        node.close()


def test_a_store_that_is_out_keeps_no_node_from_starting(tmp_path: Path) -> None:
    node = Serving(tmp_path / "node", "pipeline.mode=off", f"remote_dir={tmp_path / 'not mounted'}")
    try:
        node.start()
        assert node.stop() == 0
    finally:
        node.close()


def test_an_option_that_the_store_does_not_know_is_told_at_once(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    node = Serving(
        tmp_path / "node", "pipeline.mode=off", "remote_dir=s3://bucket/x", "object_store.options.no_such_option=1"
    )
    try:
        with pytest.raises(AssertionError, match="s3://bucket/x cannot be opened"):
            node.start()
    finally:
        node.close()
