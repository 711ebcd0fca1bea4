"""`mainstem config` against a real node."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.cli.documented import documented_keys, keys_of
from tests.harness.serving import Serving, eventually

from mainstem.address import parsed
from mainstem.cli.clients.kafka_connection import KafkaConnection
from mainstem.cli.main import run
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from mainstem.protocol.messages.topics import CreatableTopic, CreateTopicsRequest


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("node"), "pipeline.mode=off").start()
    yield serving
    serving.close()


class Commands:
    def __init__(self, node: Serving, capsys: pytest.CaptureFixture[str]) -> None:
        self._at = ["--bootstrap", node.kafka]
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        assert run(["config", *words, *self._at]) == code
        captured = self._capsys.readouterr()
        return captured.err if code else captured.out


@pytest.fixture
def config(node: Serving, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(node, capsys)


def test_client_metrics_are_set_shown_and_unset(config: Commands) -> None:
    lags = ["--client-metrics", "lags"]
    assert "altered client metrics lags" in config("alter", *lags, "--set", "metrics=a.,b.", "--set", "interval.ms=30s")
    assert "lags" in config("list")
    told = json.loads(config("describe", *lags, "--json"))
    assert {each["name"]: (each["value"], each["source"]) for each in told["configs"]} == {
        "interval.ms": ("30000", "set"), "match": ("", "default"), "metrics": ("a.,b.", "set"),
    }  # fmt: skip
    assert "30000" in config("describe", *lags)
    assert "speed" in config("alter", *lags, "--set", "speed=1", code=1)
    assert "a whole number from 100" in config("alter", *lags, "--set", "interval.ms=1", code=1)
    outputs = {
        "config list": config("list", "--json"),
        "config describe": config("describe", *lags, "--json"),
        "config alter": config("alter", *lags, "--unset", "metrics", "--unset", "interval.ms", "--json"),
    }
    documented = documented_keys()
    for words, output in outputs.items():
        assert keys_of(json.loads(output), documented[words]) == documented[words], words
    assert "lags" not in config("list")


def heartbeat(node: Serving, group: str) -> ConsumerGroupHeartbeatResponse:
    """A member joins, or joins again."""
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=("t",),
        topic_partitions=(),
    )
    connection = KafkaConnection(parsed(node.kafka))
    passing = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
    try:
        answers: list[ConsumerGroupHeartbeatResponse] = []

        def answered() -> bool:
            answers.append(connection.call(request, 1))
            return answers[-1].error_code not in passing

        eventually(answered)
        return answers[-1]
    finally:
        connection.close()


def test_a_group_is_told_what_is_set_for_it(node: Serving, config: Commands) -> None:
    assert heartbeat(node, "g").heartbeat_interval_ms == 5000
    config("alter", "--group", "g", "--set", "consumer.heartbeat.interval.ms=7s")
    assert heartbeat(node, "g").heartbeat_interval_ms == 7000
    assert heartbeat(node, "h").heartbeat_interval_ms == 5000
    told = json.loads(config("describe", "--group", "g", "--json"))
    found = {each["name"]: (each["value"], each["source"]) for each in told["configs"]}
    assert found["consumer.heartbeat.interval.ms"] == ("7000", "set")
    assert found["consumer.session.timeout.ms"] == ("45000", "default")
    config("alter", "--group", "g", "--unset", "consumer.heartbeat.interval.ms")
    assert heartbeat(node, "g").heartbeat_interval_ms == 5000


def test_settings_of_nodes_hold_at_once_and_after_a_restart(node: Serving, config: Commands) -> None:
    def source(name: str = "num.partitions") -> tuple[str, str]:
        told = json.loads(config("describe", "--node", "1", "--json"))
        return next((it["value"], it["source"]) for it in told["configs"] if it["name"] == name)

    def partitions_of_new(topic: str) -> int:
        created = CreatableTopic(name=topic, num_partitions=-1, replication_factor=-1, assignments=(), configs=())
        connection = KafkaConnection(parsed(node.kafka))
        try:
            (made,) = connection.call(CreateTopicsRequest(topics=(created,), timeout_ms=30_000), 7).topics
            assert made.error_code == ErrorCode.NONE
            count: int = made.num_partitions
            return count
        finally:
            connection.close()

    assert source() == ("1", "default")
    config("alter", "--every-node", "--set", "num.partitions=3")
    assert (source(), partitions_of_new("three")) == (("3", "all nodes, live"), 3)
    config("alter", "--node", "1", "--set", "num.partitions=4")
    assert (source(), partitions_of_new("four")) == (("4", "node, live"), 4)
    node.kill()
    node.start()
    assert (source(), partitions_of_new("four-again")) == (("4", "node, live"), 4)
    assert "read when a node starts" in config("alter", "--node", "1", "--set", "log.dirs=/x", code=1)
    config("alter", "--every-node", "--set", "log.retention.ms=7d")
    assert source("log.retention.ms") == (str(7 * 24 * 3_600_000), "all nodes, live")
    assert "there is no node 9" in config("describe", "--node", "9", code=1)


def test_a_node_logs_more_when_it_is_told_to(node: Serving, config: Commands) -> None:
    config("alter", "--loggers", "1", "--set", "mainstem.storage=DEBUG")
    told = json.loads(config("describe", "--loggers", "1", "--json"))
    assert {"mainstem.storage": "DEBUG"}.items() <= {it["name"]: it["value"] for it in told["configs"]}.items()
    config("alter", "--loggers", "1", "--unset", "mainstem.storage")
    assert "no level 'LOUD'" in config("alter", "--loggers", "1", "--set", "root=LOUD", code=1)


def test_one_thing_is_named(config: Commands) -> None:
    assert "say of which one thing" in config("describe", code=2)
    assert "nothing to change" in config("alter", "--client-metrics", "s", code=2)
