"""The measurements against a real node: small counts, and nothing about how fast."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

from mainstem.cli.main import run


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("node"), "pipeline.mode=off").start()
    yield serving
    serving.close()


class Said(NamedTuple):
    """The output of a command."""

    out: str
    err: str


class Bench:
    """Runs `mainstem` commands in this process against one node."""

    def __init__(self, node: Serving, capsys: pytest.CaptureFixture[str]) -> None:
        self._node = node
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> Said:
        words = [*arguments, "--bootstrap", self._node.kafka, "--http", self._node.http]
        assert run(words) == code, self._capsys.readouterr().err
        return Said(*self._capsys.readouterr())

    def data(self, *arguments: str, code: int = 0) -> Any:
        """The output of `bench` with --json, which must be one object and nothing else."""
        return json.loads(self("bench", *arguments, "--json", code=code).out)

    def topics(self) -> dict[str, int]:
        listed = json.loads(self("topic", "list", "--json").out)["topics"]
        return {topic["name"]: topic["partitions"] for topic in listed}


@pytest.fixture
def mainstem(node: Serving, capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(node, capsys)


def test_what_is_produced_is_consumed(mainstem: Bench) -> None:
    sent = mainstem.data("produce", "-t", "both", "-p", "4", "-n", "1000", "-s", "100", "--keep")
    assert (sent["records"], sent["bytes"], sent["failed"], sent["errors"]) == (1000, 100_000, 0, {})
    assert 0 < sent["latency_ms"]["p50"] <= sent["latency_ms"]["p99_9"] <= sent["latency_ms"]["max"]
    read = mainstem.data("consume", "-t", "both", "--consumers", "2")
    assert (read["records"], read["bytes"], read["consumers"], read["partitions"]) == (1000, 100_000, 2, 4)
    assert mainstem.data("consume", "-t", "both", "-n", "300", "--consumers", "3")["records"] == 300


def test_partitions_take_turns_whoever_sends(mainstem: Bench) -> None:
    mainstem("bench", "produce", "-t", "turns", "-p", "3", "-n", "60", "--producers", "2", "--keep")
    view = json.loads(mainstem("topic", "describe", "turns", "--json").out)
    assert [queue["high_watermark"] for queue in view["partitions"]] == [20, 20, 20]


def test_members_of_a_group_share_and_commit(mainstem: Bench) -> None:
    mainstem("bench", "produce", "-t", "shared", "-p", "3", "-n", "900", "-s", "10", "--keep")
    # Four members for three partitions: one has nothing to do and ends nevertheless.
    assert mainstem.data("consume", "-t", "shared", "-g", "team", "--consumers", "4")["records"] >= 900
    assert mainstem.data("consume", "-t", "shared", "-g", "team")["records"] == 0


def test_reading_an_empty_topic_ends(mainstem: Bench) -> None:
    mainstem("topic", "create", "empty", "--partitions", "2")
    assert mainstem.data("consume", "-t", "empty")["records"] == 0
    assert mainstem.data("consume", "-t", "empty", "-g", "nobody")["records"] == 0
    assert mainstem.data("consume", "-t", "empty", "--from", "end", "--seconds", "0.2")["mb_per_second"] is None


def test_latency_of_every_record_is_taken_at_both_ends(mainstem: Bench) -> None:
    told = mainstem.data("latency", "-t", "timed", "-p", "2", "--rate", "400", "--seconds", "0.5")
    assert (told["records"], told["received"], told["missing"], told["repeated"]) == (200, 200, 0, 0)
    assert sum(row["records"] for row in told["histogram"]) == 200
    for end in ("end_to_end_ms", "acknowledged_ms"):
        assert 0 < told[end]["p50"] <= told[end]["max"]


def test_latency_leaves_the_records_of_others_alone(mainstem: Bench) -> None:
    mainstem("bench", "produce", "-t", "mixed", "-p", "1", "-n", "50", "--keep")
    assert mainstem.data("latency", "-t", "mixed", "--rate", "100", "--seconds", "0.2")["received"] == 20
    # And a probe for its one partition.
    assert mainstem.data("consume", "-t", "mixed")["records"] == 50 + 20 + 1


@pytest.mark.parametrize(
    ("there", "choice", "stays"),
    [(False, [], False), (False, ["--keep"], True), (True, [], True), (True, ["--delete"], False)],
)
def test_a_topic_goes_that_was_created_unless_told_otherwise(
    mainstem: Bench, there: bool, choice: list[str], stays: bool
) -> None:
    name = f"fate-{there}-{len(choice)}"
    if there:
        mainstem("topic", "create", name, "--partitions", "16")
    mainstem("bench", "produce", "-t", name, "-n", "5", *choice)
    assert (name in mainstem.topics()) is stays


@pytest.mark.parametrize(
    "options",
    [["--acks", "0"], ["--acks", "1", "-z", "lz4"], ["--idempotent"], ["--rate", "1000"], ["--batch-bytes", "100"]],
)
def test_ways_to_send(mainstem: Bench, options: list[str]) -> None:
    assert mainstem.data("produce", "-t", "ways", "-n", "50", *options)["records"] == 50


def test_bytes_end_a_run_at_the_record_that_completes_them(mainstem: Bench) -> None:
    assert mainstem.data("produce", "-t", "ways", "--bytes", "1001", "-s", "100")["records"] == 11


def test_text_for_people(mainstem: Bench) -> None:
    sent = mainstem("bench", "produce", "-t", "text", "-p", "1", "-n", "10", "--keep").out
    assert re.match(r"produced +10 records of 1.0 KiB to text, 1 partition, in ", sent)
    assert re.search(r"^latency .*p50 .*p99\.9 .* ms$", sent, re.MULTILINE)
    assert re.match(r"read +10 records of text, 1 partition, in ", mainstem("bench", "consume", "-t", "text").out)
    timed = mainstem("bench", "latency", "-t", "text", "--rate", "100", "--seconds", "0.1").out
    assert re.search(r"^arrived +10 received, 0 missing, 0 repeated$", timed, re.MULTILINE)
    assert re.search(r"^ *[\d.,]+ +\d+ +[\d.]+% +#+ *$", timed, re.MULTILINE)


def test_the_progress_goes_to_stderr(mainstem: Bench) -> None:
    told = mainstem("bench", "produce", "-t", "progress", "--rate", "20", "-n", "30", "--progress")
    assert re.search(r"^0\.0 MB/s, \d+ records/s, p50 .* ms, p99 .* ms, \d+ in flight$", told.err, re.MULTILINE)
    assert "in flight" not in told.out


def test_a_record_above_the_limit_is_told_with_the_limit(mainstem: Bench) -> None:
    mainstem("topic", "create", "small", "--set", "max.message.bytes=1000")
    told = mainstem("bench", "produce", "-t", "small", "-s", "5000", "-n", "100", code=1)
    assert "Message size too large; max.message.bytes of small is 1000" in told.err
    assert "MSG_SIZE_TOO_LARGE" in told.out
    failed = mainstem.data("produce", "-t", "small", "-s", "5000", "-n", "100", code=1)
    assert failed["records"] == 0
    assert failed["errors"]["MSG_SIZE_TOO_LARGE"] == failed["failed"] > 0
    assert "max.message.bytes of small is 1000" in mainstem("bench", "latency", "-t", "small", "-s", "5000", code=1).err


def test_a_topic_with_other_partitions_is_refused_and_left(mainstem: Bench) -> None:
    mainstem("topic", "create", "four", "--partitions", "4")
    error = mainstem("bench", "produce", "-t", "four", "-p", "5", "--delete", code=1).err
    assert error == "mainstem: topic four exists already and has 4 partitions, not 5\n"
    assert mainstem.topics()["four"] == 4


def test_consume_needs_a_topic_that_is_there(mainstem: Bench) -> None:
    error = mainstem("bench", "consume", "-t", "nowhere", code=1).err
    assert error.startswith("mainstem: topic nowhere: ")
    assert "nowhere" not in mainstem.topics()


@pytest.mark.parametrize("words", [["produce", "--rate", "50"], ["latency", "--rate", "50"], ["consume", "--follow"]])
def test_ctrl_c_ends_with_the_summary_so_far(mainstem: Bench, node: Serving, words: list[str]) -> None:
    mainstem("bench", "produce", "-t", "endless", "-n", "100", "--keep")
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "mainstem.cli.main",
            "bench",
            *words,
            "-t",
            "endless",
            "--seconds",
            "600",
            "--progress",
            "--json",
            "--bootstrap",
            node.kafka,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    try:
        assert process.stderr is not None
        # A progress line: it is under way.
        assert "records/s" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    told = json.loads(out)
    assert told["interrupted"] is True
    assert told["records"] > 0
