"""Clients of librdkafka push what they measure of themselves, and the node shows it among its metrics (KIP-714)."""

from __future__ import annotations

import re
import urllib.request
from typing import Any

from confluent_kafka import Consumer, Producer
from tests.clients.conftest import MakeTopic
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

from mainstem.address import parsed
from mainstem.cli.clients.kafka_connection import KafkaConnection
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
)
from mainstem.protocol.messages.list_config_resources import ListConfigResourcesRequest

CLIENT_METRICS = 16


def asked(node: Serving, request: Any, version: int) -> Any:
    connection = KafkaConnection(parsed(node.kafka))
    try:
        return connection.call(request, version)
    finally:
        connection.close()


def subscribe(node: Serving, name: str, **configs: str) -> None:
    changes = tuple(
        AlterableConfig(name=key.replace("_", "."), config_operation=0, value=value) for key, value in configs.items()
    )
    resource = AlterConfigsResource(resource_type=CLIENT_METRICS, resource_name=name, configs=changes)
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    (answer,) = asked(node, request, 1).responses
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)


def metrics(node: Serving) -> str:
    with urllib.request.urlopen(f"http://{node.http}/metrics", timeout=PATIENCE_SECONDS) as answer:
        text: str = answer.read().decode()
        return text


def test_what_librdkafka_measures_stands_among_the_metrics(node: Serving, make_topic: MakeTopic, name: str) -> None:
    topic = make_topic()
    subscribe(node, "everything", metrics="*", interval_ms="100", match=f"client_id={name}.*,client_software_name=.*")
    described = DescribeConfigsResource(resource_type=CLIENT_METRICS, resource_name="everything", configuration_keys=())
    (result,) = asked(node, DescribeConfigsRequest(resources=(described,)), 4).results
    assert {config.name: (config.value, config.config_source) for config in result.configs} == {
        "metrics": ("*", 7),
        "interval.ms": ("100", 7),
        "match": (f"client_id={name}.*,client_software_name=.*", 7),
    }
    (listed,) = asked(node, ListConfigResourcesRequest(), 0).config_resources
    assert listed.resource_name == "everything"

    settings = {"bootstrap.servers": node.kafka, **KEEP_TRYING}
    producer = Producer({**settings, "client.id": f"{name}-p", "compression.type": "zstd"})
    consumer = Consumer({**settings, "client.id": f"{name}-c", "group.id": name, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:

        def both_push() -> bool:
            producer.produce(topic, b"v")
            producer.poll(0)
            consumer.poll(0.05)
            text = metrics(node)
            return all(
                re.search(rf'^mainstem_client_{which}_\w+{{.*client_id="{name}-{which[0]}".*}} [0-9.]+$', text, re.M)
                for which in ("producer", "consumer")
            )

        eventually(both_push)
        assert 'mainstem_telemetry_pushes_total{outcome="taken"}' in metrics(node)
    finally:
        consumer.close()
        producer.flush(PATIENCE_SECONDS)
