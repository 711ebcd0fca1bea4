"""Kafka's rules for topics with a remote tier: what is taken, what is refused and with which words."""

from __future__ import annotations

import pytest
from tests.nameserver.state.test_state import CLUSTER, NODE, new_topic

from mainstem.errors import ConfigError
from mainstem.model import FeatureLevel
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.errors import FeatureLevelTooLow, InvalidConfig
from mainstem.nameserver.state.commands import ChangeTopicConfigs, RaiseFeatureLevel
from mainstem.nameserver.state.resource_configs.topic_defaults import TopicDefaults
from mainstem.nameserver.state.state import MetadataState

ON = {"remote.storage.enable": "true"}


def cluster(
    defaults: dict[str, str] | None = None, *, has_remote_store: bool = True, level: int = FeatureLevel.TIERED
) -> MetadataState:
    state = MetadataState(TopicDefaults(defaults or {}), has_remote_store=has_remote_store)
    for command in (CLUSTER, RaiseFeatureLevel(level), NODE):
        state.apply(command)
    return state


def create(state: MetadataState, configs: dict[str, str]) -> None:
    command = new_topic(state, "orders", configs=configs)
    state.check(command)
    state.apply(command)


def change(state: MetadataState, **changes: str | None) -> None:
    command = ChangeTopicConfigs(1, {key.replace("_", "."): value for key, value in changes.items()})
    state.check(command)
    state.apply(command)


@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"local.retention.ms": "1000", "local.retention.bytes": "5"},
        {"retention.ms": "-1", "local.retention.ms": "-1"},
        {"retention.ms": "1000", "local.retention.ms": "1000"},
        {"retention.ms": "1000", "local.retention.ms": "-2", "retention.bytes": "0", "local.retention.bytes": "0"},
        {"remote.log.copy.disable": "true"},
        {"remote.log.copy.disable": "true", "retention.ms": "1000", "local.retention.ms": "1000"},
        {"remote.log.delete.on.disable": "true"},
    ],
)
def test_taken(configs: dict[str, str]) -> None:
    create(cluster(), {**ON, **configs})


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        ({"cleanup.policy": "compact"}, "cleanup.policy=delete"),
        ({"cleanup.policy": "compact,delete"}, "compact,delete"),
        ({"retention.ms": "1000", "local.retention.ms": "1001"}, "local.retention.ms=1001 is more than"),
        ({"retention.ms": "1000", "local.retention.ms": "-1"}, "local.retention.ms=-1 is more than"),
        ({"retention.bytes": "9", "local.retention.bytes": "10"}, "local.retention.bytes=10 is more than"),
        ({"retention.bytes": "9", "local.retention.bytes": "-1"}, "local.retention.bytes=-1 is more than"),
        ({"local.retention.ms": "-3"}, "local.retention.ms='-3' is not allowed"),
        ({"remote.log.copy.disable": "true", "local.retention.ms": "5"}, "remote.log.copy.disable=true"),
        ({"remote.log.copy.disable": "true", "local.retention.bytes": "5"}, "remote.log.copy.disable=true"),
        ({"remote.storage.enable": "yes"}, "true or false"),
    ],
)
def test_refused(configs: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        create(cluster(), {**ON, **configs})
    assert words in str(raised.value)


def test_a_topic_without_a_tier_may_say_what_it_likes_of_one() -> None:
    create(cluster(has_remote_store=False), {"retention.ms": "5", "local.retention.ms": "6"})


def test_without_a_remote_tier_there_is_none_for_a_topic() -> None:
    state = cluster(has_remote_store=False)
    with pytest.raises(InvalidConfig, match="remote_dir"):
        create(state, ON)
    create(state, {})
    with pytest.raises(InvalidConfig, match="remote_dir"):
        change(state, remote_storage_enable="true")


def test_all_nodes_must_know_of_the_tier_first() -> None:
    state = cluster(level=FeatureLevel.MERGED)
    with pytest.raises(FeatureLevelTooLow, match="feature-level --raise"):
        create(state, ON)
    create(state, {})
    with pytest.raises(FeatureLevelTooLow):
        change(state, remote_storage_enable="true")
    state.apply(RaiseFeatureLevel(FeatureLevel.TIERED))
    change(state, remote_storage_enable="true")


def test_limits_are_looked_at_over_the_nodes_defaults() -> None:
    with pytest.raises(InvalidConfig, match=r"local\.retention\.ms=6 is more than retention\.ms=5"):
        create(cluster({"retention.ms": "5"}), {**ON, "local.retention.ms": "6"})


@pytest.mark.parametrize("value", ["false", None])
def test_the_tier_is_given_up_only_with_what_is_in_it(value: str | None) -> None:
    state = cluster()
    create(state, ON)
    with pytest.raises(InvalidConfig, match=r"remote\.log\.delete\.on\.disable=true together"):
        change(state, remote_storage_enable=value)
    change(state, remote_storage_enable=value, remote_log_delete_on_disable="true")
    assert not state.topics["orders"].settings.remote_storage_enable


def test_changes_of_other_configs_are_checked_with_those_there_are() -> None:
    state = cluster()
    create(state, {**ON, "local.retention.ms": "1000"})
    with pytest.raises(InvalidConfig, match="is more than"):
        change(state, retention_ms="999")
    with pytest.raises(InvalidConfig, match=r"cleanup\.policy"):
        change(state, cleanup_policy="compact")
    with pytest.raises(InvalidConfig, match="both must be the same"):
        change(state, remote_log_copy_disable="true")
    change(state, remote_log_copy_disable="true", local_retention_ms=None)


@pytest.mark.parametrize("name", ["remote.storage.enable", "remote.log.copy.disable", "remote.log.delete.on.disable"])
def test_no_default_gives_topics_a_tier(name: str) -> None:
    with pytest.raises(ConfigError, match="topic by topic"):
        NameserverConfig(topic_defaults={name: "true"}).validate()


def test_defaults_of_a_node_with_a_tier_go_together() -> None:
    defaults = {"retention.bytes": "5", "local.retention.bytes": "6"}
    NameserverConfig(topic_defaults=defaults).validate()
    with pytest.raises(ConfigError, match=r"local\.retention\.bytes=6 is more than"):
        NameserverConfig(topic_defaults=defaults, remote_dir="/remote").validate()
