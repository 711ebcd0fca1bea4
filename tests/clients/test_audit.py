"""A node that audits, real clients before it, and no secret anywhere."""

from __future__ import annotations

import base64
import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.cli.documented import documented_keys, keys_of
from tests.clients.conftest import SETTINGS
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

from mainstem.cli.main import run

SECRETS = ("the password of admin", "the password of bob", "a password that nobody has", "value of a message")
ADMIN, BOB, GUESS, VALUE = SECRETS
TOKEN_KEY = "the key of all delegation tokens"
TOPIC_PARTITIONS = 16


def settings(node: Serving, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": node.kafka, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user, "sasl.password": password, **KEEP_TRYING,
    }  # fmt: skip


def in_topic(node: Serving, outcome: str) -> list[dict[str, Any]]:
    """The records of the topic, once there is one of an authentication with that outcome."""
    consumer = Consumer({**settings(node, "admin", ADMIN), "group.id": "auditor", "enable.auto.commit": False})
    consumer.assign([TopicPartition("__audit", partition, 0) for partition in range(TOPIC_PARTITIONS)])
    found: list[dict[str, Any]] = []
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        if any((it["event"], it.get("outcome")) == ("authentication", outcome) for it in found):
            break
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(json.loads(message.value() or b""))
    consumer.close()
    return found


def asked(node: Serving, password: Path, capsys: pytest.CaptureFixture[str], *command: str, fails: bool = False) -> str:
    """The output of a command that the user admin gives."""
    file = password.with_name("client.properties")
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "admin"}
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()) + f"sasl.password={ADMIN}\n")
    try:
        at = ["--bootstrap", node.kafka, "--client-config", str(file)]
        assert run([*command, *at]) == fails
        out, err = capsys.readouterr()
        return err if fails else out
    finally:
        file.unlink()


def tail(node: Serving, password: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """The lines of `mainstem audit tail`."""
    return asked(node, password, capsys, "audit", "tail", "--since", "1h", *options).splitlines()


def used_token(node: Serving, password: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Make, list, renew and expire delegation tokens; the secret of one that stays."""

    def told(*command: str) -> Any:
        answer = json.loads(asked(node, password, capsys, "token", *command, "--json"))
        documented = documented_keys()[f"token {command[0]}"]
        assert keys_of(answer, documented) == documented
        return answer

    made = told("create", "--renewer", "bob", "--max-lifetime", "1h")
    other = told("create", "--owner", "bob")
    (one, two) = told("list")["tokens"]
    assert (one["token"], one["owner"], one["renewers"]) == (made["token"], "User:admin", ["User:bob"])
    assert (two["token"], two["owner"], two["requester"]) == (other["token"], "User:bob", "User:admin")
    assert told("renew", made["token"], "--for", "10m")["expires_ms"] < made["expires_ms"]
    gone = told("create")
    assert told("expire", gone["token"])["expires_ms"] is None
    told("expire", made["token"], "--in", "30m")
    assert "there is no delegation token" in asked(node, password, capsys, "token", "renew", "x", fails=True)
    assert "DELEGATION_TOKEN_OWNER_MISMATCH" in asked(
        node, password, capsys, "token", "expire", other["token"], fails=True
    )
    listed = asked(node, password, capsys, "token", "list")
    assert made["token"] in listed
    assert made["secret"] not in listed
    assert len(base64.b64decode(made["secret"])) == 64
    return str(made["secret"])


def test_what_clients_did_is_recorded_and_no_secret_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    password = tmp_path / "password"
    password.write_text(ADMIN)
    password.chmod(0o600)
    key = tmp_path / "token-key"
    key.write_text(TOKEN_KEY)
    key.chmod(0o600)
    file = tmp_path / "audit.log"
    node = Serving(tmp_path, *SETTINGS)
    listener = {"listen": node.kafka, "protocol": "SASL_PLAINTEXT"}
    node.settings = (
        *SETTINGS, "listen=", f"server.listeners.OUTSIDE={json.dumps(listener)}", "sasl.bootstrap_user=admin",
        f"sasl.bootstrap_password_file={password}", "authorizer.enabled=true", "authorizer.super_users=User:admin",
        "audit.enabled=true", f"audit.file={file}", f"delegation_token.secret_key_file={key}",
    )  # fmt: skip
    try:
        node.start()
        admin = AdminClient(settings(node, "admin", ADMIN))
        admin.create_topics([NewTopic("orders", 1)])["orders"].result(PATIENCE_SECONDS)
        change = UserScramCredentialUpsertion(
            "bob", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), BOB.encode()
        )
        admin.alter_user_scram_credentials([change])["bob"].result(PATIENCE_SECONDS)
        with pytest.raises(KafkaException):
            admin.create_topics([NewTopic("orders", 1)])["orders"].result(PATIENCE_SECONDS)
        with pytest.raises(KafkaException):
            admin.create_topics([NewTopic("__audit", 1)])["__audit"].result(PATIENCE_SECONDS)
        refusals: list[Any] = []
        bob = Producer({**settings(node, "bob", BOB), "message.timeout.ms": 2000})
        bob.produce("orders", VALUE, on_delivery=lambda error, _: refusals.append(error))
        bob.flush(PATIENCE_SECONDS)
        assert refusals[0] is not None
        with pytest.raises(KafkaException):
            AdminClient(settings(node, "bob", GUESS)).list_topics(timeout=2)
        found = in_topic(node, "denied")
        told = {(it.get("event"), it.get("operation"), it.get("resource"), it.get("outcome")) for it in found}
        assert ("admin", "CreateTopics", "topic:orders", "allowed") in told
        assert ("admin", "CreateTopics", "topic:orders", "TOPIC_ALREADY_EXISTS") in told
        assert ("admin", "AlterUserScramCredentials", "user:bob", "allowed") in told
        assert ("authentication", "SCRAM-SHA-256", None, "allowed") in told
        assert ("authentication", "SCRAM-SHA-256", None, "denied") in told
        assert {it["principal"] for it in found if it["event"] == "admin"} == {"User:admin"}
        secret = used_token(node, password, capsys)
        rows = tail(node, password, capsys)
        assert rows[0].split() == ["TIME", "EVENT", "WHO", "FROM", "OPERATION", "RESOURCE", "OUTCOME"]
        assert len(rows) > len(found)
        of_bob = tail(node, password, capsys, "--user", "bob", "--event", "denied", "--json")
        assert {json.loads(row)["principal"] for row in of_bob} == {"User:bob"}
        assert tail(node, password, capsys, "--user", "nobody", "--json") == []
        said = node.output
        for path in ("/metrics", "/v1/cluster", "/v1/topics", "/v1/store"):
            with urllib.request.urlopen(f"http://{node.http}{path}", timeout=PATIENCE_SECONDS) as answer:
                said += answer.read().decode()
        assert "mainstem_audit_records_total" in said
    finally:
        node.close()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for record in found:
        assert record in lines
    denied = {(it["principal"], it["operation"], it["resource"]) for it in lines if it["event"] == "denied"}
    assert ("User:bob", "DESCRIBE", "topic:orders") in denied
    said += file.read_text()
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path not in (password, key)}
    assert len(files) > 5
    bare = base64.b64decode(secret)
    for form in (secret, bare.hex(), base64.b64encode(secret.encode()).decode(), bare.decode("latin-1")):
        assert form not in said
        assert [path for path, content in files.items() if form.encode("latin-1") in content] == []
    for secret in (ADMIN, BOB, GUESS, TOKEN_KEY):
        for form in (secret, secret.encode().hex(), base64.b64encode(secret.encode()).decode()):
            assert form not in said
            assert [path for path, content in files.items() if form.encode() in content] == []
    assert VALUE not in said
