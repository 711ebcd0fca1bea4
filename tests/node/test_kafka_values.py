"""A node's settings under Kafka's names, as DescribeConfigs tells them."""

from __future__ import annotations

from pathlib import Path

from tests.node.test_kafka_names import PROPERTIES, of_properties

from mainstem.broker.settings.fixed_configs import FIXED_CONFIGS, OF_ONE_LISTENER
from mainstem.nameserver.state.resource_configs.broker_configs import BROKER_CONFIGS
from mainstem.node.config import NodeConfig
from mainstem.node.kafka_names import OURS, properties
from mainstem.node.kafka_values import values_of


def test_what_a_file_of_properties_sets_is_told_again(tmp_path: Path) -> None:
    told = values_of(of_properties(PROPERTIES, tmp_path))
    given = properties(PROPERTIES)
    same = [name for name in given if name in told and name not in ("sasl.enabled.mechanisms",)]
    assert len(same) > 8
    assert {name: told[name] for name in same} == {name: given[name] for name in same}
    assert told["sasl.enabled.mechanisms"] == "SCRAM-SHA-512", "no other listener has SASL"
    assert told["listener.name.outside.sasl.enabled.mechanisms"] == "SCRAM-SHA-512"
    assert told["listener.name.inside.ssl.keystore.location"] == "/tls/node.pem"
    assert told["listener.name.inside.ssl.enabled.protocols"] == "TLSv1.3"
    assert "listener.name.outside.ssl.truststore.location" not in told


def test_durations_are_told_in_milliseconds_and_roles_as_kafka_calls_them(tmp_path: Path) -> None:
    told = values_of(of_properties("node.id=1", tmp_path, "storage.producer_expiry_seconds=7200"))
    assert told["producer.id.expiration.ms"] == "7200000"
    assert told["log.retention.check.interval.ms"] == "300000"
    assert told["process.roles"] == "broker,controller"
    assert (told["authorizer.class.name"], told["security.inter.broker.protocol"]) == ("", "PLAINTEXT")


def test_each_name_is_one_of_kafkas_configs() -> None:
    told = values_of(NodeConfig())
    assert set(OURS) <= set(told)
    unknown = [name for name in told if name not in FIXED_CONFIGS and name not in BROKER_CONFIGS]
    assert [name for name in unknown if not name.startswith(OF_ONE_LISTENER)] == []


def test_coordinators_are_set_under_kafkas_names(tmp_path: Path) -> None:
    config = of_properties(
        "transaction.max.timeout.ms=60000\noffsets.retention.minutes=60\ngroup.share.record.lock.duration.ms=15000\n",
        tmp_path,
    )
    assert config.transactions.timeout_ms_max == 60_000
    assert config.groups.offsets_retention_minutes == 60
    assert config.shares.lock_duration_ms == 15_000
