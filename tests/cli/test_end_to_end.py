"""The commands against a real node, as a person would use them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.documented import documented_keys, keys_of
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

    def started(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A command that runs on; the caller ends it."""
        return subprocess.Popen(
            [sys.executable, "-m", "mainstem.cli.main", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self._environment,
        )

    def left_by_its_reader(self, *arguments: str) -> str:
        """What a command says on stderr when nobody reads its output."""
        process = self.started(*arguments)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        with process.stderr as stream:
            said = stream.read().decode()
        assert process.wait(COMMAND_SECONDS_MAX) == 1
        return said


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
    mainstem("topic", "alter", "short", "--partitions", "4", "--set", "retention.bytes=1000")
    view = json.loads(mainstem("topic", "describe", "short", "--json"))
    assert len(view["partitions"]) == 4
    assert view["configs"] == {"retention.ms": "60000", "retention.bytes": "1000"}
    assert "retention.mz" in mainstem("topic", "alter", "short", "--config", "retention.mz=1", code=1)
    assert "whole number" in mainstem("topic", "alter", "short", "--set", "retention.ms=soon", code=1)
    mainstem("topic", "delete", "short", "--yes")
    topics = json.loads(mainstem("topic", "list", "--json"))["topics"]
    assert "short" not in [topic["name"] for topic in topics]
    assert "topic short: Broker: Unknown topic" in mainstem("topic", "describe", "short", code=1)


def test_topics_are_shown_without_http(mainstem: Shell) -> None:
    mainstem("topic", "create", "alone", "--partitions", "2")
    mainstem("produce", "alone", "-p", "1", stdin=b"x\ny\n")
    view = json.loads(mainstem("topic", "describe", "alone", "--json", "--http", "127.0.0.1:1"))
    assert [queue["high_watermark"] for queue in view["partitions"]] == [0, 2]
    assert {queue["files"] for queue in view["partitions"]} == {None}
    topics = json.loads(mainstem("topic", "list", "--json", "--http", "127.0.0.1:1"))["topics"]
    assert {topic["stored_bytes"] for topic in topics} == {None}
    assert json.loads(mainstem("topic", "describe", "alone", "--json"))["partitions"][1]["unsplit_bytes"] > 0


def test_a_refused_line_is_named_and_the_others_are_sent(mainstem: Shell) -> None:
    mainstem("topic", "create", "small", "--set", "max.message.bytes=1000")
    error = mainstem("produce", "small", stdin=b"one\n" + b"2" * 5000 + b"\nthree\n", code=1)
    assert "1 of 3 messages were not acknowledged; the first: line 2 of stdin (4.9 KiB)" in error
    assert mainstem("consume", "small") == "one\nthree\n"


def test_a_reader_that_leaves_is_no_traceback(mainstem: Shell) -> None:
    mainstem("topic", "create", "long", "--partitions", "1")
    mainstem("produce", "long", stdin=b"line\n" * 50_000)
    for arguments in (["consume", "long"], ["topic", "list", "--json"], ["topic", "describe", "long"]):
        assert mainstem.left_by_its_reader(*arguments) == ""


def test_unknown_groups_are_told(mainstem: Shell) -> None:
    assert "there is no group nobody" in mainstem("group", "describe", "nobody", code=1)
    assert "GROUP_ID_NOT_FOUND" in mainstem("group", "delete", "nobody", code=1)
    assert "no offsets" in mainstem("group", "reset-offsets", "nobody", "--to", "end", code=1)


def test_data_has_the_documented_keys(mainstem: Shell) -> None:
    outputs = {
        "topic create": mainstem("topic", "create", "keys", "--partitions", "1", "--json"),
        "produce": mainstem("produce", "keys", "-k", "a", "-H", "b=c", "--json", stdin=b"x\n"),
        "consume": mainstem("consume", "keys", "-g", "key-readers", "--json"),
        "topic list": mainstem("topic", "list", "--json"),
        "topic describe": mainstem("topic", "describe", "keys", "--json"),
        "topic alter": mainstem("topic", "alter", "keys", "--set", "retention.ms=1", "--json"),
        "group list": mainstem("group", "list", "--json"),
        "group describe": mainstem("group", "describe", "key-readers", "--json"),
        "group reset-offsets": mainstem("group", "reset-offsets", "key-readers", "--to", "end", "--json"),
        "group delete": mainstem("group", "delete", "key-readers", "--json"),
        "bench produce": mainstem("bench", "produce", "-t", "keys", "-n", "5", "--json"),
        "bench consume": mainstem("bench", "consume", "-t", "keys", "--json"),
        "bench latency": mainstem("bench", "latency", "-t", "keys", "--rate", "50", "--seconds", "0.1", "--json"),
        "topic delete": mainstem("topic", "delete", "keys", "--yes", "--json"),
        "split status": mainstem("split", "status", "--json"),
        "cluster status": mainstem("cluster", "status", "--json"),
        "doctor": mainstem("doctor", "--json"),
    }
    documented = documented_keys()
    assert outputs.keys() == documented.keys()
    for words, output in outputs.items():
        assert keys_of(json.loads(output), documented[words]) == documented[words], words


def test_every_metric_is_documented_and_no_other(node: Serving, mainstem: Shell) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text().split("## Metrics", 1)[1]
    documented = set(re.findall(r"^\| `(mainstem_\w+)` \|", page, re.MULTILINE))
    mainstem("topic", "create", "refusing", "--set", "max.message.bytes=100")
    mainstem("produce", "refusing", stdin=b"2" * 1000, code=1)  # refused requests are counted from the first one on
    with urllib.request.urlopen(f"http://{node.http}/metrics", timeout=30) as answer:
        told = set(re.findall(r"^# TYPE (\w+) ", answer.read().decode(), re.MULTILINE))
    assert documented == told


def test_a_follower_tells_that_its_node_went_and_came_back(tmp_path: Path) -> None:
    node = Serving(tmp_path, "pipeline.mode=off", "groups.rebalance_delay_ms=0").start()
    shell = Shell(node)
    shell("topic", "create", "followed", "--partitions", "1")
    follower = shell.started("consume", "followed", "--group", "followers", "--follow")
    try:
        assert follower.stdout is not None
        assert follower.stderr is not None
        shell("produce", "followed", stdin=b"before\n")
        assert follower.stdout.readline() == b"before\n"
        node.kill()
        assert b"lost the node" in follower.stderr.readline()
        node.start()
        shell("produce", "followed", stdin=b"after\n")
        assert follower.stdout.readline() == b"after\n"
        assert b"is back" in follower.stderr.readline()
        follower.terminate()
        assert follower.wait(COMMAND_SECONDS_MAX) == 0
        described = json.loads(shell("group", "describe", "followers", "--json"))
        assert [queue["committed"] for queue in described["partitions"]] == [2]
    finally:
        follower.kill()
        follower.communicate()
        node.close()


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
