"""Outputs on a terminal of 80 columns: lines that fit it, and every value whole."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import msgspec
import pytest
from tests.cli.fake_node import serving
from tests.console.views import FLIGHTS

from mainstem.cli.main import run
from mainstem.cli.terminal.output import counted, print_fields, print_table
from mainstem.cli.topic.describe import print_topic
from mainstem.cli.topic.view import PartitionTree, TopicTree
from mainstem.console.views.of_cluster import ClusterView, DiskView, NodeView, ReplicaView, WriteGroupView
from mainstem.console.views.of_split import DamagedBlockView, DamagedFileView, LeaseView, SplitView, SplitWriteGroupView
from mainstem.console.views.of_store import (
    CompactionsView,
    CompactionView,
    LevelView,
    MergesView,
    MergeView,
    RemoteView,
    RemoteWriteGroupView,
    StoreUsageView,
    StoreView,
    StoreWriteGroupView,
    TopicUsageView,
    UsageLevelView,
)

WIDTH = 80
HOST = "broker-17.rack-b.messaging.example.com"
DIRECTORY = "/mnt/disks/nvme-eui.0025385b21401f2a-part1/mainstem/production/write"

NODES = [
    NodeView(
        node_id=node_id, host=HOST, port=19092, rpc=f"{HOST}:19093", http=f"0.0.0.0:{19080 + node_id}",
        roles=("broker", "storage", "nameserver") if node_id != 7 else ("broker",), version="0.12.10",
        uptime_seconds=400_000.0, rack="eu-central-1b", machine="rack-b-17", state="suspected", level_newest=2,
        reason="the metadata leader has heard nothing of it for 12.3 s, and neither has node 3, which leads group 1",
        not_back=(1, 2, 3), forgot="its directories are older than what the others remember of its starts",
    )
    for node_id in (12, 7, 3)
]  # fmt: skip
CLUSTER = ClusterView(
    cluster_id="J5p4kC1mQ0uYk3n2bqzX9A",
    nodes=NODES,
    write_groups=[
        WriteGroupView(
            group=group, leader=-1 if group else 12, term=123_456, committed=987_654_321_012,
            replicas=[
                ReplicaView(node=node, lag_blocks=1_234_567, active=False, voter=False) for node in (12, 7, 3)
            ],
        )
        for group in (11, 0)
    ],
    write_disk=DiskView(path=DIRECTORY, used_bytes=1 << 38, free_bytes=1 << 41, total_bytes=1 << 42),
    store_disk=DiskView(path=DIRECTORY + "/../store", used_bytes=1, free_bytes=2, total_bytes=3),
    topics=123_456,
    partitions=1_000_000,
    metadata_leader=12,
)  # fmt: skip
SPLIT = SplitView(
    groups={
        str(group): SplitWriteGroupView(
            committed=987_654_321, split=987_654_320, pruned=987_654_319, lag_bytes=1023 << 30,
            lag_seconds=360_000.5, files=123_456, waits_for="runs/7.run: 3 bytes have no room for header and footer",
        )
        for group in (10, 9)
    },
    splitter="restarting: the Spark application ended with exit code 143 after 17 minutes and 3 seconds",
    lease=LeaseView(holder=f"embedded ({HOST}:41234)", fence=1_234_567, expires_in_seconds=9.0),
    last_error="java.lang.OutOfMemoryError: unable to create native thread, possibly out of memory or limits reached",
    last_progress={
        "batch_id": 41, "timestamp": "2026-01-31T12:00:00.123Z", "slices": 1, "batches": 2, "bytes": 1 << 20,
        "duration_ms": {"triggerExecution": 1234, "latestOffset": 5, "addBatch": 1100, "queryPlanning": 7},
        "dropped_batches": 3, "split_bytes_total": 1 << 33, "spark": "local[2,8] local-1769860000000",
        "unheard_of": "kept",
    },
    damaged_blocks=[DamagedBlockView(group=9, block=31, fault=f"{DIRECTORY}/3.wal at byte 4096", seconds=2.5)],
    damaged_files=[DamagedFileView(name="3.run", reason=f"{DIRECTORY}/3.run: it is not there", since_ms=17)],
)  # fmt: skip

SEGMENT = "a-topic-with-a-long-name/123456/0123456789abcdef0123456789abcdef/00000000009876543210.log"
SEGMENTS = LevelView(level=2, kind="queue segment", files=123_456, bytes=1023 << 40, batch_bytes=1022 << 40)
STORE = StoreView(
    levels=[SEGMENTS],
    groups={"10": StoreWriteGroupView(levels=[SEGMENTS]), "9": StoreWriteGroupView(levels=[SEGMENTS])},
    merges=MergesView(
        enabled=False, allowed=True, waiting_bytes=31 << 30, unfinished=True,
        under_way=[MergeView(group=10, level=2, inputs=2048, outputs=None, bytes=32 << 30, seconds=360_000.5)],
        last=MergeView(group=9, level=2, inputs=2048, outputs=123_456, bytes=32 << 30, seconds=360_000.5),
        merged_files=123_456, merged_bytes=1 << 40,
    ),
    compactions=CompactionsView(
        under_way=[
            CompactionView(group=10, inputs=2048, outputs=None, bytes=32 << 30, bytes_left=None, seconds=360_000.5)
        ],
        last=CompactionView(
            group=9, inputs=123_456, outputs=12_345, bytes=32 << 30, bytes_left=31 << 30, seconds=360_000.5
        ),
        passes=123_456, removed_bytes=1 << 41,
    ),
    damaged_files=[DamagedFileView(name=SEGMENT, reason=f"{DIRECTORY}/{SEGMENT} fails its CRC", since_ms=17)],
    store_disk=DiskView(path=DIRECTORY, used_bytes=1023 << 40, free_bytes=1 << 41, total_bytes=1 << 60),
    remote=RemoteView(
        url="s3://a-bucket-with-a-long-name/and-a-prefix-that-is-longer-than-a-terminal-is-wide/0123456789",
        fault="s3://bucket/x: AccessDenied: the credentials do not allow this: grant reading, writing and deleting",
        levels=[SEGMENTS],
        groups={
            "10": RemoteWriteGroupView(
                changes=123_456, considered=987_654_321, levels=[SEGMENTS], waiting_files=12_345,
                waiting_bytes=1023 << 40, uploading_files=12, leaving_files=123_456,
            )
        },
        waiting_files=12_345, waiting_bytes=1023 << 40,
        uploaded_files=12_345, uploaded_bytes=1 << 40, last_upload_seconds=360_000.5, upload_failures=1_234,
        last_upload_failure="write group 10: s3://bucket/x: the store asks for fewer requests (SlowDown)",
        damaged_files=[DamagedFileView(name=SEGMENT, reason=f"{SEGMENT}: there is no such object", since_ms=17)],
    ),
)  # fmt: skip

TOPIC = "a-topic-with-a-name-that-is-longer-than-a-terminal-is-wide-as-some-generated-names-are-0123456789"
SEGMENT_USAGE = UsageLevelView(level=2, kind="queue segment", files=123_456, bytes=1023 << 40)
USAGE = StoreUsageView(
    topics=[
        TopicUsageView(
            topic_number=1, name=TOPIC, journal_bytes=17, stored_bytes=1023 << 40, levels=[SEGMENT_USAGE],
            remote_bytes=1023 << 40, remote_levels=[SEGMENT_USAGE],
        ),
        TopicUsageView(topic_number=2**32 - 1, name=None, journal_bytes=0, stored_bytes=5, levels=[]),
    ],
    topics_left_out=123_456,
    others=TopicUsageView(topic_number=None, name=None, journal_bytes=1, stored_bytes=0, levels=[]),
    levels=[SEGMENTS],
    journal_bytes=1 << 40,
    unread_files=123_456,
    unread_bytes=1023 << 40,
    write_disk=DiskView(path=DIRECTORY, used_bytes=1 << 38, free_bytes=1 << 41, total_bytes=1 << 42),
    store_disk=DiskView(path=DIRECTORY, used_bytes=1023 << 40, free_bytes=1 << 41, total_bytes=1 << 60),
    remote_levels=[SEGMENTS],
)  # fmt: skip


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


@pytest.fixture
def node() -> Iterator[str]:
    answers = {
        "/v1/cluster": (200, msgspec.json.encode(CLUSTER)),
        "/v1/split": (200, msgspec.json.encode(SPLIT)),
        "/v1/store": (200, msgspec.json.encode(STORE)),
        "/v1/store/usage": (200, msgspec.json.encode(USAGE)),
        "/readyz": (503, b"disk 1 failed: " + DIRECTORY.encode() + b": Input/output error\n"),
    }
    with serving(answers) as address:
        yield address


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The output of a command; every line fits, and none was cut."""

    def command(*arguments: str, code: int = 0) -> str:
        assert run(arguments) == code
        return fitting(capsys.readouterr().out)

    return command


def fitting(text: str) -> str:
    assert text
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    assert "…" not in text
    return text


def holds(text: str, value: str) -> bool:
    """Whether a value stands in a text as a whole, on one line or folded below itself in one column."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        for place in range(len(line)):
            if not value.startswith(line[place]) or (place and line[place - 1] != " "):
                continue
            rest = value
            for below in lines[number:]:
                part = re.split(r" {2,}", below[place:].rstrip())[0]
                if rest.startswith(part) and part:
                    rest = rest.removeprefix(part).lstrip()
                elif part.startswith(rest):
                    rest = ""
                else:
                    break
                if not rest:
                    return True
    return False


def test_holds_knows_cut_values() -> None:
    assert holds("a  one two\n   three", "one two three")
    assert holds("a  /mnt/di\n   sk", "/mnt/disk")
    assert not holds("a  one two\n   thr", "one two three")
    assert not holds("a  one two\n   …", "one two three")


def test_cluster_status(shown: Callable[..., str], node: str) -> None:
    text = shown("cluster", "status", "--http", node)
    for it in NODES:
        for value in (f"{HOST}:19092", it.http or "", it.version, "4 d 15 h", "eu-central-1b", "rack-b-17", it.state):
            assert holds(text, value), value
        assert holds(text, f"node {it.node_id} is suspected: {it.reason}")
        assert f"node {it.node_id} has forgotten what it acknowledged" in text
    assert holds(text, "machine rack-b-17 has several replicas of 2 write groups, which fail together")
    for value in (
        "J5p4kC1mQ0uYk3n2bqzX9A", "123,456 topics", "1,000,000 partitions", "987654321012", "none",
        "3 (learner, 1234567 behind, silent), 7 (learner, 1234567 behind, silent), "
        "12 (learner, 1234567 behind, silent)",
        f"256.0 GiB used by Mainstem, 2.0 TiB of 4.0 TiB free: {DIRECTORY}",
    ):  # fmt: skip
        assert holds(text, value), value


def test_store_usage(shown: Callable[..., str], node: str) -> None:
    text = shown("store", "usage", "--http", node)
    for value in (
        TOPIC, "├ journal", "├ level 2, queue segments", "└ remote, queue segments", "123,456", "1023.0 TiB",
        "123,456 other topics", "remote tier",
    ):  # fmt: skip
        assert holds(text, value), value
    assert "##" in text
    assert holds(text, "(deleted topic, number 4294967295)")


def test_nodes_and_write_groups_come_in_order(shown: Callable[..., str], node: str) -> None:
    text = shown("cluster", "status", "--http", node)
    assert text.index("node 3 is") < text.index("node 7 is") < text.index("node 12 is")
    told = [int(number) for number in re.findall(r"^ *(\d+) +(?:none|12) +123456 ", text, re.MULTILINE)]
    assert told == [0, 11]


def test_split_status(shown: Callable[..., str], node: str) -> None:
    text = shown("split", "status", "--http", node)
    assert "{" not in text, "figures are told in words"
    group = SPLIT.groups["9"]
    for value in (
        "987654321", "987654320", "987654319", "1023.0 GiB", "4 d 4 h", "123456", SPLIT.splitter,
        f"embedded ({HOST}:41234), fence 1234567, 9.0 s left", SPLIT.last_error or "",
        f"write group 10: {group.waits_for}", f"3.run: {DIRECTORY}/3.run: it is not there",
        "trigger 41, started 2026-01-31T12:00:00.123Z", "1 slice, 2 batches, 1.0 MiB",
        "3 batches dropped, of topics that no longer exist", "8.0 GiB since the splitter started",
        "took triggerExecution 1.2 s, latestOffset 5 ms, addBatch 1.1 s, queryPlanning 7 ms",
        "on local[2,8] local-1769860000000", "unheard_of: kept",
    ):  # fmt: skip
        assert holds(text, value), value


def test_store_status(shown: Callable[..., str], node: str) -> None:
    text = shown("store", "status", "--http", node)
    for value in (
        "10", "9", "all", "123456", "1023.0 TiB", "1022.0 TiB", "queue segment", "off (pipeline.merge): mainstem store "
        "merge does them", "write group 10: 2,048 files, 32.0 GiB, to level 2, for 4 d 4 h",
        "write group 9: 2,048 files into 123456, 32.0 GiB, to level 2, 4 d 4 h ago",
        "31.0 GiB are worth merging; some files were not looked at yet",
        "123,456 files into 1.0 TiB since the node started",
        "write group 10: 2,048 files, 32.0 GiB, for 4 d 4 h",
        "write group 9: 123,456 files of 32.0 GiB into 12345 of 31.0 GiB, 4 d 4 h ago",
        "123,456 compactions removed 2.0 TiB since the node started", f"{SEGMENT}: {DIRECTORY}/{SEGMENT} fails its CRC",
        "remote", "s3://a-bucket-with-a-long-name", "AccessDenied", "12,345 files, 1023.0 TiB", "123,456 files",
        "1,234 since the node started, the last: write group 10", f"{SEGMENT}: there is no such object",
    ):  # fmt: skip
        assert holds(text, value), value
    assert re.findall(r"^ *(\d+|all) +2 ", text, re.MULTILINE) == ["9", "10", "all"], "groups in the order of numbers"


def test_doctor(shown: Callable[..., str], node: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown("doctor", "--http", node, code=1)
    assert run(["doctor", "--http", node, "--json"]) == 1
    for check in json.loads(capsys.readouterr().out)["checks"]:
        assert holds(text, check["name"])
        assert holds(text, check["state"])
        # How much of a disk is free changes while we look.
        for value in (check["found"], check["advice"]):
            assert not value or "free" in value or holds(text, value) or holds(text, f"→ {value}"), value


def test_topic_describe_with_long_offsets(capsys: pytest.CaptureFixture[str]) -> None:
    view = FLIGHTS.partitions[0]
    one = PartitionTree(
        partition=123_456, leader=12, leader_epoch=1_234_567, replicas=[123_456, 7, 12], in_sync=[12, 7],
        log_start=8_765_432_109, high_watermark=9_876_543_210,
        write_group=11, split_end=9_876_543_200, end=9_876_543_210, unsplit_bytes=1023 << 30, stored_bytes=1023 << 40,
        files=view.files, segments=view.segments,
    )  # fmt: skip
    topic = TopicTree(
        name="t" * 249, topic_id=FLIGHTS.topic_id, internal=True, partitions=[one],
        configs={"retention.ms": "604800000", "cleanup.policy": "delete", "min.insync.replicas": "2"},
    )  # fmt: skip
    print_topic(topic, all_files=True)
    text = fitting(capsys.readouterr().out)
    for value in (
        "t" * WIDTH, "cleanup.policy=delete, min.insync.replicas=2, retention.ms=604800000", "123456", "8765432109",
        "9876543200", "9876543210", "123456, 7, 12", "1023.0 GiB", "1023.0 TiB",
        "runs/00000007.run", "00000000000000000004.wal",
    ):  # fmt: skip
        assert holds(text, value), value


def test_text_is_folded_and_figures_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    reader = "consumer-orders-1-8f14e45f-ceea-4671-8b2a-1d2f3a4b5c6d 2001:db8:85a3::8a2e:370:7334"
    print_table(["~TOPIC", ">LAG", "~MEMBER"], [["orders." * 12, 987_654_321_012, reader]], empty="none")
    text = fitting(capsys.readouterr().out)
    assert re.search(r" 987654321012 ", text)
    assert holds(text, "orders." * 12)
    assert holds(text, reader)


def test_a_table_whose_figures_do_not_fit_becomes_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    figures = [10**18 + number for number in range(6)]
    print_table([f">FIGURE {number}" for number in range(6)], [figures, figures], empty="none")
    text = fitting(capsys.readouterr().out)
    assert [line.split() for line in text.splitlines()[:6]] == [
        ["FIGURE", str(number), str(figure)] for number, figure in enumerate(figures)
    ]
    assert text.count(str(figures[5])) == 2


def test_fields_are_folded_below_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields([("disk 1", DIRECTORY * 2), ("lease", "nobody")])
    text = fitting(capsys.readouterr().out)
    assert holds(text, DIRECTORY * 2)
    assert "\nlease   nobody\n" in text


def test_no_line_ends_in_spaces(shown: Callable[..., str], node: str) -> None:
    for command in ("cluster", "split"):
        assert not re.search(r" $", shown(command, "status", "--http", node), re.MULTILINE)


def test_output_that_is_piped_is_not_folded(
    monkeypatch: pytest.MonkeyPatch, node: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS")
    assert run(["cluster", "status", "--http", node]) == 0
    assert f"256.0 GiB used by Mainstem, 2.0 TiB of 4.0 TiB free: {DIRECTORY}" in capsys.readouterr().out


def test_counts_have_a_singular() -> None:
    assert [counted(1, "message"), counted(2000, "message"), counted(2, "entry", "entries")] == [
        "1 message", "2,000 messages", "2 entries",
    ]  # fmt: skip
