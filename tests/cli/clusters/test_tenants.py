"""Tenants on a real node: made by commands, and felt by a client of Kafka."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

from mainstem.cli.main import run


def test_clients_are_told_of_their_tenants_ceilings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit = tmp_path / "audit.log"
    node = Serving(tmp_path, "pipeline.mode=off", "audit.enabled=true", "audit.topic=false", f"audit.file={audit}")
    node.start()
    try:
        http = ["--http", node.http, "--json"]
        limits = ["--queues-max", "3", "--retention-ms-max", "60000", "--user", "alice"]
        assert run(["tenant", "create", "acme", *limits, *http]) == 0
        capsys.readouterr()
        admin = AdminClient({"bootstrap.servers": node.kafka})
        for name, partitions, configs, part in (
            ("acme.a", 4, {}, "tenant 'acme' would have 4 partitions"),
            ("acme.a", 1, {"retention.ms": "60001"}, "above the ceiling of tenant 'acme', 60000"),
        ):
            made = admin.create_topics([NewTopic(name, partitions, 1, config=configs)])[name]
            with pytest.raises(KafkaException) as refused:
                made.result(PATIENCE_SECONDS)
            assert refused.value.args[0].code() == KafkaError.POLICY_VIOLATION
            assert part in refused.value.args[0].str()
        admin.create_topics([NewTopic("acme.a", 3, 1)])["acme.a"].result(PATIENCE_SECONDS)
        assert run(["tenant", "describe", "acme", *http]) == 0
        assert json.loads(capsys.readouterr().out) == {
            "name": "acme", "prefix": "acme.", "retention_ms_max": 60000, "queues_max": 3, "users": ["alice"],
            "quotas": {}, "topics": 1, "queues": 3,
        }  # fmt: skip
        assert run(["tenant", "create", "acme", *http]) == 1
        assert "there is a tenant 'acme' already" in capsys.readouterr().err
        assert run(["tenant", "alter", "acme", "--queues-max", "none", "--produce-rate", "10MB", *http]) == 0
        producer = Producer({"bootstrap.servers": node.kafka})
        producer.produce("acme.a", b"x" * 1_000)
        assert producer.flush(PATIENCE_SECONDS) == 0
        capsys.readouterr()
        assert run(["tenant", "usage", "acme", *http]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["nodes"], answer["silent"]) == ([1], [])
        (usage,) = answer["tenants"]
        assert usage.pop("unsplit_bytes") == usage.pop("journal_bytes") > 1_000
        assert 0 <= usage.pop("split_lag_seconds") < PATIENCE_SECONDS
        assert usage == {
            "name": "acme", "topics": 1, "queues": 3, "queues_max": None, "stored_bytes": 0, "remote_bytes": 0,
            "produced_bytes": 0, "fetched_bytes": 0,
        }  # fmt: skip
        for every_node in ([], ["--this-node"]):
            assert run(["tenant", "usage", *every_node, *http[:2]]) == 0
            assert "acme" in capsys.readouterr().out
            assert run(["tenant", "usage", "nobody", *every_node, *http]) == 1
            assert "there is no tenant nobody" in capsys.readouterr().err
        quotas_are_listed_changed_and_described(["--bootstrap", node.kafka, "--json"], capsys)
        assert run(["tenant", "delete", "acme", "-y", *http]) == 0
        assert run(["tenant", "delete", "acme", "-y", *http]) == 1
        assert "there is no tenant 'acme'" in capsys.readouterr().err
        assert run(["tenant", "list", *http]) == 0
        assert json.loads(capsys.readouterr().out) == {"tenants": []}
        admin.create_topics([NewTopic("acme.b", 9, 1)])["acme.b"].result(PATIENCE_SECONDS)
    finally:
        node.stop()
    changes = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(it["operation"], it["outcome"]) for it in changes if it.get("resource") == "tenant:acme"] == [
        ("CreateTenant", "allowed"),
        ("CreateTenant", "refused"),
        ("AlterTenant", "allowed"),
        ("RemoveTenant", "allowed"),
        ("RemoveTenant", "refused"),
    ]


def quotas_are_listed_changed_and_described(kafka: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """On a node whose tenant acme may produce 10 MB in a second."""

    def told(*command: str) -> dict[str, Any]:
        capsys.readouterr()
        assert run(["quota", *command, *kafka]) == 0
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    acme = {"of": {"tenant": "acme"}, "values": {"producer_byte_rate": 10_000_000.0}}
    assert told("list") == {"quotas": [acme]}
    told("set", "--every-user", "--consume-rate", "1MiB", "--request-percentage", "50")
    told("set", "--user", "alice", "--client-id", "app", "--consume-rate", "2MiB")
    assert len(told("list")["quotas"]) == 3
    assert [it["values"] for it in told("list", "--user", "alice")["quotas"]] == [{"consumer_byte_rate": 2097152.0}]
    described = told("describe", "--user", "alice", "--client-id", "app")["in_force"]
    assert described == {
        "consumer_byte_rate": {"value": 2097152.0, "shared_by": {"client-id": "app", "user": "alice"}},
        "request_percentage": {"value": 50.0, "shared_by": {"user": "alice"}},
    }
    assert told("describe", "--tenant", "acme")["in_force"]["producer_byte_rate"]["value"] == 10_000_000
    assert told("remove", "--every-user")["removed"] == ["consumer_byte_rate", "request_percentage"]
    told("remove", "--user", "alice", "--client-id", "app")
    assert run(["quota", "remove", "--user", "alice", *kafka]) == 1
    assert "there are no quotas of user alice" in capsys.readouterr().err
    assert run(["quota", "set", "--ip", "nowhere", "--connection-rate", "5", *kafka]) == 2
    assert "is no IP address" in capsys.readouterr().err
    assert run(["quota", "set", "--user", "alice", "--connection-rate", "5", *kafka]) == 1
    assert "no quota 'connection_creation_rate' of user" in capsys.readouterr().err
    assert told("list") == {"quotas": [acme]}
