"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs against fakes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.broker.admin.admin_broker import AdminBroker, versions_of
from tests.fakes.access.resource_configs import MemoryConfigs

from mainstem.broker.broker import LogDir, NodeFacts
from mainstem.broker.config import BrokerConfig
from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.handlers import alter_configs, describe_configs, incremental_alter_configs, list_config_resources
from mainstem.broker.settings.group_settings import GroupSettings
from mainstem.broker.settings.live_settings import BROKER_FIELDS, LiveSettings, text_of
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.nameserver.state.config_value import ConfigType
from mainstem.nameserver.state.resource_configs.broker_configs import (
    BROKER_CONFIGS,
    CONNECTIONS,
    CONNECTIONS_OF_IP,
    CONNECTIONS_OF_IPS,
    GROUP_CONFIG_OF,
    RACK_AWARE_SELECTOR,
    TOPIC_CONFIG_OF,
)
from mainstem.nameserver.state.resource_configs.kept_broker_configs import KEPT_CONFIGS
from mainstem.nameserver.state.topic_config import TOPIC_CONFIGS
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.configs import (
    OPERATION_APPEND,
    OPERATION_DELETE,
    OPERATION_SET,
    OPERATION_SUBTRACT,
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    ReplacedConfig,
    ReplacedConfigsResource,
)
from mainstem.protocol.messages.list_config_resources import ListConfigResourcesRequest

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
FACTS = NodeFacts(
    topic_defaults={"retention.ms": "7", "cleanup.policy": "compact"},
    write_dir=LogDir("/one"),
    store_dir=LogDir("s3://two"),
)


def described(
    admin: AdminBroker, kind: int, name: str, keys: tuple[str, ...] | None = None, **options: Any
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    (result,) = admin.ask(describe_configs.handle, DescribeConfigsRequest(resources=(resource,), **options)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def by_name(result: DescribeConfigsResult) -> dict[str, DescribeConfigsResourceResult]:
    assert result.error_code == ErrorCode.NONE
    return {config.name: config for config in result.configs}


@pytest.mark.parametrize("version", versions_of(DescribeConfigsRequest))
def test_a_topic_is_described_in_every_version(version: int) -> None:
    admin = AdminBroker(FACTS)
    admin.create("a", configs={"max.message.bytes": "99"})
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name="a", configuration_keys=None)
    request = DescribeConfigsRequest(resources=(resource,), include_synonyms=True, include_documentation=version >= 3)
    (result,) = admin.ask(describe_configs.handle, request, version).results
    configs = by_name(result)
    assert set(configs) == set(TOPIC_CONFIGS)
    assert (configs["max.message.bytes"].value, configs["max.message.bytes"].config_source) == ("99", 1)
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("7", 4)
    assert (configs["segment.ms"].value, configs["segment.ms"].config_source) == ("604800000", 5)
    assert not any(config.read_only or config.is_sensitive for config in configs.values())
    if version >= 3:
        assert configs["cleanup.policy"].config_type == 7
        assert configs["preallocate"].config_type == 1
        assert all(config.documentation for config in configs.values())


def test_synonyms_run_from_what_holds_to_kafkas_default() -> None:
    admin = AdminBroker(FACTS)
    admin.create("a", configs={"retention.ms": "5"})
    config = by_name(described(admin, TOPIC, "a", ("retention.ms",), include_synonyms=True))["retention.ms"]
    assert [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms] == [
        ("retention.ms", "5", 1),
        ("log.retention.ms", "7", 4),
        ("log.retention.ms", "604800000", 5),
    ]
    plain = by_name(described(admin, TOPIC, "a", ("retention.ms",)))["retention.ms"]
    assert (plain.synonyms, plain.documentation) == ((), None)


def test_only_the_keys_asked_for_and_all_for_an_empty_list() -> None:
    admin = AdminBroker()
    admin.create("a")
    assert set(by_name(described(admin, TOPIC, "a", ("retention.ms", "no.such")))) == {"retention.ms"}
    assert set(by_name(described(admin, TOPIC, "a", ()))) == set(TOPIC_CONFIGS)


def test_the_broker_describes_itself() -> None:
    admin = AdminBroker(FACTS, BrokerConfig(num_partitions=9))
    configs = by_name(described(admin, BROKER, "1"))
    assert (configs["num.partitions"].value, configs["num.partitions"].config_source) == ("9", 4)
    assert configs["auto.create.topics.enable"].value == "true"
    assert configs["auto.create.topics.enable"].config_source == 5
    assert configs["log.dirs"].value == "/one,s3://two"
    assert configs["log.retention.ms"].value == "7"
    assert configs["remote.log.storage.system.enable"].value == "false"
    assert configs["log.local.retention.ms"].value == configs["log.local.retention.bytes"].value == "-2"
    assert configs["broker.id"].value == configs["node.id"].value == "1"
    assert {config.name for config in configs.values() if not config.read_only} == set(BROKER_CONFIGS)
    assert len(configs) == len(described(admin, BROKER, "1").configs)
    assert by_name(described(admin, BROKER, "")) == {}


KAFKAS = Path(__file__).with_name("kafka_broker_configs.tsv")
"""Name, type and default (`-`: none) of each config of Kafka 4.3.1's brokers: its `KafkaConfig.configDef`."""
OTHER_DEFAULTS = {
    "replica.selector.class",
    "default.replication.factor",
    "log.flush.interval.ms",
    "log.retention.ms",
    "log.roll.ms",
    "log.roll.jitter.ms",
    "sasl.kerberos.service.name",
}
"""The default told of these is not Kafka's: null comes to a number, or the config means something else here."""


def test_every_config_of_kafkas_brokers_is_described_with_its_type_and_default() -> None:
    admin = AdminBroker()
    configs = by_name(described(admin, BROKER, "1", include_synonyms=True, include_documentation=True))
    kafkas = [line.split("\t") for line in KAFKAS.read_text().splitlines()]
    assert len(kafkas) == 340
    for name, kind, default in kafkas:
        assert configs[name].config_type == ConfigType[kind].value, name
        assert configs[name].is_sensitive == (kind == "PASSWORD"), name
        assert configs[name].documentation, name
        told = [synonym.value for synonym in configs[name].synonyms if synonym.source == 5]
        if name not in OTHER_DEFAULTS:
            assert told == ([] if default == "-" else [default]), name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sasl.jaas.config", "would have no effect here: nodes do not log in"),
        ("max.connection.creation.rate", "connection_creation_rate"),
        ("delete.topic.enable", "is true on every node"),
        ("group.share.max.delivery.count.limit", "is 100 on every node"),
        ("offsets.retention.minutes", "is read when a node starts"),
        ("listener.name.inside.ssl.keystore.location", "is read when a node starts"),
        ("log.retention.hours", "log.retention.ms, of the same meaning, does"),
        ("no.such.config", "there is no broker config"),
    ],
)
def test_what_does_not_change_while_a_broker_runs_is_refused_with_the_reason(name: str, reason: str) -> None:
    admin = AdminBroker(NodeFacts(fixed={"listener.name.inside.ssl.keystore.location": "/node.pem"}))
    resource = AlterConfigsResource(
        resource_type=BROKER,
        resource_name="1",
        configs=(AlterableConfig(name=name, config_operation=OPERATION_SET, value="1"),),
    )
    (answer,) = admin.ask(
        incremental_alter_configs.handle, IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    ).responses
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert reason in (answer.error_message or "")


Held = list[tuple[int, int, Mapping[str, int]]]
"""The bounds of connections that a server was told: in all, of one address, of single ones."""


def with_bounds_of_connections() -> tuple[AdminBroker, LiveSettings, Held]:
    in_file = {"max.connections": "100", "max.connections.per.ip": "10", "max.connections.per.ip.overrides": ""}
    admin = AdminBroker(NodeFacts(fixed=in_file))
    admin.broker.configs = MemoryConfigs()
    held: Held = []
    groups = GroupSettings(admin.broker.configs, ConsumerGroupsConfig(), ShareGroupsConfig())
    return admin, LiveSettings(admin.broker, groups, hold_connections=lambda *bounds: held.append(bounds)), held


def test_the_most_connections_change_while_a_broker_runs() -> None:
    admin, live, held = with_bounds_of_connections()
    live.apply()
    for resource, name, value in (
        ("", "max.connections", "50"),
        ("1", "max.connections.per.ip", "5"),
        ("1", "max.connections.per.ip.overrides", "10.0.0.1:7, ::1:2"),
    ):
        assert altered(admin, BROKER, resource, change(name, OPERATION_SET, value)) == ErrorCode.NONE
        live.apply()
    assert held == [(100, 10, {}), (50, 10, {}), (50, 5, {}), (50, 5, {"10.0.0.1": 7, "::1": 2})]
    configs = by_name(described(admin, BROKER, "1", include_synonyms=True))
    assert [synonym.value for synonym in configs["max.connections"].synonyms] == ["50", "100", "2147483647"]
    for text in ("localhost:7", "10.0.0.1", "10.0.0.1:-1", "10.0.0.1:1,10.0.0.1:2"):
        overrides = change("max.connections.per.ip.overrides", OPERATION_SET, text)
        assert altered(admin, BROKER, "1", overrides) == ErrorCode.INVALID_CONFIG
    nobody = change("max.connections.per.ip", OPERATION_SET, "0")
    assert altered(admin, BROKER, "", nobody) == ErrorCode.INVALID_CONFIG, "who would take it back?"


def test_nobody_is_locked_out_by_bounds_of_connections() -> None:
    """Each who came would be refused, and could not change that."""
    admin, live, held = with_bounds_of_connections()
    nobody_else = change("max.connections.per.ip", OPERATION_SET, "0")
    for overrides, code in (("10.0.0.1:0", ErrorCode.INVALID_CONFIG), ("10.0.0.1:2", ErrorCode.NONE)):
        one = change("max.connections.per.ip.overrides", OPERATION_SET, overrides)
        assert altered(admin, BROKER, "", nobody_else, one) == code
    live.apply()
    closed = change("max.connections.per.ip.overrides", OPERATION_SET, "10.0.0.1:0")
    assert altered(admin, BROKER, "1", closed) == ErrorCode.NONE, "by itself it is sound"
    live.apply()
    assert held == [(100, 0, {"10.0.0.1": 2}), (100, 10, {"10.0.0.1": 0})]


def test_the_configs_of_a_listener_are_described_beside_those_of_all() -> None:
    keystore = "listener.name.inside.ssl.keystore.location"
    configs = by_name(described(AdminBroker(NodeFacts(fixed={keystore: "/node.pem"})), BROKER, "1"))
    assert (configs[keystore].value, configs[keystore].config_source) == ("/node.pem", 4)
    assert configs["ssl.keystore.location"].value is None


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "2", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "", ErrorCode.INVALID_REQUEST),
        (99, "a", ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_described(kind: int, name: str, error: ErrorCode) -> None:
    result = described(AdminBroker(), kind, name)
    assert (result.error_code, result.configs) == (error, ())
    assert result.error_message


def change(name: str, operation: int, value: str | None) -> AlterableConfig:
    return AlterableConfig(name=name, config_operation=operation, value=value)


def altered(admin: AdminBroker, kind: int, name: str, *changes: AlterableConfig, **options: Any) -> int:
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=options.get("validate_only", False))
    (answer,) = admin.ask(incremental_alter_configs.handle, request, options.get("version")).responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    assert bool(answer.error_message) == bool(answer.error_code)
    return answer.error_code


def configs_of(admin: AdminBroker, name: str = "a") -> dict[str, str]:
    topic = admin.metadata.topic(name)
    assert topic is not None
    return dict(topic.configs)


@pytest.mark.parametrize("version", versions_of(IncrementalAlterConfigsRequest))
def test_set_and_delete_in_every_version(version: int) -> None:
    admin = AdminBroker()
    admin.create("a", configs={"retention.ms": "5"})
    changes = change("max.message.bytes", OPERATION_SET, "9"), change("retention.ms", OPERATION_DELETE, None)
    assert altered(admin, TOPIC, "a", *changes, version=version) == ErrorCode.NONE
    assert configs_of(admin) == {"max.message.bytes": "9"}


def test_lists_are_appended_to_and_subtracted_from() -> None:
    admin = AdminBroker()
    admin.create("a")
    assert altered(admin, TOPIC, "a", change("cleanup.policy", OPERATION_APPEND, "compact")) == 0
    assert configs_of(admin) == {"cleanup.policy": "delete,compact"}
    assert altered(admin, TOPIC, "a", change("cleanup.policy", OPERATION_APPEND, "compact,delete")) == 0
    assert configs_of(admin) == {"cleanup.policy": "delete,compact"}
    assert altered(admin, TOPIC, "a", change("cleanup.policy", OPERATION_SUBTRACT, "delete")) == 0
    assert configs_of(admin) == {"cleanup.policy": "compact"}


def test_appending_starts_from_the_nodes_default() -> None:
    admin = AdminBroker(FACTS)
    admin.create("a")
    assert altered(admin, TOPIC, "a", change("cleanup.policy", OPERATION_APPEND, "delete")) == 0
    assert configs_of(admin) == {"cleanup.policy": "compact,delete"}


def test_validate_only_changes_nothing() -> None:
    admin = AdminBroker()
    admin.create("a")
    good, bad = change("retention.ms", OPERATION_SET, "5"), change("retention.ms", OPERATION_SET, "x")
    assert altered(admin, TOPIC, "a", good, validate_only=True) == ErrorCode.NONE
    assert altered(admin, TOPIC, "a", bad, validate_only=True) == ErrorCode.INVALID_CONFIG
    assert configs_of(admin) == {}


@pytest.mark.parametrize(
    ("name", "changes", "error"),
    [
        ("a", [change("retention.ms", OPERATION_SET, "soon")], ErrorCode.INVALID_CONFIG),
        ("a", [change("no.such", OPERATION_SET, "1")], ErrorCode.INVALID_CONFIG),
        ("a", [change("no.such", OPERATION_DELETE, None)], ErrorCode.INVALID_CONFIG),
        ("a", [change("retention.ms", OPERATION_APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ("a", [change("cleanup.policy", OPERATION_APPEND, "burn")], ErrorCode.INVALID_CONFIG),
        ("a", [change("retention.ms", OPERATION_SET, None)], ErrorCode.INVALID_REQUEST),
        ("a", [change("retention.ms", 4, "1")], ErrorCode.INVALID_REQUEST),
        ("a", [change("retention.ms", -1, "1")], ErrorCode.INVALID_REQUEST),
        ("a", [change("retention.ms", 0, "1"), change("retention.ms", 1, None)], ErrorCode.INVALID_REQUEST),
        (
            "a",
            [change("max.message.bytes", 0, "1"), change("retention.ms", 0, "x")],
            ErrorCode.INVALID_CONFIG,
        ),
        ("nowhere", [change("retention.ms", OPERATION_SET, "1")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("__consumer_offsets", [change("retention.ms", 0, "1")], ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_refused_changes_leave_all_as_it_was(name: str, changes: list[AlterableConfig], error: ErrorCode) -> None:
    admin = AdminBroker()
    admin.create("a", configs={"segment.ms": "77"})
    admin.create("__consumer_offsets", internal=True)
    assert altered(admin, TOPIC, name, *changes) == error
    assert configs_of(admin) == {"segment.ms": "77"}
    assert configs_of(admin, "__consumer_offsets") == {}


def live(admin: AdminBroker) -> LiveSettings:
    admin.broker.configs = MemoryConfigs()
    return LiveSettings(admin.broker, GroupSettings(admin.broker.configs, ConsumerGroupsConfig(), ShareGroupsConfig()))


def chain(admin: AdminBroker, kind: int, name: str, key: str) -> list[tuple[str | None, int]]:
    config = by_name(described(admin, kind, name, (key,), include_synonyms=True))[key]
    synonyms = [(it.value, it.source) for it in config.synonyms]
    assert synonyms[0] == (config.value, config.config_source)
    return synonyms


def test_brokers_change_while_they_run_one_by_one_or_all() -> None:
    admin = AdminBroker(config=BrokerConfig(num_partitions=9))
    settings = live(admin)
    settings.apply()
    assert chain(admin, BROKER, "1", "num.partitions") == [("9", 4), ("1", 5)]
    assert altered(admin, BROKER, "", change("num.partitions", 0, "3"), change("fetch.max.bytes", 0, "2048")) == 0
    assert altered(admin, BROKER, "1", change("num.partitions", 0, "4")) == 0
    assert chain(admin, BROKER, "1", "num.partitions") == [("4", 2), ("3", 3), ("9", 4), ("1", 5)]
    assert {name: it.config_source for name, it in by_name(described(admin, BROKER, "")).items()} == {
        "num.partitions": 3, "fetch.max.bytes": 3,
    }  # fmt: skip
    settings.apply()
    assert (admin.broker.config.num_partitions, admin.broker.config.fetch_bytes_max) == (4, 2048)
    assert admin.broker.auto_creation.partitions == 4
    assert altered(admin, BROKER, "1", change("num.partitions", OPERATION_DELETE, None)) == 0
    assert replaced(admin, BROKER, "", ("auto.create.topics.enable", "false")) == 0
    settings.apply()
    assert (admin.broker.config.num_partitions, admin.broker.config.fetch_bytes_max) == (9, 57671680)
    assert not admin.broker.config.auto_create_topics


def test_all_that_is_live_takes_effect() -> None:
    admin = AdminBroker()
    settings = live(admin)
    values = {
        "auto.create.topics.enable": "false", "num.partitions": "7", "default.replication.factor": "3",
        "fetch.max.bytes": "1234567", "max.incremental.fetch.session.cache.slots": "0",
        "replica.selector.class": RACK_AWARE_SELECTOR, "telemetry.max.bytes": "5",
    }  # fmt: skip
    kept = {config.name for config in KEPT_CONFIGS}
    live_elsewhere = GROUP_CONFIG_OF.keys() | TOPIC_CONFIG_OF.keys()
    live_elsewhere |= {CONNECTIONS, CONNECTIONS_OF_IP, CONNECTIONS_OF_IPS}
    assert values.keys() | live_elsewhere | kept == BROKER_CONFIGS.keys()
    assert not kept & (values.keys() | live_elsewhere), "these do something here"
    for name in BROKER_FIELDS:
        assert text_of(BrokerConfig(), name) == BROKER_CONFIGS[name].default
    assert altered(admin, BROKER, "1", *(change(name, OPERATION_SET, value) for name, value in values.items())) == 0
    settings.apply()
    assert {name: text_of(admin.broker.config, name) for name in values} == values
    assert admin.broker.nearer_replicas.enabled
    assert admin.broker.telemetry.bytes_max == 5
    assert admin.broker.static_config == BrokerConfig()


def test_groups_go_by_what_is_set_for_brokers_where_they_have_nothing_of_their_own() -> None:
    admin = AdminBroker(NodeFacts(group_defaults={"share.delivery.count.limit": "8"}))
    admin.broker.configs = MemoryConfigs()
    groups = GroupSettings(admin.broker.configs, ConsumerGroupsConfig(), ShareGroupsConfig(delivery_count_limit=8))
    settings = LiveSettings(admin.broker, groups)
    assert altered(admin, BROKER, "", change("group.share.delivery.count.limit", 0, "3")) == 0
    assert altered(admin, GROUP, "g", change("share.delivery.count.limit", 0, "2")) == 0
    settings.apply()
    assert [groups.of_shares(name).delivery_count_limit for name in ("g", "h")] == [2, 3]
    told = chain(admin, GROUP, "g", "share.delivery.count.limit")
    assert told == [("2", 8), ("3", 3), ("8", 4), ("5", 5)]
    assert altered(admin, BROKER, "", change("group.share.delivery.count.limit", OPERATION_DELETE, None)) == 0
    settings.apply()
    assert groups.of_shares("h").delivery_count_limit == 8
    assert altered(admin, BROKER, "", change("group.consumer.assignment.interval.ms", 0, "3000")) == 0
    assert altered(admin, GROUP, "g", change("consumer.assignment.interval.ms", 0, "2000")) == 0
    settings.apply()
    assert [groups.of_consumers(name).consumer_assignment_interval_ms for name in ("g", "h")] == [2_000, 3_000]


def test_what_does_nothing_here_is_kept_and_says_so() -> None:
    admin = AdminBroker()
    live(admin)
    assert chain(admin, BROKER, "1", "log.cleaner.backoff.ms") == [("15000", 5)]
    assert altered(admin, BROKER, "1", change("log.cleaner.backoff.ms", OPERATION_SET, "15001")) == ErrorCode.NONE
    assert chain(admin, BROKER, "1", "log.cleaner.backoff.ms") == [("15001", 2), ("15000", 5)]
    told = by_name(described(admin, BROKER, "1", include_documentation=True))
    for config in KEPT_CONFIGS:
        documentation = told[config.name].documentation
        assert documentation is not None
        assert "No effect here: " in documentation
        assert config.parse(config.default) is not None
    assert altered(admin, BROKER, "1", change("log.cleaner.backoff.ms", OPERATION_DELETE, None)) == ErrorCode.NONE
    assert chain(admin, BROKER, "1", "log.cleaner.backoff.ms") == [("15000", 5)]


def test_defaults_of_topics_change_while_brokers_run() -> None:
    admin = AdminBroker(NodeFacts(topic_defaults={"retention.ms": "7"}))
    live(admin)
    admin.create("a")
    admin.create("b", configs={"retention.ms": "5"})
    assert chain(admin, TOPIC, "a", "retention.ms") == [("7", 4), ("604800000", 5)]
    assert altered(admin, BROKER, "", change("log.retention.ms", OPERATION_SET, "8")) == ErrorCode.NONE
    assert altered(admin, BROKER, "1", change("log.retention.ms", OPERATION_SET, "9")) == ErrorCode.NONE
    below = [("9", 2), ("8", 3), ("7", 4), ("604800000", 5)]
    assert chain(admin, BROKER, "1", "log.retention.ms") == chain(admin, TOPIC, "a", "retention.ms") == below
    assert chain(admin, TOPIC, "b", "retention.ms") == [("5", 1), *below]


def test_lists_of_brokers_are_appended_to_from_what_lies_beneath() -> None:
    admin = AdminBroker()
    live(admin)
    assert altered(admin, BROKER, "", change("log.cleanup.policy", OPERATION_APPEND, "compact")) == ErrorCode.NONE
    assert altered(admin, BROKER, "", change("log.cleanup.policy", OPERATION_SUBTRACT, "delete")) == ErrorCode.NONE
    assert altered(admin, BROKER, "1", change("log.cleanup.policy", OPERATION_APPEND, "delete")) == ErrorCode.NONE
    assert chain(admin, BROKER, "1", "log.cleanup.policy") == [("compact,delete", 2), ("compact", 3), ("delete", 5)]
    assert altered(admin, BROKER, "1", change("log.cleanup.policy", OPERATION_SUBTRACT, "compact")) == ErrorCode.NONE
    assert chain(admin, BROKER, "1", "log.cleanup.policy")[0] == ("delete", 2)
    admin.create("a")
    assert altered(admin, BROKER, "1", change("log.cleanup.policy", OPERATION_SET, "compact")) == ErrorCode.NONE
    assert altered(admin, TOPIC, "a", change("cleanup.policy", OPERATION_APPEND, "delete")) == ErrorCode.NONE
    assert configs_of(admin) == {"cleanup.policy": "compact,delete"}


@pytest.mark.parametrize(
    ("name", "config", "value", "error"),
    [
        ("7", "num.partitions", "3", ErrorCode.INVALID_REQUEST),
        ("1", "log.retention.hours", "3", ErrorCode.INVALID_REQUEST),
        ("1", "socket.request.max.bytes", "3", ErrorCode.INVALID_REQUEST),
        ("1", "ssl.keystore.location", "x", ErrorCode.INVALID_REQUEST),
        ("1", "log.retention.ms", "soon", ErrorCode.INVALID_CONFIG),
        ("1", "log.cleaner.backoff.ms", "-1", ErrorCode.INVALID_CONFIG),
        ("1", "num.io.threads", "0", ErrorCode.INVALID_CONFIG),
        ("", "log.cleaner.min.compaction.lag.ms", "9223372036854775808", ErrorCode.INVALID_CONFIG),
        ("", "listeners", "x", ErrorCode.INVALID_REQUEST),
        ("1", "no.such", "x", ErrorCode.INVALID_REQUEST),
        ("1", "num.partitions", "0", ErrorCode.INVALID_CONFIG),
        ("", "group.consumer.session.timeout.ms", "1000", ErrorCode.INVALID_CONFIG),
    ],
)
def test_what_a_broker_does_not_change_while_it_runs(name: str, config: str, value: str, error: ErrorCode) -> None:
    admin = AdminBroker()
    live(admin)
    both = change("fetch.max.bytes", 0, "2048"), change(config, 0, value)
    assert altered(admin, BROKER, name, *both) == error
    assert by_name(described(admin, BROKER, "")) == {}
    assert altered(admin, BROKER, "1") == ErrorCode.NONE


def test_what_cannot_be_set_can_be_taken_away() -> None:
    """`kafka-reassign-partitions --verify` and `--cancel` take away throttles, whether there are any or not."""
    admin = AdminBroker()
    live(admin)
    throttle = change("leader.replication.throttled.rate", OPERATION_DELETE, None)
    assert altered(admin, BROKER, "1", throttle) == ErrorCode.NONE
    assert altered(admin, BROKER, "", change("num.partitions", 0, "3"), throttle) == ErrorCode.NONE
    assert by_name(described(admin, BROKER, "")).keys() == {"num.partitions"}
    assert altered(admin, BROKER, "7", throttle) == ErrorCode.INVALID_REQUEST, "another broker"


def test_loggers_have_levels_that_change() -> None:
    admin, logger = AdminBroker(), logging.getLogger("mainstem.of_a_test")
    try:
        assert by_name(described(admin, BROKER_LOGGER, "1"))["root"].config_source == 6
        assert altered(admin, BROKER_LOGGER, "1", change("mainstem.of_a_test", 0, "TRACE")) == ErrorCode.NONE
        assert logger.level == logging.DEBUG
        assert by_name(described(admin, BROKER_LOGGER, "1"))["mainstem.of_a_test"].value == "DEBUG"
        for bad, error in (
            (change("mainstem.of_a_test", 0, "LOUD"), ErrorCode.INVALID_CONFIG),
            (change("mainstem.nobody", 0, "INFO"), ErrorCode.INVALID_CONFIG),
            (change("root", OPERATION_DELETE, None), ErrorCode.INVALID_REQUEST),
            (change("root", OPERATION_APPEND, "INFO"), ErrorCode.INVALID_REQUEST),
        ):
            assert altered(admin, BROKER_LOGGER, "1", change("mainstem.of_a_test", 0, "ERROR"), bad) in (
                error, ErrorCode.INVALID_REQUEST,
            )  # fmt: skip
            assert altered(admin, BROKER_LOGGER, "1", bad) == error
        assert altered(admin, BROKER_LOGGER, "", change("root", 0, "INFO")) == ErrorCode.INVALID_REQUEST
        assert replaced(admin, BROKER_LOGGER, "1", ("root", "INFO")) == ErrorCode.INVALID_REQUEST
        assert logger.level == logging.DEBUG
        assert altered(admin, BROKER_LOGGER, "1", change("mainstem.of_a_test", OPERATION_DELETE, None)) == 0
        assert logger.level == logging.NOTSET
    finally:
        logger.setLevel(logging.NOTSET)


def test_each_resource_has_its_own_answer_and_one_named_twice_is_refused() -> None:
    admin = AdminBroker()
    for name in ("a", "b", "c"):
        admin.create(name)
    values = (("a", "1"), ("b", "x"), ("c", "1"), ("c", "2"))
    resources = tuple(
        AlterConfigsResource(
            resource_type=TOPIC, resource_name=name, configs=(change("retention.ms", OPERATION_SET, value),)
        )
        for name, value in values
    )
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
    answers = admin.ask(incremental_alter_configs.handle, request).responses
    assert [(answer.resource_name, answer.error_code) for answer in answers] == [
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.INVALID_CONFIG),
        ("c", ErrorCode.INVALID_REQUEST),
    ]
    assert [configs_of(admin, name) for name in ("a", "b", "c")] == [{"retention.ms": "1"}, {}, {}]


def replaced(admin: AdminBroker, kind: int, name: str, *configs: tuple[str, str | None], **options: Any) -> ErrorCode:
    resource = ReplacedConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=tuple(ReplacedConfig(name=key, value=value) for key, value in configs),
    )
    request = AlterConfigsRequest(resources=(resource,), validate_only=options.get("validate_only", False))
    (answer,) = admin.ask(alter_configs.handle, request, options.get("version")).responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    assert bool(answer.error_message) == bool(answer.error_code)
    return ErrorCode(answer.error_code)


@pytest.mark.parametrize("version", versions_of(AlterConfigsRequest))
def test_what_is_named_becomes_all_that_is_set(version: int) -> None:
    admin = AdminBroker()
    admin.create("a", configs={"retention.ms": "5", "segment.ms": "77"})
    assert replaced(admin, TOPIC, "a", ("max.message.bytes", "9"), ("segment.ms", "78"), version=version) == 0
    assert configs_of(admin) == {"max.message.bytes": "9", "segment.ms": "78"}
    assert replaced(admin, TOPIC, "a", version=version) == 0
    assert configs_of(admin) == {}


@pytest.mark.parametrize(
    ("kind", "name", "configs", "error"),
    [
        (TOPIC, "a", [("retention.ms", "soon")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "a", [("no.such", "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "a", [("retention.ms", None)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "a", [("retention.ms", "1"), ("retention.ms", "2")], ErrorCode.INVALID_REQUEST),
        (TOPIC, "nowhere", [("retention.ms", "1")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "1", [("listeners", "x")], ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "1", [("root", "INFO")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_refused_replacements_leave_all_as_it_was(
    kind: int, name: str, configs: list[tuple[str, str | None]], error: ErrorCode
) -> None:
    admin = AdminBroker()
    admin.create("a", configs={"segment.ms": "77"})
    assert replaced(admin, kind, name, *configs) == error
    assert configs_of(admin) == {"segment.ms": "77"}


def test_a_replacement_is_only_tried_where_that_is_asked_for() -> None:
    admin = AdminBroker()
    admin.create("a", configs={"segment.ms": "77"})
    assert replaced(admin, TOPIC, "a", ("retention.ms", "5"), validate_only=True) == ErrorCode.NONE
    assert replaced(admin, TOPIC, "a", ("retention.ms", "x"), validate_only=True) == ErrorCode.INVALID_CONFIG
    assert configs_of(admin) == {"segment.ms": "77"}


def test_a_broker_says_where_it_is_reached_and_where_it_stands() -> None:
    facts = NodeFacts(
        listeners=("PLAINTEXT://0.0.0.0:9092", "INSIDE://[::]:9093"),
        advertised=("PLAINTEXT://node-1:9092", "INSIDE://node-1:9093"),
        protocols=("PLAINTEXT:PLAINTEXT", "INSIDE:SASL_SSL"),
        rack="r2",
    )
    configs = by_name(described(AdminBroker(facts), BROKER, "1"))
    assert configs["listeners"].value == "PLAINTEXT://0.0.0.0:9092,INSIDE://[::]:9093"
    assert configs["advertised.listeners"].value == "PLAINTEXT://node-1:9092,INSIDE://node-1:9093"
    assert configs["listener.security.protocol.map"].value == "PLAINTEXT:PLAINTEXT,INSIDE:SASL_SSL"
    assert configs["broker.rack"].value == "r2"
    assert configs["replica.selector.class"].value == "", "leaders answer"
    assert {"num.partitions", "default.replication.factor", "message.max.bytes"} <= set(configs)


def test_what_is_taken_without_effect_is_described_as_such() -> None:
    admin = AdminBroker()
    admin.create("a")
    configs = by_name(described(admin, TOPIC, "a", include_documentation=True))
    silent = [name for name, declared in TOPIC_CONFIGS.items() if declared.without_effect is not None]
    assert len(silent) > 10
    assert all("No effect here: " in (configs[name].documentation or "") for name in silent)


def listed(admin: AdminBroker, *types: int, version: int = 1) -> tuple[int, list[tuple[int, str]]]:
    answer = admin.ask(list_config_resources.handle, ListConfigResourcesRequest(resource_types=types), version)
    return answer.error_code, [(one.resource_type, one.resource_name) for one in answer.config_resources]


def test_topics_and_brokers_are_listed_as_what_has_configs() -> None:
    admin = AdminBroker()
    admin.create("b")
    admin.create("a")
    topics, brokers, loggers = [(2, "b"), (2, "a")], [(4, "1")], [(8, "1")]
    assert listed(admin) == (ErrorCode.NONE, [*topics, *brokers, *loggers])
    assert listed(admin, 4, 2) == (ErrorCode.NONE, [*topics, *brokers])
    assert listed(admin, 8) == (ErrorCode.NONE, loggers)
    assert listed(admin, 16, 32) == (ErrorCode.NONE, []), "there are none of these"
    assert listed(admin, 2, 7) == (ErrorCode.UNSUPPORTED_VERSION, [])
    assert listed(admin, version=0) == (ErrorCode.NONE, []), "it asks for client metrics alone"
