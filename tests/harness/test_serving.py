"""The report of a failed test on the nodes it had: whether they run, and what they printed last."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.harness.free_port import PORTS
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import ROOT, Serving, reports

FAILING = """
import pytest
from tests.harness.serving import Serving

@pytest.fixture
def node(tmp_path):
    node = Serving(tmp_path / "short-lived")
    node.program = "json.tool"  # which takes `serve` for a file, and ends
    try:
        yield node.start()
    finally:
        node.close()

def test_nothing(node):
    pass
"""


def test_a_request_that_nobody_answers_shows_how_the_node_ended_and_what_it_printed(tmp_path: Path) -> None:
    node = Serving(tmp_path / "mistreated", "pipeline.mode=off")
    before = time.monotonic()
    try:
        node.start()
        assert node.get("/v1/topics") == {"topics": []}
        ports = [int(address.rpartition(":")[2]) for address in (node.kafka, node.http, node.rpc)]
        assert all(port in PORTS for port in ports), "a client may be given one while the node is down"
        node.kill()
        for ask in (lambda: node.get("/v1/topics"), lambda: node.metric("mainstem_fetch_bytes_total")):
            with pytest.raises(AssertionError, match=r"mistreated .* was ended by SIGKILL[\s\S]*ready kafka="):
                ask()
        assert "was ended by SIGKILL" in dict(reports(before))["node mistreated"]
        assert "node mistreated" not in dict(reports(time.monotonic())), "it is no matter of the next test"
        node.start()
        assert "runs, process" in dict(reports(time.monotonic()))["node mistreated"]
        assert node.get("/v1/topics") == {"topics": []}, "at the same address"
    finally:
        node.close()


def test_the_report_of_a_failed_test_shows_its_nodes(tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING)
    failed = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path),
         str(tmp_path / "test_failing.py")],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert failed.returncode == 1, failed.stdout
    assert "the node did not start: it ended with exit code 2" in failed.stdout
    assert "node short-lived" in failed.stdout
    assert failed.stdout.count("can't open 'serve'") >= 2, "in the error, and in the report of the node"
