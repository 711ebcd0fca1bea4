"""Clients' certificates that are revoked, or have expired, while others produce and consume over mutual TLS without a
break."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from tests.clients.conftest import SETTINGS
from tests.harness.free_port import HOST, free_port
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving
from tests.server.tls.certificates import Authority

TOPIC = "guarded"
SENT_AT_ONCE = 20


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def revoked(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Path:
    """The list of revoked certificates."""
    file = tmp_path_factory.mktemp("revoked") / "users.crl"
    file.write_bytes(authority.revocation_list())
    return file


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, authority: Authority, revoked: Path) -> Iterator[str]:
    """Of a listener where clients show certificates."""
    found = f"{HOST}:{free_port()}"
    certificate, key = authority.issue("node")
    listener = {
        "listen": found, "protocol": "SSL", "certificate": certificate, "key": key, "ca": authority.ca,
        "client_auth": "required", "crl": str(revoked),
    }  # fmt: skip
    settings = (*SETTINGS, "listen=", f"server.listeners.MUTUAL={json.dumps(listener)}")
    serving = Serving(tmp_path_factory.mktemp("node"), *settings)
    serving.kafka = found  # where `start` looks for it
    try:
        yield serving.start().kafka
    finally:
        serving.close()


class Client:
    """A producer with a certificate, and what became of what it sent."""

    def __init__(self, address: str, authority: Authority, shows: tuple[str, str]) -> None:
        self.errors: list[str] = []
        self.delivered = 0
        self.settings: dict[str, Any] = {
            "bootstrap.servers": address, "security.protocol": "ssl", "ssl.ca.location": authority.ca,
            "ssl.certificate.location": shows[0], "ssl.key.location": shows[1], "message.send.max.retries": 0,
            "error_cb": lambda error: self.errors.append(str(error)), "log_level": 0,
        }  # fmt: skip
        self._producer = Producer(self.settings)

    def send(self) -> None:
        for _ in range(SENT_AT_ONCE):
            self._producer.produce(TOPIC, b"a" * 1_000, on_delivery=self._told)

    def send_all(self) -> None:
        self.send()
        assert self._producer.flush(PATIENCE_SECONDS) == 0

    def poll(self) -> None:
        self._producer.poll(0.05)

    def give_up(self) -> None:
        self._producer.purge()
        self._producer.flush(PATIENCE_SECONDS)

    def _told(self, error: KafkaError | None, _: object) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.errors.append(str(error))


def read(client: Client, count: int) -> None:
    consumer = Consumer({**client.settings, "group.id": "guarded"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    while count:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None
        assert message.error() is None, message.error()
        count -= 1
    consumer.close()


def test_a_revoked_certificate_ends_what_it_opened_and_disturbs_nobody(
    address: str, authority: Authority, revoked: Path
) -> None:
    stolen = authority.issue("bo")
    stays, goes = Client(address, authority, authority.issue("an")), Client(address, authority, stolen)
    for client in (stays, goes):
        client.send_all()
        assert not client.errors
    other = revoked.with_suffix(".new")  # as `mainstem cert revoke` does it
    other.write_bytes(authority.revocation_list(stolen))
    other.replace(revoked)
    goes.send()
    while not goes.errors:  # its connection ends, and it may not come back
        stays.send_all()
        goes.send()
        goes.poll()
    known = goes.delivered
    comes_anew = Client(address, authority, stolen)
    comes_anew.send()
    while not comes_anew.errors:
        stays.send_all()
        comes_anew.poll()
    assert not comes_anew.delivered
    goes.poll()
    assert goes.delivered == known
    for client in (goes, comes_anew):
        client.give_up()
    with_another = Client(address, authority, authority.issue("bo-again"))
    with_another.send_all()
    assert with_another.delivered == SENT_AT_ONCE
    assert not stays.errors
    assert not with_another.errors
    read(stays, stays.delivered + with_another.delivered + known)


def test_an_expired_certificate_gets_nothing_while_others_go_on(address: str, authority: Authority) -> None:
    stays = Client(address, authority, authority.issue("cy"))
    stays.send_all()
    late = Client(address, authority, authority.issue("dee", until=datetime.now(UTC) - timedelta(minutes=1)))
    late.send()
    while not late.errors:
        stays.send_all()
        late.poll()
    assert not late.delivered
    late.give_up()
    assert not stays.errors
