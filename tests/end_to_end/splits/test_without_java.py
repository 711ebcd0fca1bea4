"""A node on a machine without Java: it serves, says what is missing, and retention keeps disk 1 in bounds.

Nothing is ever split here, so what retention, DeleteRecords and DeleteTopics free is journal segments. The
journal keeps no pool, so that what is recycled leaves the disk; segments are much larger than what is sent unless
a test is about size, so that only their age can seal them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.end_to_end.shell import mainstem, mainstem_json
from tests.end_to_end.store import bytes_in, files_in
from tests.end_to_end.topics import VALUE_BYTES, Topics
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

LARGE, SMALL = 1 << 20, 1 << 16
"""Segment sizes in bytes."""
SETTLED_LOOKS = 15
SETTINGS = (
    "journal.segment_age_seconds=0.5",
    "journal.pool_segments=0",
    "journal.pool_segments_max=0",
    "storage.retention_check_seconds=0.2",
    "storage.prune_seconds=0.2",
    "storage.checkpoint_seconds=0.2",
    "storage.write_cache_bytes=0",
    "pipeline.start_bytes=1",
)
INSTALL = "openjdk-17-jre-headless"

Start = Callable[[int], Serving]


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which no java is found, by this process and by those it starts."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.fixture
def start(tmp_path: Path, no_java: None) -> Iterator[Start]:
    """`start(segment_bytes)`: a node of its own for the test."""
    started: list[Serving] = []

    def start(segment_bytes: int) -> Serving:
        node = Serving(tmp_path, *SETTINGS, f"journal.segment_bytes={segment_bytes}")
        started.append(node)
        return node.start()

    try:
        yield start
    finally:
        for node in started:
            node.close()


def journal(node: Serving) -> Path:
    return node.write_dir / "journal"


def wait_for_journal_of(node: Serving, segments: int) -> None:
    eventually(
        lambda: len(files_in(journal(node), ".wal")) <= segments,
        seconds=PATIENCE_SECONDS,
        what=f"a journal of {segments} segments",
    )


def test_the_node_serves_and_everybody_says_what_to_install(start: Start) -> None:
    node = start(LARGE)
    topics = Topics(node)
    topics.create("t")
    topics.fill("t", 50)
    topics.check("t", 0, 50)
    status = eventually(
        lambda: view if (view := mainstem_json(node, "split", "status"))["last_error"] else None,
        what="the supervisor's verdict",
    )
    assert INSTALL in status["last_error"]
    assert status["splitter"].startswith("unavailable")
    assert sum(group["lag_bytes"] for group in status["groups"].values()) > 50 * VALUE_BYTES
    assert INSTALL in " ".join(mainstem(node, "split", "status").split())
    assert INSTALL in node.output
    (java,) = [check for check in mainstem_json(node, "doctor")["checks"] if check["name"] == "java"]
    assert java["state"] == "warning"
    assert INSTALL in java["advice"]


def test_retention_ms_frees_a_segment_that_age_sealed(start: Start) -> None:
    node = start(LARGE)
    topics = Topics(node)
    topics.create("t")
    topics.fill("t", 100)
    assert bytes_in(journal(node)) >= LARGE
    first = files_in(journal(node), ".wal")[0]
    topics.alter("t", "retention.ms", "1")
    eventually(lambda: topics.offsets("t") == (100, 100), seconds=PATIENCE_SECONDS, what="the log start")
    eventually(lambda: not first.exists(), seconds=PATIENCE_SECONDS, what="the end of the first segment")
    topics.alter("t", "retention.ms", "-1")
    topics.fill("t", 1)
    assert topics.offsets("t") == (100, 101)


def test_retention_bytes_leaves_the_newest(start: Start) -> None:
    node = start(SMALL)
    topics = Topics(node)
    topics.create("t")
    topics.fill("t", 200)
    before = len(files_in(journal(node), ".wal"))
    assert before >= 200 * VALUE_BYTES // SMALL
    topics.alter("t", "retention.bytes", str(50 * VALUE_BYTES))
    eventually(lambda: topics.offsets("t")[0] > 0, seconds=PATIENCE_SECONDS, what="the log start")
    wait_for_journal_of(node, before // 2)
    fewest, most = 50, 50 + 2 * SMALL // VALUE_BYTES
    eventually(lambda: topics.offsets("t")[0] >= 200 - most, what="a log start as near to the end as segments allow")
    log_start, high_watermark = eventually(lambda: settled(topics, "t"), what="the log start to come to rest")
    assert high_watermark == 200
    assert fewest <= high_watermark - log_start <= most
    topics.check("t", log_start, 200)


def settled(topics: Topics, topic: str) -> tuple[int, int] | None:
    """The topic's offsets once some passes of retention in a row have left them alone."""
    before = topics.offsets(topic)
    for _ in range(SETTLED_LOOKS):
        time.sleep(0.2)
        if topics.offsets(topic) != before:
            return None
    return before


def test_delete_records_and_delete_topics_free_the_journal(start: Start) -> None:
    node = start(SMALL)
    topics = Topics(node)
    for topic in ("trimmed", "doomed", "kept"):
        topics.create(topic)
    topics.fill("trimmed", 100)
    topics.fill("doomed", 100)
    topics.fill("kept", 20)
    before = len(files_in(journal(node), ".wal"))
    assert topics.delete_records("trimmed", 60) == 60
    wait_for_journal_of(node, before - 60 * VALUE_BYTES // SMALL + 1)
    topics.check("trimmed", 60, 100)
    assert topics.delete_records("trimmed", -1) == 100
    topics.delete("doomed")
    wait_for_journal_of(node, 20 * VALUE_BYTES // SMALL + 4)
    topics.check("kept", 0, 20)
    assert topics.offsets("trimmed") == (100, 100)
    node.kill()
    node.start()
    topics.check("kept", 0, 20)
    assert topics.offsets("trimmed") == (100, 100)
