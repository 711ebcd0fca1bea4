"""A node and its splitter end together, however the node ends: nothing of Spark is left, and nobody waits for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.clients.drivers.librdkafka import produce
from tests.clients.drivers.message import Message
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

from mainstem.pipeline.embedded.processes import NICE, NICE_MAX
from mainstem.pipeline.spark.java import find_java

pytestmark = pytest.mark.skipif(bool(find_java().missing), reason="there is no Java for Spark")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Serving]:
    node = Serving(tmp_path, "pipeline.start_bytes=1", "pipeline.start_age_seconds=0.1")
    node.start()
    try:
        produce(node.kafka, "split", [Message(b"to be split")])
        yield node
    finally:
        node.close()


def with_a_jvm(node: Serving) -> list[psutil.Process]:
    """The splitter's processes, once Spark's JVM is among them."""

    def family() -> list[psutil.Process]:
        found = psutil.Process(node.pid).children(recursive=True)
        return found if any(map(is_spark, found)) else []

    found: list[psutil.Process] = eventually(family, seconds=PATIENCE_SECONDS, what="a JVM")
    return found


def is_spark(process: psutil.Process) -> bool:
    """Not the JVM that only tells its version, nor the one that finds out how to start this one."""
    try:
        return "org.apache.spark.deploy.SparkSubmit" in process.cmdline() and process.name() == "java"
    except psutil.NoSuchProcess:
        return False


def left_of(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if is_running(one)]


def is_running(process: psutil.Process) -> bool:
    """A process that has ended may lie there until its parent looks."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_killed_node_leaves_no_splitter(node: Serving) -> None:
    family = with_a_jvm(node)
    what_is_left = min(os.nice(0) + NICE, NICE_MAX)
    assert {one.nice() for one in family if is_running(one)} == {what_is_left}, "they get what the node leaves them"
    node.kill()
    eventually(lambda: not left_of(family), seconds=PATIENCE_SECONDS, what="the end of the splitter")


def test_a_node_that_stops_leaves_no_splitter_and_asks_it_nothing(node: Serving) -> None:
    family = with_a_jvm(node)
    assert node.stop() == 0, node.output
    assert not left_of(family)
    assert not node.output_lines("split ended"), "nor does it wait for an orderly end"
