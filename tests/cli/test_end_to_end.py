"""The commands against a real node, as a person would use them."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from tests.cli.documented import documented_keys, keys_of
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

from mainstem.cli.main import run


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    remote = tmp_path_factory.mktemp("remote")
    tiers = f"remote_dir={remote}", "read_cache.disk_bytes=16777216"
    serving = Serving(tmp_path_factory.mktemp("node"), "pipeline.mode=off", *tiers)
    serving.start()
    yield serving
    serving.close()


@contextmanager
def only(variables: Mapping[str, str]) -> Iterator[None]:
    """These are all the environment there is."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def standard_streams(stdin: bytes) -> Iterator[tuple[BytesIO, BytesIO]]:
    """Standard output and standard error of what is done within, which reads `stdin`."""
    out, err = BytesIO(), BytesIO()
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = (TextIOWrapper(stream, "utf-8") for stream in (BytesIO(stdin), out, err))
    try:
        yield out, err
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            stream.detach()
        sys.stdin, sys.stdout, sys.stderr = before


class Shell:
    """Runs `mainstem` commands against one node."""

    def __init__(self, node: Serving) -> None:
        self._environment = {
            "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
            "MAINSTEM_BOOTSTRAP": node.kafka,
            "MAINSTEM_HTTP": node.http,
        }
        self.told = ""
        """The lines of the last command on stderr."""

    def __call__(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> str:
        """A command in this process: an interpreter's start takes longer than most commands. Its standard output; of
        one that ends with another `code` than 0, what it says on stderr."""
        with only(self._environment), standard_streams(stdin) as (out, err):
            ended = run(arguments)
        return self._answer(ended, code, out.getvalue(), err.getvalue())

    def as_process(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> str:
        """The same in a process of its own, as people run it."""
        done = subprocess.run(
            [sys.executable, "-m", "mainstem.cli.main", *arguments],
            input=stdin,
            capture_output=True,
            env=self._environment,
            timeout=PATIENCE_SECONDS,
        )
        return self._answer(done.returncode, code, done.stdout, done.stderr)

    def _answer(self, ended: int, code: int, out: bytes, err: bytes) -> str:
        assert ended == code, err.decode()
        self.told = err.decode()
        return (out if code == 0 else err).decode()

    def started(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A command that runs on; the caller ends it."""
        return subprocess.Popen(
            [sys.executable, "-m", "mainstem.cli.main", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
        )

    def left_by_its_reader(self, *arguments: str) -> str:
        """The lines of a command on stderr when nobody reads its output."""
        process = self.started(*arguments)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        with process.stderr as stream:
            said = stream.read().decode()
        assert process.wait(PATIENCE_SECONDS) == 1
        return said


@pytest.fixture
def mainstem(node: Serving) -> Shell:
    return Shell(node)


def test_lines_come_back_with_keys_headers_and_order(mainstem: Shell) -> None:
    mainstem("topic", "create", "lines", "--partitions", "1")
    lines = b"".join(b"k%d:value %d\n" % (number % 7, number) for number in range(500))
    sent = mainstem.as_process("produce", "lines", "-K", ":", "-H", "from=test", "-z", "zstd", "--json", stdin=lines)
    assert json.loads(sent)["acknowledged"] == 500
    assert mainstem.as_process("consume", "lines", "--format", r"%k:%s\n").encode() == lines
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
    assert json.loads(mainstem("group", "list", "--json"))["groups"] == [
        {"group": "readers", "type": "classic", "state": "empty"}
    ]
    for options, count in (
        (("--state", "empty"), 1), (("--state", "stable"), 0), (("--state", "stable", "--state", "empty"), 1),
        (("--state", "empty", "--type", "share"), 0), (("--state", "empty", "--type", "classic"), 1),
    ):  # fmt: skip
        assert len(json.loads(mainstem("group", "list", "--json", *options))["groups"]) == count, options
    before = json.loads(mainstem("group", "describe", "readers", "--json"))
    assert sum(queue["lag"] for queue in before["partitions"]) == 0
    mainstem("group", "reset-offsets", "readers", "--to", "beginning")
    after = json.loads(mainstem("group", "describe", "readers", "--json"))
    assert sum(queue["lag"] for queue in after["partitions"]) == 300
    mainstem("group", "delete", "readers")
    assert json.loads(mainstem("group", "list", "--json"))["groups"] == []


def test_the_lag_counts_partitions_that_nobody_has_committed_for(mainstem: Shell) -> None:
    mainstem("topic", "create", "lagging", "--partitions", "4")
    for partition in range(4):
        mainstem("produce", "lagging", "-p", str(partition), stdin=b"x\n" * 100)
    mainstem("consume", "lagging", "-g", "slow", "-n", "30", "--batch-size", "30")
    told = json.loads(mainstem("group", "describe", "slow", "--json"))["partitions"]
    assert [queue["partition"] for queue in told] == [0, 1, 2, 3]
    assert None in [queue["committed"] for queue in told]
    assert sum(queue["lag"] for queue in told) == 370
    assert all(0 <= queue["lag_seconds"] < PATIENCE_SECONDS for queue in told)
    assert {queue["why"] for queue in told} == {"idle"}
    text = mainstem("group", "describe", "slow")
    assert text.startswith("consumer group slow: empty, classic, 0 members, lag 370, ")
    assert " behind\n" in text


def test_segments_are_told_for_each_partition(mainstem: Shell) -> None:
    mainstem("topic", "create", "spread", "--partitions", "4")
    for partition, count in ((0, 10), (1, 20), (3, 40)):
        mainstem("produce", "spread", "-p", str(partition), stdin=b"x\n" * count)
    told = json.loads(mainstem("topic", "describe", "spread", "--json"))["partitions"]
    assert [[(it["first_offset"], it["last_offset"]) for it in queue["segments"]] for queue in told] == [
        [(0, 9)], [(0, 19)], [], [(0, 39)],
    ]  # fmt: skip
    assert [sum(it["queue_bytes"] for it in queue["segments"]) for queue in told] == [
        queue["unsplit_bytes"] for queue in told
    ]


def test_reading_past_the_end_is_told(mainstem: Shell) -> None:
    mainstem("topic", "create", "short-one", "--partitions", "1")
    mainstem("produce", "short-one", stdin=b"a\nb\n")
    error = mainstem("consume", "short-one", "--from", "3", code=1)
    assert "offset 3 is past the end of partition 0 of short-one, which is 2; `--from end --follow` waits" in error
    assert mainstem("consume", "short-one", "--from", "2") == ""
    assert mainstem.told == "mainstem: nothing to read: short-one has no messages there\n"
    mainstem("topic", "create", "two", "--partitions", "2")
    mainstem("produce", "two", "-p", "1", stdin=b"a\nb\nc\n")
    assert mainstem("consume", "two", "--from", "2") == "c\n"
    assert mainstem.told == "mainstem: these partitions end before offset 2: 0\n"


def test_from_and_until_take_ages_and_offsets(mainstem: Shell) -> None:
    mainstem("topic", "create", "aged", "--partitions", "1")
    now_ms = time.time_ns() // 1_000_000
    lines = [
        json.dumps({"value": f"{hours} h", "timestamp": now_ms - hours * 3_600_000}).encode() for hours in (5, 3, 1)
    ]
    mainstem("produce", "aged", "--json-lines", stdin=b"\n".join(lines))
    assert mainstem("consume", "aged", "--from", "4h") == "3 h\n1 h\n"
    assert mainstem("consume", "aged", "--until", "2h") == "5 h\n3 h\n"
    assert mainstem("consume", "aged", "--from", "4h", "--until", "2h30m") == "3 h\n"
    assert mainstem("consume", "aged", "--from", "1", "--until", "2") == "3 h\n"
    assert mainstem("consume", "aged", "--until", "-1") == "5 h\n3 h\n"
    assert mainstem("consume", "aged", "--from", "2", "--until", "1") == ""


def test_tail_has_the_youngest_of_all_partitions(mainstem: Shell) -> None:
    mainstem("topic", "create", "tailed", "--partitions", "3")
    lines = [
        json.dumps({"value": f"{number}", "timestamp": 1000 + number, "partition": number * 7 % 3}).encode()
        for number in range(60)
    ]
    mainstem("produce", "tailed", "--json-lines", "--keep-partitions", stdin=b"\n".join(lines))
    assert mainstem("consume", "tailed", "--tail", "4") == "56\n57\n58\n59\n"
    assert len(mainstem("consume", "tailed", "--tail", "1000").split()) == 60
    follower = mainstem.started("consume", "tailed", "--tail", "2", "--follow")
    assert follower.stdout is not None
    try:
        assert [follower.stdout.readline(), follower.stdout.readline()] == [b"58\n", b"59\n"]
        mainstem("produce", "tailed", stdin=b"behind\n")
        assert follower.stdout.readline() == b"behind\n"
        follower.terminate()
        assert follower.wait(PATIENCE_SECONDS) == 0
    finally:
        follower.kill()
        follower.communicate()


def test_json_lines_make_the_way_out_and_in_without_a_loss(mainstem: Shell) -> None:
    """Keys, values, headers, tombstones, timestamps and partitions; whatever bytes they are."""
    for topic in ("original", "copy"):
        mainstem("topic", "create", topic, "--partitions", "3")
    encoded = base64.b64encode(bytes(range(256))).decode()
    messages: list[dict[str, object]] = [
        {"key": "k", "value": "plain"},
        {"key": None, "value": "no key"},
        {"key": "gone", "value": None},
        {"key": "", "value": ""},
        {"key_base64": encoded, "value_base64": encoded},
        {"key": "ä\n\u0000", "value": "line\u2028end \U0001f600"},
        {"value": "h", "headers": [["a", "1"], ["a", None], ["b", {"base64": encoded}], ["", ""]]},
    ]
    lines = [
        json.dumps(message | {"timestamp": 1_000_000 + number, "partition": number % 3})
        for number, message in enumerate(messages)
    ]
    mainstem("produce", "original", "--json-lines", "--keep-partitions", stdin="\n".join(lines).encode())
    exported = mainstem("consume", "original", "--json")
    mainstem("produce", "copy", "--json-lines", "--keep-partitions", stdin=exported.encode())
    original, copy = (
        sorted((json.loads(line) for line in text.split("\n") if line), key=lambda it: int(it["timestamp"]))
        for text in (exported, mainstem("consume", "copy", "--json"))
    )
    assert len(original) == len(messages)
    for sent, first, second in zip(messages, original, copy, strict=True):
        assert first | {"topic": ""} == second | {"topic": ""}
        assert {key: first[key] for key in sent} == sent


def test_a_wrong_json_line_is_named_and_the_others_are_sent(mainstem: Shell) -> None:
    mainstem("topic", "create", "wrong", "--partitions", "1")
    error = mainstem("produce", "wrong", "--json-lines", stdin=b'{"value":"a"}\n{"vlaue":"b"}\n{"value":"c"}\n', code=1)
    assert "1 of 3 messages was not acknowledged; the first: line 2 of stdin: " in error
    assert "unknown field `vlaue`" in error
    assert mainstem("consume", "wrong") == "a\nc\n"


def test_one_message_is_one_message(mainstem: Shell) -> None:
    mainstem("topic", "create", "single", "--partitions", "1")
    mainstem("produce", "single", stdin=b"x\n")
    assert mainstem.told.startswith("produced 1 message, 1 B to single in ")


def test_sizes_and_durations_of_topic_configs_have_units(mainstem: Shell) -> None:
    mainstem("topic", "create", "units", "--set", "retention.ms=7d", "--set", "retention.bytes=10GB")
    configs = json.loads(mainstem("topic", "describe", "units", "--json"))["configs"]
    assert configs == {"retention.ms": "604800000", "retention.bytes": "10000000000"}
    assert "256MB for powers of 1000" in mainstem("topic", "alter", "units", "--set", "retention.bytes=256M", code=2)


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


def test_the_store_of_a_new_node_is_empty_and_nothing_waits_to_be_merged(mainstem: Shell) -> None:
    view = json.loads(mainstem("store", "status", "--json"))
    documented = documented_keys()["store status"]
    assert keys_of(view, documented) | {key for key in documented if ".levels[]" in key} == documented
    assert (view["levels"], view["damaged_files"], view["merges"]["waiting_bytes"]) == ([], [], 0)
    assert {name: group["levels"] for name, group in view["groups"].items()} == {str(it): [] for it in range(4)}
    assert view["merges"]["allowed"]
    text = mainstem("store", "status")
    assert "the queue store has no files" in text
    assert "nothing is worth merging" in text


def test_usage_has_what_the_journal_holds_of_each_topic(mainstem: Shell) -> None:
    mainstem("topic", "create", "heavy", "--partitions", "2")
    mainstem("topic", "create", "light", "--partitions", "1")
    mainstem("produce", "heavy", stdin=b"x" * 400_000 + b"\n")
    mainstem("produce", "light", stdin=b"x\n")
    usage = json.loads(mainstem("store", "usage", "--json"))
    by_name = {topic["name"]: topic for topic in usage["topics"]}
    assert by_name["heavy"]["journal_bytes"] > 400_000 > by_name["light"]["journal_bytes"] > 0
    assert usage["journal_bytes"] == sum(topic["journal_bytes"] for topic in usage["topics"])
    sizes = [topic["journal_bytes"] for topic in usage["topics"]]
    assert sizes == sorted(sizes, reverse=True)
    assert (usage["topics_left_out"], usage["unread_files"], usage["levels"]) == (0, 0, [])
    (one,) = json.loads(mainstem("store", "usage", "--topic", "light", "--json"))["topics"]
    assert one == by_name["light"]
    assert "there is no topic no-such" in mainstem("store", "usage", "--topic", "no-such", code=1)


def test_topics_are_shown_without_http(mainstem: Shell) -> None:
    mainstem("topic", "create", "alone", "--partitions", "2")
    mainstem("produce", "alone", "-p", "1", stdin=b"x\ny\n")
    view = json.loads(mainstem("topic", "describe", "alone", "--json", "--http", "127.0.0.1:1"))
    assert [queue["high_watermark"] for queue in view["partitions"]] == [0, 2]
    assert {queue["files"] for queue in view["partitions"]} == {None}
    topics = json.loads(mainstem("topic", "list", "--json", "--http", "127.0.0.1:1"))["topics"]
    assert {topic["stored_bytes"] for topic in topics} == {None}
    empty, full = json.loads(mainstem("topic", "describe", "alone", "--json"))["partitions"]
    assert full["unsplit_bytes"] > 0
    (segment,) = full["segments"]
    assert (segment["first_offset"], segment["last_offset"], segment["indexed"]) == (0, 1, False)
    assert segment["queue_bytes"] == full["unsplit_bytes"]
    assert segment["index_rows"] >= 1
    assert empty["segments"] == []
    only = json.loads(mainstem("topic", "describe", "alone", "--partition", "1", "--json"))["partitions"]
    assert [queue["partition"] for queue in only] == [1]
    assert "topic alone has no partition 2; it has 2" in mainstem("topic", "describe", "alone", "-p", "2", code=1)


def test_a_refused_line_is_named_and_the_others_are_sent(mainstem: Shell) -> None:
    mainstem("topic", "create", "small", "--set", "max.message.bytes=1000")
    error = mainstem("produce", "small", stdin=b"one\n" + b"2" * 5000 + b"\nthree\n", code=1)
    assert "1 of 3 messages was not acknowledged; the first: line 2 of stdin (4.9 KiB)" in error
    assert mainstem("consume", "small") == "one\nthree\n"


def test_a_reader_that_leaves_is_no_traceback(mainstem: Shell) -> None:
    mainstem("topic", "create", "long", "--partitions", "1")
    mainstem("produce", "long", stdin=b"line\n" * 50_000)
    for arguments in (["consume", "long"], ["topic", "list", "--json"], ["topic", "describe", "long"]):
        assert mainstem.left_by_its_reader(*arguments) == ""


def test_unknown_groups_are_told(mainstem: Shell) -> None:
    assert "there is no consumer group nobody" in mainstem.as_process("group", "describe", "nobody", code=1)
    assert "GROUP_ID_NOT_FOUND" in mainstem("group", "delete", "nobody", code=1)
    assert "no offsets" in mainstem("group", "reset-offsets", "nobody", "--to", "end", code=1)


ELSEWHERE = {
    "cluster explain",
    "cluster transfer-leader", "cluster drain", "cluster rebalance", "cluster rebalance --dry-run", "cluster remove",
    "cluster add", "cluster write-groups", "cluster move-queue",
    "cluster replace", "split prepare", "store repair",
    "store repair --manifest",
    "store adopt", "store adopt --export", "store adopt --into", "store give-up", "store verify --objects",
    "acl add", "acl list", "acl remove", "acl why", "cert authority", "cert create", "cert renew", "cert show",
    "cert revoke", "token create", "token list", "token renew", "token expire",
    "profile add", "profile list", "profile remove", "profile show", "user add", "user list", "user remove",
    "tenant create", "tenant alter", "tenant list", "tenant describe", "tenant usage", "tenant delete",
    "txn list", "txn list --hanging", "txn describe", "txn abort",
    "audit tail", "quota list", "quota set", "quota remove", "quota describe",
    "config list", "config describe", "config alter",
}  # fmt: skip
"""They need other nodes, or minutes, or a stopped node, or an object store: `test_commands.py` has the first two,
`store/` the six behind them, `end_to_end/tiers/test_give_up.py` what is given up; rules, certificates, profiles and
users have tests of their own in `clusters/`."""


def directories(node: Serving) -> list[str]:
    return ["--write-dir", str(node.write_dir), "--store-dir", str(node.store_dir)]


def test_data_has_the_documented_keys(node: Serving, mainstem: Shell, tmp_path: Path) -> None:
    probed = tmp_path / "probed"
    probed.mkdir()
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
        "store export": mainstem("store", "export", "keys", "--to", str(tmp_path), "--json"),
        "topic delete": mainstem("topic", "delete", "keys", "--yes", "--json"),
        "split status": mainstem("split", "status", "--json"),
        "store status": mainstem("store", "status", "--json"),
        "store usage": mainstem("store", "usage", "--json"),
        "store verify": mainstem("store", "verify", *directories(node), "--json"),
        "store retain": mainstem("store", "retain", "--json"),
        "store probe": mainstem("store", "probe", str(probed), "--json"),
        "cluster status": mainstem("cluster", "status", "--json"),
        "cluster feature-level": mainstem("cluster", "feature-level", "--json"),
        "doctor": mainstem("doctor", "--json"),
        "top": mainstem("top", "--once", "--interval", "100ms", "--json"),
    }
    documented = documented_keys()
    assert outputs.keys() | ELSEWHERE == documented.keys()
    for words, output in outputs.items():
        assert keys_of(json.loads(output), documented[words]) == documented[words], words


TOLD_BY_OTHER_NODES = {
    "mainstem_audit_dropped_total",
    "mainstem_audit_records_total",
    "mainstem_authentications_total",
    "mainstem_group_lag_messages",
    "mainstem_group_lag_partition_messages",
    "mainstem_group_lag_seconds",
    "mainstem_group_lag_why",
    "mainstem_http_certificate_expires_seconds",
    "mainstem_http_handshakes_total",
    "mainstem_http_tls_failures_total",
    "mainstem_link_backlog_bytes",
    "mainstem_link_reads_total",
    "mainstem_link_tail_bytes",
    "mainstem_link_tail_reads_total",
    "mainstem_link_tails",
    "mainstem_link_unmetered_bytes_total",
    "mainstem_quota_throttled_total",
    "mainstem_rpc_certificate_expires_seconds",
    "mainstem_rpc_revocation_list_expires_seconds",
    "mainstem_share_group_acknowledgements_total",
    "mainstem_share_group_acquisitions_total",
    "mainstem_share_group_archived_total",
    "mainstem_share_group_locks_expired_total",
    "mainstem_share_group_records_acquired",
    "mainstem_shared_store_bytes",
    "mainstem_stale_verdicts_total",
    "mainstem_telemetry_dropped_total",
    "mainstem_telemetry_pushes_total",
}
"""Metrics of nodes that audit, with a listener that speaks SASL, with TLS on the HTTP port and between nodes, that are
no storage, with clients over their quotas or that push metrics, with groups that are behind, with share groups, with a
shared store, with other nodes."""


def test_every_metric_is_documented_and_no_other(node: Serving, mainstem: Shell) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    documented = set(re.findall(r"^\| `(mainstem_\w+)` \|", page, re.MULTILINE))
    mainstem("topic", "create", "refusing", "--set", "max.message.bytes=100")
    mainstem("produce", "refusing", stdin=b"2" * 1000, code=1)  # refused requests are counted from the first one on
    with urllib.request.urlopen(f"http://{node.http}/metrics", timeout=PATIENCE_SECONDS) as answer:
        told = set(re.findall(r"^# TYPE (\w+) ", answer.read().decode(), re.MULTILINE))
    assert documented == told | TOLD_BY_OTHER_NODES


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
def test_a_node_on_ipv6_is_reached_at_the_addresses_it_tells(tmp_path: Path) -> None:
    node = Serving(tmp_path, "pipeline.mode=off")
    node.kafka = node.http = node.rpc = "[::1]:0"
    node.start()
    try:
        assert all(address.startswith("[::1]:") for address in (node.kafka, node.http, node.rpc))
        shell = Shell(node)
        shell("topic", "create", "six", "--partitions", "1")
        shell("produce", "six", stdin=b"hello\n")
        assert shell("consume", "six") == "hello\n"
        (told,) = json.loads(shell("cluster", "status", "--json"))["nodes"]
        assert (told["http"], told["rpc"]) == (node.http, node.rpc)
        text = shell("cluster", "status")
        assert re.search(rf" {re.escape(node.kafka)} +:{node.http.rpartition(':')[2]} ", text)
        (looked,) = json.loads(shell("top", "--once", "--json", "--interval", "100ms"))["nodes"]
        assert looked["connections"] is not None
        assert json.loads(shell("doctor", "--json", "--bootstrap", node.kafka, "--http", node.http))["ok"]
    finally:
        node.close()


def test_a_follower_tells_that_its_node_went_and_came_back(tmp_path: Path) -> None:
    node = Serving(tmp_path, "pipeline.mode=off").start()
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
        assert follower.wait(PATIENCE_SECONDS) == 0
        described = json.loads(shell("group", "describe", "followers", "--json"))
        assert [queue["committed"] for queue in described["partitions"]] == [2]
    finally:
        follower.kill()
        follower.communicate()
        node.close()


def test_status_of_cluster_and_split(mainstem: Shell, node: Serving) -> None:
    cluster = json.loads(mainstem("cluster", "status", "--json"))
    assert f"{cluster['nodes'][0]['host']}:{cluster['nodes'][0]['port']}" == node.kafka
    assert cluster["nodes"][0]["load"] is not None, "a node alone knows its own"
    told = mainstem("cluster", "explain", "--group", "0")
    assert "Node 1 leads it, as it is to" in told
    assert "this node is a cluster of its own" in told
    for group in json.loads(mainstem("split", "status", "--json"))["groups"].values():
        assert group["pruned"] <= group["split"] <= group["committed"]


def test_sigterm_ends_a_node_cleanly_and_a_second_node_is_kept_out(tmp_path: Path) -> None:
    node = Serving(tmp_path, "pipeline.mode=off").start()
    try:
        # Refused before anything is touched: the directory is locked.
        second = subprocess.run(
            [
                sys.executable,
                "-m",
                "mainstem.cli.main",
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--http",
                "127.0.0.1:0",
                "--rpc",
                "127.0.0.1:0",
                "--write-dir",
                str(node.write_dir),
                "--store-dir",
                str(node.store_dir),
            ],
            env={"PYTHONPATH": str(Path(__file__).parents[2] / "src")},
            capture_output=True,
            timeout=PATIENCE_SECONDS,
        )
        assert second.returncode == 1
        assert b"another node runs here" in second.stderr
        assert node.stop() == 0
    finally:
        node.close()
