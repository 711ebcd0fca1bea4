"""Clients ask what to push, and push it: whoever comes too soon, with too much or with something else is told so, and
the metrics stay within their bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from tests.broker.telemetry.otlp_bytes import DELTA, Number, metrics_data
from tests.fakes.access.resource_configs import MemoryConfigs
from tests.fakes.clock import FakeClock

from mainstem.broker.telemetry import pushed_metrics
from mainstem.broker.telemetry.telemetry import PushRefused, SubscriptionAnswer, Telemetry, TelemetryClient
from mainstem.console.exposition import render
from mainstem.model import ResourceType, Sample
from mainstem.ports import Session
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.records.compression import Compression, compress
from mainstem.turns import Turns

METRICS = ResourceType.CLIENT_METRICS


class Node:
    """Telemetry of a node, and one client after the other."""

    def __init__(self, **bounds: int) -> None:
        self.configs, self.clock = MemoryConfigs(), FakeClock()
        numbers = iter(range(1, 1_000_000))
        self.telemetry = Telemetry(
            self.configs, self.clock, Turns(), new_id=lambda: UUID(int=next(numbers)),
            **{"bytes_max": 4096, "clients_max": 100, "series_max": 1000, **bounds},
        )  # fmt: skip

    def subscribe(self, name: str = "s", **configs: str) -> None:
        self.configs.set(METRICS, name, **{"metrics": "*", "interval_ms": "1000", **configs})

    def ask(self, instance: int = 0, client_id: str = "app", host: str = "10.0.0.1") -> SubscriptionAnswer:
        return self.telemetry.subscription(self._client(client_id, host), UUID(int=instance))

    def push(
        self, asked: SubscriptionAnswer, *numbers: Number, data: bytes | None = None, codec: int = 0, **options: Any
    ) -> ErrorCode:
        client = self._client(options.pop("client_id", "app"), options.pop("host", "10.0.0.1"))
        subscription_id = options.pop("subscription_id", asked.subscription_id)
        data = metrics_data(numbers) if data is None else data

        async def story() -> None:
            await self.telemetry.push(
                client, asked.instance_id, subscription_id, codec, data, last=options.get("last", False)
            )

        try:
            asyncio.run(story())
        except PushRefused as refused:
            return refused.code
        return ErrorCode.NONE

    def samples(self) -> Sequence[Sample]:
        found = list(self.telemetry.samples())
        render(found)  # which fails where names and kinds do not fit
        return found

    def pushed(self) -> dict[str, list[float]]:
        """By name what clients pushed."""
        values: dict[str, list[float]] = {}
        for sample in self.samples():
            if sample.name.startswith(pushed_metrics.PREFIX):
                values.setdefault(sample.name, []).append(sample.value)
        return values

    def counted(self, name: str) -> dict[str, float]:
        return {sample.labels[0][1]: sample.value for sample in self.samples() if sample.name == name}

    def _client(self, client_id: str, host: str) -> TelemetryClient:
        session = Session(host, 40_000, 1, software_name="librdkafka", software_version="2.10.0")
        return TelemetryClient(client_id, session)


def test_numbers_stand_among_the_metrics_under_the_clients_labels() -> None:
    node = Node()
    node.subscribe()
    asked = node.ask()
    assert asked.asked.metrics == ("*",)
    assert asked.asked.interval_ms == 1000
    lag = Number("org.apache.kafka.consumer.lag.max", 2.5, labels={"node.id": 3, "client_id": "forged", "": "x"})
    sent = Number("org.apache.kafka.producer.sent", 7, adds_up=True)
    assert node.push(asked, lag, sent) == ErrorCode.NONE
    found = {sample.name: sample for sample in node.samples() if sample.name.startswith("mainstem_client_")}
    assert {name: (it.kind, it.value) for name, it in found.items()} == {
        "mainstem_client_consumer_lag_max": ("gauge", 2.5),
        "mainstem_client_producer_sent_total": ("counter", 7.0),
    }
    assert dict(found["mainstem_client_consumer_lag_max"].labels) == {
        "client_instance_id": str(asked.instance_id),
        "client_id": "app",
        "client_software": "librdkafka 2.10.0",
        "node_id": "3",
    }


@pytest.mark.parametrize("compression", list(Compression))
def test_every_compression_is_taken(compression: Compression) -> None:
    node = Node()
    node.subscribe()
    data = compress(compression, metrics_data([Number("a", 3)]))
    assert node.push(node.ask(), data=data, codec=compression) == ErrorCode.NONE
    assert node.pushed() == {"mainstem_client_a": [3.0]}


def test_a_client_is_asked_for_what_its_subscriptions_say_together() -> None:
    node = Node()
    asked = node.ask()
    assert (asked.asked.metrics, asked.asked.interval_ms) == ((), 300_000)
    node.subscribe("all", metrics="a.,b.", match="client_software_name=librd.*,client_source_port=40000")
    node.subscribe("some", metrics="c", interval_ms="500", match="client_id=app")
    node.subscribe("others", metrics="d", interval_ms="100", match="client_id=ap")
    both, one = node.ask(), node.ask(client_id="other")
    assert (both.asked.metrics, both.asked.interval_ms) == (("a.", "b.", "c"), 500)
    assert (one.asked.metrics, one.asked.interval_ms) == (("a.", "b."), 1000)
    assert len({both.subscription_id, one.subscription_id, asked.subscription_id}) == 3
    assert node.push(both, Number("a.x"), Number("c.y"), Number("d.z"), Number("ab")) == ErrorCode.NONE
    assert set(node.pushed()) == {"mainstem_client_a_x", "mainstem_client_c_y"}
    assert node.counted("mainstem_telemetry_dropped_total") == {"not asked for": 2}


def test_who_comes_too_soon_is_told_so() -> None:
    node = Node()
    node.subscribe()
    asked = node.ask()
    with pytest.raises(PushRefused) as refused:
        node.ask(asked.instance_id.int)
    assert refused.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert node.push(asked, Number("a", 1)) == ErrorCode.NONE, "the first push comes at any time"
    assert node.push(asked, Number("a", 2)) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert node.pushed() == {"mainstem_client_a": [1.0]}
    node.clock.advance(1.0)
    assert node.push(asked, Number("a", 3)) == ErrorCode.NONE
    assert node.push(asked, Number("a", 4), last=True) == ErrorCode.NONE, "and the last one, too"
    node.clock.advance(1.0)
    assert node.push(asked, Number("a", 5)) == ErrorCode.INVALID_REQUEST, "there is none behind it"
    assert node.pushed() == {"mainstem_client_a": [4.0]}
    assert node.counted("mainstem_telemetry_pushes_total") == {
        "taken": 3, "THROTTLING_QUOTA_EXCEEDED": 1, "INVALID_REQUEST": 1,
    }  # fmt: skip


def test_a_subscription_that_changed_is_asked_for_again_at_once() -> None:
    node = Node()
    node.subscribe()
    before = node.ask()
    node.subscribe(metrics="a")
    assert node.push(before, Number("a")) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    after = node.ask(before.instance_id.int)
    assert after.instance_id == before.instance_id
    assert node.push(after, Number("a")) == ErrorCode.NONE
    other_node = Node()
    other_node.subscribe(metrics="a")
    assert other_node.push(after, Number("a")) == ErrorCode.NONE, "any node of the cluster takes it"


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"data": bytes(4097)}, ErrorCode.TELEMETRY_TOO_LARGE),
        ({"codec": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"codec": -1}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"data": b"\x0b"}, ErrorCode.INVALID_RECORD),
        ({"data": b"no gzip", "codec": 1}, ErrorCode.INVALID_RECORD),
        ({"data": compress(Compression.ZSTD, bytes(100_000)), "codec": 4}, ErrorCode.INVALID_RECORD),
    ],
)
def test_pushes_that_are_refused_change_nothing(wrong: dict[str, Any], code: ErrorCode) -> None:
    node = Node()
    node.subscribe()
    asked = node.ask()
    assert node.push(asked, Number("a")) == ErrorCode.NONE
    node.clock.advance(1.0)
    assert node.push(asked, **wrong) == code
    assert node.pushed() == {"mainstem_client_a": [1.0]}


def test_nobody_pushes_without_an_id() -> None:
    node = Node()
    asked = node.ask()._replace(instance_id=UUID(int=0))
    assert node.push(asked, Number("a")) == ErrorCode.INVALID_REQUEST


def test_a_push_takes_the_place_of_the_last_one_and_deltas_add_up() -> None:
    node = Node()
    node.subscribe()
    asked = node.ask()
    counted = Number("n", 2, adds_up=True, temporality=DELTA)
    node.push(asked, Number("a"), Number("b"), counted, counted)
    node.clock.advance(1.0)
    node.push(asked, Number("b", 5))
    assert node.pushed() == {"mainstem_client_b": [5.0], "mainstem_client_n_total": [4.0]}
    node.clock.advance(1.0)
    node.push(asked, counted)
    assert node.pushed() == {"mainstem_client_n_total": [6.0]}


def test_clients_that_fall_silent_are_forgotten() -> None:
    node = Node()
    node.subscribe()
    node.push(node.ask(), Number("a"))
    node.clock.advance(3.5)
    assert node.pushed() == {}, "whether or not somebody else comes"
    node.ask()
    found = {it.name: it.value for it in node.samples()}
    assert (found["mainstem_telemetry_clients"], found["mainstem_telemetry_series"]) == (1, 0)


def test_there_are_only_so_many_clients_series_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushed_metrics, "SERIES_OF_CLIENT_MAX", 4)
    monkeypatch.setattr(pushed_metrics, "NAMES_MAX", 5)
    node = Node(clients_max=3, series_max=8)
    node.subscribe()
    many = [Number("n", n, labels={"k": n}) for n in range(9)]
    node.push(node.ask(), *many)
    assert len(node.pushed()["mainstem_client_n"]) == 4, "of one client"
    node.push(node.ask(), *many)
    assert len(node.pushed()["mainstem_client_n"]) == 4, "half of all belongs to others than one address"
    node.push(node.ask(), *many, host="10.0.0.2")
    assert len(node.pushed()["mainstem_client_n"]) == 8
    node.push(node.ask(), *many, host="10.0.0.3")
    found = {it.name: it.value for it in node.samples()}
    assert (found["mainstem_telemetry_clients"], found["mainstem_telemetry_series"]) == (3, 8), "the first made room"
    node.clock.advance(10.0)
    named = [Number(f"name{n}", 1) for n in range(9)]
    node.push(node.ask(), *named, host="10.0.0.4")
    assert len([name for name in node.pushed() if "name" in name]) == 4
    assert node.counted("mainstem_telemetry_dropped_total")["name"] == 5
    node.push(node.ask(), Number("later"), host="10.0.0.5")
    assert "mainstem_client_later" in node.pushed(), "names that nobody pushes any more make room"


def test_names_that_contradict_each_other_spoil_no_metric() -> None:
    node = Node()
    node.subscribe()
    asked = node.ask()
    numbers = [
        Number("x.total", 1), Number("x", 2, adds_up=True), Number("y", 3, adds_up=True), Number("y_total", 4),
        Number("inf", float("inf")), Number("nan", float("nan")), Number("ü", 5), Number('q"\n', 6),
    ]  # fmt: skip
    node.push(asked, *numbers)
    assert node.pushed() == {
        "mainstem_client_x_total": [1.0],
        "mainstem_client_y_total": [3.0],
        "mainstem_client_q": [6.0],
    }
