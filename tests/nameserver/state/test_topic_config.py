"""Topic configs: what is taken, what is refused and with which words, and the settings that follow."""

from __future__ import annotations

import pytest

from mainstem.errors import ConfigError
from mainstem.model import TimestampType, TopicSettings
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.errors import InvalidConfig, InvalidTopicName
from mainstem.nameserver.state.topic_config import TOPIC_CONFIGS, check_configs, config_named, topic_settings
from mainstem.nameserver.state.topic_table import check_topic_name, collision_key

LONG_MAX = str(2**63 - 1)


@pytest.mark.parametrize("name", list(TOPIC_CONFIGS))
def test_every_default_is_allowed_and_documented(name: str) -> None:
    config = config_named(name)
    config.parse(config.default)
    assert len(config.documentation) > 20
    assert config.allowed()


def test_the_defaults_are_the_settings_of_a_topic_without_configs() -> None:
    assert topic_settings({}, {}) == TopicSettings()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retention.ms", "-1"),
        ("retention.ms", " 1000 "),
        ("retention.bytes", "0"),
        ("retention.records", "-1"),
        ("retention.records", LONG_MAX),
        ("segment.records", "-1"),
        ("segment.records", "1"),
        ("segment.records", LONG_MAX),
        ("cleanup.policy", "compact,delete"),
        ("cleanup.policy", "compact, delete"),
        ("compression.type", "zstd"),
        ("preallocate", "TRUE"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("min.cleanable.dirty.ratio", "1"),
        ("message.timestamp.after.max.ms", LONG_MAX),
        ("unclean.leader.election.enable", "true"),
        ("follower.replication.throttled.replicas", "0:1,1:2"),
    ],
)
def test_allowed(key: str, value: str) -> None:
    check_configs({key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retention.ms", "-2"),
        ("retention.ms", ""),
        ("retention.ms", "7 days"),
        ("retention.ms", "1_000"),
        ("retention.ms", "٣"),
        ("retention.ms", str(2**63)),
        ("retention.records", "-2"),
        ("retention.records", "1.5"),
        ("segment.records", "-2"),
        ("segment.records", "0"),
        ("segment.records", "+0"),
        ("max.message.bytes", str(2**31)),
        ("max.message.bytes", "1" * 5000),
        ("min.insync.replicas", "0"),
        ("cleanup.policy", "shred"),
        ("cleanup.policy", "delete,,compact"),
        ("compression.type", "rar"),
        ("preallocate", "yes"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("message.timestamp.type", "createtime"),
        ("message.timestamp.before.max.ms", "-1"),
        ("follower.replication.throttled.replicas", "x" * 40_000),
    ],
)
def test_refused_naming_key_and_value(key: str, value: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        check_configs({key: value})
    assert key in str(raised.value)
    assert len(value) > 1000 or repr(value) in str(raised.value)


def test_a_refusal_says_what_is_allowed() -> None:
    with pytest.raises(InvalidConfig, match="one of producer, uncompressed, gzip, snappy, lz4, zstd"):
        check_configs({"compression.type": "rar"})
    with pytest.raises(InvalidConfig, match="from -1 to 9223372036854775807"):
        check_configs({"retention.ms": "-7"})
    with pytest.raises(InvalidConfig, match=r"from -1 to 9223372036854775807, but for 0$"):
        check_configs({"segment.records": "0"})


def test_the_least_age_of_compaction_is_not_more_than_the_most() -> None:
    check_configs({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    for wrong in ({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"}, {"max.compaction.lag.ms": "0"}):
        with pytest.raises(InvalidConfig, match=r"max\.compaction\.lag\.ms"):
            check_configs(wrong)


@pytest.mark.parametrize("key", ["retention.bites", "rentention.ms", "no_such_key", "x" * 5000])
def test_the_refusal_of_an_unknown_key_names_what_is_near_and_fits_what_clients_keep_of_it(key: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        check_configs({key: "1"})
    assert len(str(raised.value)) < 500
    if "." in key:
        assert key.replace("bites", "bytes").replace("rentention", "retention") in str(raised.value)


@pytest.mark.parametrize("key", ["remote.storage.enabled", "local.retention", "retention_ms", ""])
def test_unknown_keys_are_refused(key: str) -> None:
    with pytest.raises(InvalidConfig):
        check_configs({key: "1"})


def test_overrides_go_before_the_nodes_defaults() -> None:
    settings = topic_settings(
        {"retention.ms": "5", "message.timestamp.type": "LogAppendTime"},
        {
            "retention.ms": "7",
            "retention.records": "9",
            "segment.bytes": "99",
            "segment.records": "12",
            "cleanup.policy": "compact",
            "max.message.bytes": "100",
            "min.cleanable.dirty.ratio": "0.25",
            "min.compaction.lag.ms": "3",
            "max.compaction.lag.ms": "9",
            "delete.retention.ms": "11",
        },
    )
    assert settings == TopicSettings(
        retention_ms=5,
        retention_records=9,
        segment_bytes=99,
        segment_records=12,
        cleanup_policy=frozenset({"compact"}),
        max_message_bytes=100,
        message_timestamp_type=TimestampType.LOG_APPEND_TIME,
        min_cleanable_dirty_ratio=0.25,
        min_compaction_lag_ms=3,
        max_compaction_lag_ms=9,
        delete_retention_ms=11,
    )


def test_what_has_no_effect_says_so() -> None:
    assert "No effect here" in config_named("compression.type").help
    assert "without effect" not in config_named("retention.ms").help


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 249, "...", "__consumer_offsets"])
def test_legal_names(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "a\0", "٣"])
def test_illegal_names(name: str) -> None:
    with pytest.raises(InvalidTopicName):
        check_topic_name(name)


def test_names_that_metric_systems_cannot_tell_apart() -> None:
    assert collision_key("a.b") == collision_key("a_b") != collision_key("a-b")


@pytest.mark.parametrize(
    "wrong",
    [
        {"cluster_id": "short"},
        {"node_id": -1},
        {"write_groups": 0},
        {"write_groups": 4097},
        {"topic_defaults": {"retention.ms": "soon"}},
        {"topic_defaults": {"no.such": "1"}},
        {"changes_waiting_max": 0},
        {"log_bytes_max": 1},
    ],
)
def test_wrong_configuration(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as raised:
        NameserverConfig(**wrong).validate()  # type: ignore[arg-type]
    assert next(iter(wrong)) in str(raised.value)


def test_default_configuration() -> None:
    NameserverConfig().validate()
