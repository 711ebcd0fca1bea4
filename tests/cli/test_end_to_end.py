"""The commands against a real node, as a person would use them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.serving import Serving

COMMAND_SECONDS_MAX = 60


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("node"), "pipeline.mode=off", "groups.rebalance_delay_ms=0")
    serving.start()
    yield serving
    serving.close()


class Shell:
    """Runs `mainstem` commands against one node."""

    def __init__(self, node: Serving) -> None:
        self._environment = {
            "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
            "MAINSTEM_BOOTSTRAP": node.kafka,
            "MAINSTEM_HTTP": node.http,
        }

    def __call__(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "mainstem.cli.main", *arguments],
            input=stdin, capture_output=True, env=self._environment, timeout=COMMAND_SECONDS_MAX,
        )
        assert done.returncode == code, done.stderr.decode()
        return (done.stdout if code == 0 else done.stderr).decode()


@pytest.fixture
def mainstem(node: Serving) -> Shell:
    return Shell(node)


def test_lines_come_back_with_keys_headers_and_order(mainstem: Shell) -> None:
    mainstem("topic", "create", "lines", "--partitions", "1")
    lines = b"".join(b"k%d:value %d\n" % (number % 7, number) for number in range(500))
    sent = mainstem("produce", "lines", "-K", ":", "-H", "from=test", "-z", "zstd", "--json", stdin=lines)
    assert json.loads(sent)["acknowledged"] == 500
    assert mainstem("consume", "lines", "--format", r"%k:%s\n").encode() == lines
    last = json.loads(mainstem("consume", "lines", "--from", "-1", "--json"))
    assert (last["offset"], last["value"], last["headers"]) == (499, "value 499", [["from", "test"]])
    assert mainstem("consume", "lines", "--from", "10", "-n", "2", "--format", "%o ") == "10 11 "


def test_whole_files_are_messages(mainstem: Shell, tmp_path: Path) -> None:
    mainstem("topic", "create", "files", "--partitions", "1")
    (tmp_path / "one").write_bytes(b"a\nb\n")
    (tmp_path / "two").write_bytes(b"c")
    mainstem("produce", "files", "--whole", str(tmp_path / "one"), str(tmp_path / "two"))
    assert mainstem("consume", "files", "--format", r"%S,") == "4,1,"


def test_a_group_reads_on_where_it_stands_and_can_be_moved(mainstem: Shell) -> None:
    mainstem("topic", "create", "shared", "--partitions", "3")
    mainstem("produce", "shared", stdin=b"".join(b"%d\n" % number for number in range(300)))
    assert len(mainstem("consume", "shared", "-g", "readers").split()) == 300
    assert mainstem("consume", "shared", "-g", "readers") == ""
    assert json.loads(mainstem("group", "list", "--json"))["groups"] == [{"group": "readers", "state": "empty"}]
    before = json.loads(mainstem("group", "describe", "readers", "--json"))
    assert sum(queue["lag"] for queue in before["partitions"]) == 0
    mainstem("group", "reset-offsets", "readers", "--to", "beginning")
    after = json.loads(mainstem("group", "describe", "readers", "--json"))
    assert sum(queue["lag"] for queue in after["partitions"]) == 300
    mainstem("group", "delete", "readers")
    assert json.loads(mainstem("group", "list", "--json"))["groups"] == []


def test_topics_are_described_altered_and_deleted(mainstem: Shell) -> None:
    mainstem("topic", "create", "short", "--partitions", "2", "--config", "retention.ms=60000")
    assert "already exists" in mainstem("topic", "create", "short", code=1).lower().replace("_", " ")
    mainstem("topic", "create", "short", "--if-not-exists")
    mainstem("topic", "alter", "short", "--partitions", "4", "--config", "retention.bytes=1000")
    view = json.loads(mainstem("topic", "describe", "short", "--json"))
    assert len(view["partitions"]) == 4
    assert view["configs"] == {"retention.ms": "60000", "retention.bytes": "1000"}
    assert "retention.mz" in mainstem("topic", "alter", "short", "--config", "retention.mz=1", code=1)
    mainstem("topic", "delete", "short", "--yes")
    topics = json.loads(mainstem("topic", "list", "--json"))["topics"]
    assert "short" not in [topic["name"] for topic in topics]
    assert "there is no topic short" in mainstem("topic", "describe", "short", code=1)


def test_status_of_cluster_and_split(mainstem: Shell, node: Serving) -> None:
    cluster = json.loads(mainstem("cluster", "status", "--json"))
    assert f"{cluster['nodes'][0]['host']}:{cluster['nodes'][0]['port']}" == node.kafka
    for group in json.loads(mainstem("split", "status", "--json"))["groups"].values():
        assert group["pruned"] <= group["split"] <= group["committed"]


def test_sigterm_ends_a_node_cleanly_and_a_second_node_is_kept_out(tmp_path: Path) -> None:
    node = Serving(tmp_path, "pipeline.mode=off").start()
    try:
        # Refused before anything is touched: the directory is locked.
        second = subprocess.run(
            [
                sys.executable, "-m", "mainstem.cli.main", "serve",
                "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--rpc", "127.0.0.1:0",
                "--write-dir", str(node.write_dir), "--store-dir", str(node.store_dir),
            ],
            env={"PYTHONPATH": str(Path(__file__).parents[2] / "src")},
            capture_output=True, timeout=COMMAND_SECONDS_MAX,
        )
        assert second.returncode == 1
        assert b"another node runs here" in second.stderr
        assert node.stop() == 0
    finally:
        node.close()
