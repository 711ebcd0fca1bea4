"""Tenants on a real node: made by commands, and felt by a client of Kafka."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from tests.patience import PATIENCE_SECONDS
from tests.serving import Serving

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
            "topics": 1, "queues": 3,
        }  # fmt: skip
        assert run(["tenant", "delete", "acme", *http]) == 0
        assert run(["tenant", "delete", "acme", *http]) == 1
        assert "there is no tenant 'acme'" in capsys.readouterr().err
        assert run(["tenant", "list", *http]) == 0
        assert json.loads(capsys.readouterr().out) == {"tenants": []}
        admin.create_topics([NewTopic("acme.b", 9, 1)])["acme.b"].result(PATIENCE_SECONDS)
    finally:
        node.stop()
    changes = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(it["operation"], it["outcome"]) for it in changes if it.get("resource") == "tenant:acme"] == [
        ("SetTenant", "allowed"),
        ("RemoveTenant", "allowed"),
        ("RemoveTenant", "InvalidTenant"),
    ]
