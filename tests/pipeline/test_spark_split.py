"""The split application on real Spark against a node that is only a split service: exactly once (F), whoever
dies.

A splitter is a process of its own (`python -m mainstem.pipeline.main`) where killing it is the point, or its end. The
part that `end_to_end/splits/test_exactly_once.py` has at each change, killed driver and zombie, is `long` here."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.end_to_end.splitters.one_spark import OneSpark
from tests.fakes.splitting.run_reader import read_runs
from tests.fakes.splitting.split_log import SplitJournal
from tests.fakes.splitting.split_node import SplitNode
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.pipeline.errors import EXIT_DONE, EXIT_FAILED, EXIT_LEASE_HELD, EXIT_YIELDED

CLASSES = {0: "default", 1: "internal", 2: "default"}
TRIGGER = ("--bytes-per-trigger", "400000")
SOURCE = Path(__file__).parents[2] / "src"


class Bench:
    """A node with a journal, and the splitters of a test."""

    def __init__(self, node: SplitNode, directory: Path) -> None:
        self.node, self.journal = node, node.journal
        self.directory = directory
        self.random = random.Random(20)
        self.processes: list[subprocess.Popen[str]] = []

    def append(self, blocks: int) -> None:
        self.node.on_loop(lambda: self.journal.append_random(self.random, blocks, queues=12, topics=3, groups=3))

    def start(self, *options: str, name: str = "splitter", path: Path = SOURCE) -> subprocess.Popen[str]:
        """`path`: what its Python processes import from first."""
        log = (self.directory / f"{name}.log").open("a")
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "mainstem.pipeline.main",
                "--node",
                self.node.http,
                *TRIGGER,
                *options,
            ],
            env={**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{SOURCE}"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        log.close()
        self.processes.append(process)
        return process

    def log(self, name: str = "splitter") -> str:
        return (self.directory / f"{name}.log").read_text()

    def on_next_recording(self, action: Callable[[], None]) -> None:
        """Run the action once, when a split has been applied but not answered."""

        def act() -> None:
            self.journal.after_recording = lambda: None
            action()

        self.journal.after_recording = act

    def check_exactly_once(self) -> None:
        """The runs of the manifest hold the journal's history, and their ranges tile it."""
        runs = self.directory / "store" / "runs"
        names = [file.name for _, files in self.journal.recorded for file in files]
        assert len(names) == len(set(names))
        assert read_runs(runs / name for name in names) == self.journal.history
        reached: dict[int, int] = {}
        for ranges, _ in self.journal.recorded:
            for entry in ranges:
                assert entry.after == reached.get(entry.group, 0)
                reached[entry.group] = entry.upto
        assert reached == {group.group: group.committed for group in self.journal.positions()}

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    journal_dir = tmp_path / "journal"
    journal_dir.mkdir()
    journal = SplitJournal(journal_dir, segment_bytes=1 << 20, classes=CLASSES)
    with SplitNode(journal, tmp_path / "store") as node:
        bench = Bench(node, tmp_path)
        try:
            yield bench
        finally:
            bench.close()


def test_once_splits_all_in_parallel_slices_although_tasks_fail(bench: Bench, one_spark: OneSpark) -> None:
    bench.append(100)
    failures = iter(range(3))

    def fail_at_first() -> None:
        if next(failures, None) is not None:
            raise RuntimeError("this task is unlucky")

    bench.journal.before_classes = fail_at_first
    one_spark.begin_at(bench.node.http, "--once", *TRIGGER)
    assert one_spark.ended() == EXIT_DONE, one_spark.log
    bench.check_exactly_once()
    status = bench.node.on_loop(bench.node.service.status)
    assert next(failures, None) is None, "tasks did fail"
    assert status["progress"]["batch_id"] >= 1
    assert status["progress"]["spark"].startswith("local[")
    assert status["splitter"] is None, "the lease was given back"
    assert bench.journal.remote_reads == 0, "on the node's own host segments are read from disk"
    assert len(bench.journal.recorded) > status["progress"]["batch_id"] + 1, "triggers had several slices"


@pytest.mark.long
def test_killed_jvm_and_killed_driver_lose_and_repeat_nothing(bench: Bench) -> None:
    checkpoint = str(bench.directory / "checkpoint")
    bench.append(75)

    def kill_jvm() -> None:
        children = psutil.Process(process.pid).children(recursive=True)
        jvms = [child for child in children if "java" in child.name()]
        assert jvms
        for jvm in jvms:
            jvm.kill()

    process = bench.start("--once", "--checkpoint", checkpoint)
    bench.on_next_recording(kill_jvm)
    assert process.wait(PATIENCE_SECONDS) == EXIT_FAILED, bench.log()
    recorded = len(bench.journal.recorded)
    assert recorded >= 1

    bench.node.end_leases()
    process = bench.start("--once", "--checkpoint", checkpoint)
    bench.on_next_recording(lambda: os.kill(process.pid, signal.SIGKILL))
    assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL, bench.log()
    assert len(bench.journal.recorded) > recorded

    bench.node.end_leases()
    process = bench.start("--once", "--checkpoint", checkpoint)
    assert process.wait(PATIENCE_SECONDS) == EXIT_DONE, bench.log()
    bench.check_exactly_once()


def test_embedded_splitter_yields_to_one_without_its_checkpoint_on_another_host(
    bench: Bench, one_spark: OneSpark
) -> None:
    """The second one starts with no checkpoint, and reads blocks over rpc, as executors elsewhere do."""
    bench.append(40)
    split = threading.Event()
    bench.on_next_recording(split.set)
    checkpoint = str(bench.directory / "checkpoint")
    embedded = bench.start("--embedded", "--trigger-seconds", "0.3", "--checkpoint", checkpoint, name="embedded")
    assert split.wait(PATIENCE_SECONDS), bench.log("embedded")
    bench.journal.path_prefix = "/nonexistent"
    one_spark.begin_at(bench.node.http, "--once", *TRIGGER)
    assert embedded.wait(PATIENCE_SECONDS) == EXIT_YIELDED, bench.log("embedded")
    bench.append(40)
    assert one_spark.ended() == EXIT_DONE, one_spark.log
    bench.check_exactly_once()
    assert bench.journal.remote_reads > 0


DIES_AT_FIRST = """
import os, pathlib, sys
begun = pathlib.Path(__file__).with_name("begun")
if any("streaming_source_runner" in word for word in sys.orig_argv) and not begun.exists():
    begun.touch()
    os._exit(1)
"""
"""Of each Python process: the first that plans triggers never calls Spark, which waits for it as for a late one."""


@pytest.mark.long
def test_a_python_process_of_spark_that_does_not_start_in_time_is_started_again(bench: Bench) -> None:
    site = bench.directory / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(DIES_AT_FIRST)
    bench.append(40)
    process = bench.start("--once", path=site)
    assert process.wait(PATIENCE_SECONDS) == EXIT_DONE, bench.log()
    assert (site / "begun").exists()
    assert "the query begins anew" in bench.log()
    bench.check_exactly_once()


@pytest.mark.long
def test_zombie_stops_with_a_clear_message_and_records_nothing(bench: Bench) -> None:
    bench.append(30)
    zombie = bench.start("--trigger-seconds", "0.3")
    heir_holds: list[bool] = []

    def take_over() -> None:
        bench.node.end_leases()
        bench.node.lease.acquire("the heir", yields=False)
        heir_holds.append(True)
        bench.journal.append_random(bench.random, 30, queues=12, topics=3, groups=3)

    bench.on_next_recording(take_over)
    assert zombie.wait(PATIENCE_SECONDS) == EXIT_LEASE_HELD, bench.log()
    assert heir_holds
    assert "the split lease is lost" in bench.log()
    assert "the heir holds epoch" in bench.log()
    assert len(bench.journal.recorded) == 1, "only what was recorded before the lease was taken"
    assert bench.node.lease.holder == "the heir", "a zombie does not release what it no longer holds"


def test_jvm_that_does_not_start_is_reported_and_the_lease_given_back(bench: Bench) -> None:
    process = bench.start("--once", "--driver-memory", "zz")
    assert process.wait(PATIENCE_SECONDS) == EXIT_FAILED, bench.log()
    status = bench.node.on_loop(bench.node.service.status)
    assert "JAVA_GATEWAY_EXITED" in status["last_error"]["message"]
    assert status["splitter"] is None
