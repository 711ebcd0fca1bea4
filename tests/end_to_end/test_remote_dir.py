"""A node opens the object store of `remote_dir`, measures it, and starts without it while it is out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.serving import Serving


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
