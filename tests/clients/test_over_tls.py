"""Other people's clients over TLS, with certificates of their own, at a node whose listener is in a
`server.properties` as Kafka has it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition
from tests.clients.conftest import SETTINGS
from tests.harness.patience import PATIENCE_MS, PATIENCE_SECONDS
from tests.harness.serving import Serving
from tests.server.tls.certificates import Authority

VALUES = [b"a" * size for size in (1, 100, 20_000, 300_000)] * 5


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


PROPERTIES = """
listeners=OUTSIDE://{address}
listener.security.protocol.map=OUTSIDE:SSL
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
listener.name.outside.ssl.truststore.type=PEM
listener.name.outside.ssl.truststore.location={truststore}
listener.name.outside.ssl.client.auth=required
"""


class ServingByProperties(Serving):
    """A node whose listener is in a file of properties alone."""

    def __init__(self, root: Path, content: str, *settings: str) -> None:
        super().__init__(root, *settings)
        self.file = root / "server.properties"
        self.file.write_text(content.format(address=self.kafka))

    def arguments(self) -> list[str]:
        given = super().arguments()
        at = given.index("--listen")
        return [*given[:at], *given[at + 2 :], "--config", str(self.file)]


@pytest.fixture(scope="module")
def keystore(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Path:
    """The file with the node's certificate and key."""
    file = tmp_path_factory.mktemp("keystore") / "keystore.pem"
    file.write_text("".join(Path(part).read_text() for part in authority.issue("node")))
    return file


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, authority: Authority, keystore: Path) -> Iterator[Serving]:
    """A node that is reached over TLS alone, by clients that show a certificate."""
    directory = tmp_path_factory.mktemp("node")
    content = PROPERTIES.replace("{keystore}", str(keystore)).replace("{truststore}", authority.ca)
    serving = ServingByProperties(directory, content, *SETTINGS)
    try:
        yield serving.start()
    finally:
        serving.close()


@pytest.fixture(scope="module")
def shown(authority: Authority) -> tuple[str, str]:
    return authority.issue("orders")


def librdkafka(bootstrap: str, authority: Authority, shown: tuple[str, str]) -> list[bytes]:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap, "security.protocol": "ssl", "ssl.ca.location": authority.ca,
        "ssl.certificate.location": shown[0], "ssl.key.location": shown[1],
    }  # fmt: skip
    producer = Producer(settings)
    for value in VALUES:
        producer.produce("librdkafka", value)
    assert producer.flush(PATIENCE_SECONDS) == 0
    consumer = Consumer({**settings, "group.id": "librdkafka", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("librdkafka", 0, 0)])
    found: list[bytes] = []
    while len(found) < len(VALUES):
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None
        assert message.error() is None
        found.append(message.value() or b"")
    consumer.close()
    return found


def kafka_python(bootstrap: str, authority: Authority, shown: tuple[str, str]) -> list[bytes]:
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap, "security_protocol": "SSL", "ssl_cafile": authority.ca,
        "ssl_certfile": shown[0], "ssl_keyfile": shown[1],
    }  # fmt: skip
    producer = KafkaProducer(**settings)
    for sent in [producer.send("kafka-python", value, partition=0) for value in VALUES]:
        sent.get(PATIENCE_SECONDS)
    producer.close()
    consumer = KafkaConsumer(**settings, consumer_timeout_ms=PATIENCE_MS)
    consumer.assign([KafkaPythonPartition("kafka-python", 0)])
    consumer.seek_to_beginning()
    found = [next(consumer).value for _ in VALUES]
    consumer.close()
    return found


def aiokafka(bootstrap: str, authority: Authority, shown: tuple[str, str]) -> list[bytes]:
    async def scenario() -> list[bytes]:
        settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap, "security_protocol": "SSL", "ssl_context": authority.client(shown),
        }  # fmt: skip
        async with AIOKafkaProducer(**settings) as producer:
            for value in VALUES:
                await producer.send_and_wait("aiokafka", value, partition=0)
        async with AIOKafkaConsumer("aiokafka", **settings, auto_offset_reset="earliest") as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    return asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


@pytest.mark.parametrize("client", [librdkafka, kafka_python, aiokafka])
def test_every_client_writes_and_reads_over_tls(
    node: Serving, authority: Authority, shown: tuple[str, str], client: Any
) -> None:
    assert client(node.kafka, authority, shown) == VALUES


def test_a_client_without_a_certificate_gets_nothing(node: Serving, authority: Authority, tmp_path: Path) -> None:
    failed: list[str] = []
    settings = {"bootstrap.servers": node.kafka, "security.protocol": "ssl", "ssl.ca.location": authority.ca}
    producer = Producer({**settings, "error_cb": lambda error: failed.append(str(error)), "log_level": 0})
    producer.produce("refused", b"x")
    while not failed:
        producer.poll(0.1)
    assert "SSL" in failed[0] or "handshake" in failed[0]
    producer.purge()
    producer.flush(PATIENCE_SECONDS)


def serial_shown(bootstrap: str, authority: Authority, shown: tuple[str, str]) -> str:
    """The serial number of the certificate that the listener shows to a new connection."""
    host, _, port = bootstrap.rpartition(":")
    with (
        socket.create_connection((host, int(port)), PATIENCE_SECONDS) as connection,
        authority.client(shown).wrap_socket(connection, server_hostname=host) as secured,
    ):
        certificate = secured.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


def test_nothing_fails_while_a_certificate_changes_under_load(
    node: Serving, authority: Authority, shown: tuple[str, str], keystore: Path
) -> None:
    """A producer goes on over its connections, and others connect all the while, until new ones have seen the new
    certificate."""
    failed: list[str] = []
    settings = {
        "bootstrap.servers": node.kafka, "security.protocol": "ssl", "ssl.ca.location": authority.ca,
        "ssl.certificate.location": shown[0], "ssl.key.location": shown[1], "message.send.max.retries": 0,
        "error_cb": lambda error: failed.append(str(error)),
    }  # fmt: skip

    def delivered(error: KafkaError | None, _: Any) -> None:
        if error is not None:
            failed.append(str(error))

    def send(producer: Producer) -> int:
        for _ in range(20):
            producer.produce("changing", b"a" * 1_000, on_delivery=delivered)
        assert producer.flush(PATIENCE_SECONDS) == 0
        return 20

    stays = Producer(settings)
    sent = send(stays)
    before = serial_shown(node.kafka, authority, shown)
    renewed = keystore.with_suffix(".new")
    renewed.write_text("".join(Path(part).read_text() for part in authority.issue("renewed")))
    renewed.replace(keystore)
    while serial_shown(node.kafka, authority, shown) == before:
        sent += send(stays) + send(Producer(settings))
    sent += send(stays) + send(Producer(settings))
    assert not failed
    consumer = Consumer({**settings, "group.id": "changing"})
    assert consumer.get_watermark_offsets(TopicPartition("changing", 0), PATIENCE_SECONDS) == (0, sent)
    consumer.close()
