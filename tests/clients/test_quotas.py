"""Other people's clients that are over their quotas: they are told, and slowed down, and lose nothing."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, ThrottleEvent
from tests.clients.conftest import MakeTopic
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving
from tests.server.raw_client import RawClient

from mainstem import address
from mainstem.cli.main import run
from mainstem.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlteredQuotas,
    DescribeClientQuotasRequest,
    QuotaEntityPart,
    QuotaOperation,
)

CLIENT_ID = "limited"
RATE = 20_000
MESSAGES = 40
MESSAGE_BYTES = 1000


def alter(node: Serving, kind: str, name: str, **quotas: float | None) -> None:
    """Set quotas of the client or of its tenant, and remove them (None)."""

    async def ask() -> None:
        client = await RawClient.connect(address.parsed(node.kafka))
        ops = tuple(QuotaOperation(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items())
        entity = (QuotaEntityPart(entity_type=kind, entity_name=name),)
        entries = (AlteredQuotas(entity=entity, ops=ops),)
        response = await client.call(AlterClientQuotasRequest(entries=entries, validate_only=False), 1)
        assert [it.error_code for it in response.entries] == [0]
        told = await client.call(DescribeClientQuotasRequest(components=(), strict=False), 1)
        kept = {value.key: value.value for entry in told.entries for value in entry.values}
        assert kept == {key: value for key, value in quotas.items() if value is not None}
        await client.close()

    asyncio.run(asyncio.wait_for(ask(), PATIENCE_SECONDS))


@pytest.fixture(params=["client-id", "tenant"])
def quotas(node: Serving, request: pytest.FixtureRequest) -> Iterator[None]:
    """The client is under quotas of its own, or of the tenant whose user it is as long as nobody asks who it is."""
    of_tenant = request.param == "tenant"
    http = ["--http", node.http]
    if of_tenant:
        assert run(["tenant", "create", "acme", "--user", "ANONYMOUS", *http]) == 0
    name = "acme" if of_tenant else CLIENT_ID
    alter(node, request.param, name, producer_byte_rate=float(RATE), consumer_byte_rate=float(RATE))
    yield
    if of_tenant:
        assert run(["tenant", "usage", "acme", *http]) == 0
        assert run(["tenant", "delete", "acme", "-y", *http]) == 0
    else:
        alter(node, request.param, name, producer_byte_rate=None, consumer_byte_rate=None)


def test_librdkafka_is_told_that_it_is_throttled(node: Serving, make_topic: MakeTopic, quotas: None) -> None:
    topic = make_topic()
    told: list[ThrottleEvent] = []
    config = {"bootstrap.servers": node.kafka, "client.id": CLIENT_ID, "throttle_cb": told.append, **KEEP_TRYING}
    producer = Producer({**config, "batch.num.messages": 5, "linger.ms": 0})
    for number in range(MESSAGES):
        producer.produce(topic, bytes([number]) * MESSAGE_BYTES)
        producer.poll(0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert any(event.throttle_time > 0 for event in told), "an event of 0 says that it is over"
    produced = len(told)
    consumer = Consumer({**config, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        values: list[bytes | None] = []
        until = time.monotonic() + PATIENCE_SECONDS
        while len(values) < MESSAGES and time.monotonic() < until:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                values.append(message.value())
        assert values == [bytes([number]) * MESSAGE_BYTES for number in range(MESSAGES)]
        while len(told) == produced and time.monotonic() < until:
            consumer.poll(0.1)
        assert len(told) > produced
    finally:
        consumer.close()
    with urllib.request.urlopen(f"http://{node.http}/metrics", timeout=PATIENCE_SECONDS) as answer:
        metrics = answer.read().decode()
    for quota in ("producer_byte_rate", "consumer_byte_rate"):
        assert f'mainstem_quota_throttled_total{{quota="{quota}"}}' in metrics


def test_a_group_whose_consumer_is_throttled_is_told_so_everywhere(
    node: Serving, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = make_topic()
    config = {"bootstrap.servers": node.kafka, "client.id": CLIENT_ID, **KEEP_TRYING}
    producer = Producer({**config, "batch.num.messages": 1})
    for _ in range(MESSAGES):
        producer.produce(topic, bytes(MESSAGE_BYTES))
    assert producer.flush(PATIENCE_SECONDS) == 0
    alter(node, "client-id", CLIENT_ID, consumer_byte_rate=500.0)
    consumer = Consumer({**config, "group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    try:
        consumer.subscribe([topic])
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            consumer.poll(0.1)
            assert run(["group", "describe", topic, "--bootstrap", node.kafka, "--http", node.http, "--json"]) in (0, 1)
            told = capsys.readouterr().out
            if told and json.loads(told)["partitions"][0]["why"] == "throttled":
                break
            assert time.monotonic() < until, told
        while f'mainstem_group_lag_why{{group="{topic}",why="throttled"}} 1' not in read(node, "/metrics"):
            consumer.poll(0.1)
            consumer.commit(asynchronous=True)  # groups without any commit are in no metric
            assert time.monotonic() < until
        view = json.loads(read(node, f"/v1/groups/{topic}"))
        assert (view["why"], view["partitions"][0]["client_id"]) == ("throttled", CLIENT_ID)
        assert 0 < view["lag"] <= MESSAGES
        assert view["seconds"] > 0
        assert [group["group"] for group in json.loads(read(node, "/v1/groups"))["worst"] if group["why"]] == [topic]
    finally:
        consumer.close()
        alter(node, "client-id", CLIENT_ID, consumer_byte_rate=None)


def read(node: Serving, path: str) -> str:
    with urllib.request.urlopen(f"http://{node.http}{path}") as answer:
        text: str = answer.read().decode()
        return text
