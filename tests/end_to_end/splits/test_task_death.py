"""A task that a node cannot do without dies for good: the process ends and says so, and the next one has everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.end_to_end.load import Queue
from tests.end_to_end.odd_nodes.dying_node import BUG_VARIABLE
from tests.end_to_end.readers import read_all
from tests.harness.patience import PATIENCE_MS, PATIENCE_SECONDS
from tests.harness.serving import Serving

COMMAND_FAILED = 1
"""The exit code."""


@pytest.fixture
def bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    bug = tmp_path / "bug"
    monkeypatch.setenv(BUG_VARIABLE, str(bug))
    return bug


@pytest.fixture
def node(tmp_path: Path, bug: Path) -> Iterator[Serving]:
    node = Serving(tmp_path, "pipeline.mode=off")
    node.program = "tests.end_to_end.odd_nodes.dying_node"
    try:
        yield node.start()
    finally:
        node.close()


def test_a_write_loop_that_dies_ends_the_process_and_loses_nothing(node: Serving, bug: Path) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic("kept", 1)])["kept"].result(PATIENCE_SECONDS)
    sender = Sender(node)
    sender.send(b"first", b"second")
    assert sender.flush() == [b"first", b"second"]
    bug.touch()
    sender.send(b"third")
    assert node.wait() == COMMAND_FAILED
    sender.give_up()
    assert sender.flush() == [b"first", b"second"]
    assert node.output_lines("task 'write loop' died, and this node cannot do without it; it ends")
    assert node.output_lines("ArithmeticError: a bug that was planted")
    (last,) = node.output_lines("mainstem: a task died that the node cannot do without")
    assert last.endswith("Start the node again")
    bug.unlink()
    node.start()
    assert node.metric("mainstem_tasks", state="dead") == 0
    (records,) = read_all(node.kafka, {Queue("kept", 0): 2}).values()
    assert [record.value for record in records] == [b"first", b"second"]


class Sender:
    """Sends each message once, without trying again."""

    def __init__(self, node: Serving) -> None:
        self._told: list[bytes] = []
        self._producer = Producer({
            "bootstrap.servers": node.kafka, "retries": 0, "message.timeout.ms": PATIENCE_MS, "log_level": 0,
        })  # fmt: skip

    def send(self, *values: bytes) -> None:
        for value in values:
            self._producer.produce("kept", value, partition=0, on_delivery=self._delivered)
        self._producer.poll(0)

    def flush(self) -> list[bytes]:
        """The records acknowledged, when nothing is under way any more."""
        assert self._producer.flush(PATIENCE_SECONDS) == 0
        return self._told

    def give_up(self) -> None:
        """The records not acknowledged yet."""
        self._producer.purge()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._told.append(message.value())
