"""Defaults of topics that are set for brokers: whose they are, what topics make of them, which are refused."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.nameserver.state.test_acls import secured
from tests.nameserver.state.test_moving_slots import cluster as with_moves
from tests.nameserver.state.test_moving_slots import slots, wished
from tests.nameserver.state.test_state import new_topic
from tests.nameserver.state.test_tiering_rules import ON
from tests.nameserver.state.test_tiering_rules import cluster as with_tier

from mainstem.model import FeatureLevel, Node, ResourceType, slot_of
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.directory import open_directory
from mainstem.nameserver.errors import InvalidConfig, TenantCeiling
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.commands import (
    ChangeResourceConfigs,
    LoggedChange,
    SetTenant,
    TopicConfigsChanged,
    encode_change,
)
from mainstem.nameserver.state.replica import MetadataReplica, differences
from mainstem.nameserver.state.resource_configs.broker_configs import ALL_BROKERS
from mainstem.nameserver.state.resource_configs.topic_defaults import TopicDefaults
from mainstem.nameserver.state.state import MetadataState
from mainstem.storage.disks.disk_files import DiskFiles

BROKER = ResourceType.BROKER
RETENTION, POLICY = "log.retention.ms", "log.cleanup.policy"


def setting(name: str = ALL_BROKERS, **configs: str | None) -> ChangeResourceConfigs:
    """Underscores in config names stand for dots."""
    return ChangeResourceConfigs(BROKER, name, {key.replace("_", "."): value for key, value in configs.items()})


def make(state: MetadataState, *commands: ChangeResourceConfigs) -> list[TopicConfigsChanged]:
    """Check and apply them; the topics that have other settings for it."""
    for command in commands:
        state.check(command)
        state.apply(command)
    return list(state.reconsidered_topics())


def retention(state: MetadataState, name: str) -> int:
    topic = state.topic(name)
    assert topic is not None
    assert state.topic_by_number(topic.number) is state.topic_by_id(topic.topic_id) is topic
    return topic.settings.retention_ms


def test_topics_without_a_value_of_their_own_have_what_is_set_for_brokers() -> None:
    state = secured(FeatureLevel.CONFIGURED)
    for name, configs in (("a", {}), ("b", {"retention.ms": "5"}), ("c", {"segment.ms": "6"})):
        state.apply(new_topic(state, name, configs=configs))
    changed = make(state, setting(log_retention_ms="8"))
    assert [event.topic.name for event in changed] == ["a", "c"]
    assert [event.before.settings.retention_ms for event in changed] == [604_800_000] * 2
    state.apply(new_topic(state, "d"))
    assert [retention(state, name) for name in "abcd"] == [8, 5, 8, 8]
    assert make(state, setting("2", log_retention_ms="9")) == []
    assert len(make(state, setting("1", log_retention_ms="9"))) == 3
    assert [retention(state, name) for name in "abcd"] == [9, 5, 9, 9]
    assert len(make(state, setting("1", log_retention_ms=None), setting(log_retention_ms=None))) == 3
    assert retention(state, "a") == 604_800_000


def test_what_is_set_comes_before_the_configuration_file_and_what_cannot_be_used_is_passed_over() -> None:
    defaults = TopicDefaults({"retention.ms": "7", "segment.ms": "1"}, node_id=3)
    assert defaults.in_force({}) == {"retention.ms": "7", "segment.ms": "1"}
    set_for = {ALL_BROKERS: {RETENTION: "8", "num.partitions": "3"}, "3": {RETENTION: "soon"}, "1": {RETENTION: "9"}}
    assert defaults.in_force(set_for) == {"retention.ms": "8", "segment.ms": "1"}
    assert defaults.in_force(set_for, "1") == {"retention.ms": "9", "segment.ms": "1"}


def test_listeners_hear_of_each_topic_by_the_log_and_by_a_snapshot() -> None:
    async def story() -> None:
        replica, told = MetadataReplica(TopicDefaults()), list[object]()
        replica.state = secured(FeatureLevel.CONFIGURED)
        for name in ("a", "b"):
            replica.state.apply(new_topic(replica.state, name))
        behind = await replica.restored(list(replica.commands()))
        replica.subscribe(told.append)
        await replica.apply(1, 1, encode_change(LoggedChange([setting(log_retention_ms="8")])))
        assert [event.topic.name for event in told if isinstance(event, TopicConfigsChanged)] == ["a", "b"]
        after = await replica.restored(list(replica.commands()))
        assert [retention(after, name) for name in "ab"] == [8, 8]
        assert differences(replica.state, after) == []
        assert [type(event) for event in differences(behind, after)][1:] == [TopicConfigsChanged] * 2

    asyncio.run(story())


def test_defaults_that_do_not_go_together_are_refused() -> None:
    state = secured(FeatureLevel.CONFIGURED)
    with pytest.raises(InvalidConfig, match=r"is more than max.compaction.lag.ms=3"):
        state.check(setting(log_cleaner_min_compaction_lag_ms="4", log_cleaner_max_compaction_lag_ms="3"))
    make(state, setting(log_cleaner_max_compaction_lag_ms="3"))
    with pytest.raises(InvalidConfig, match=r"is more than max.compaction.lag.ms=3"):
        state.check(setting("1", log_cleaner_min_compaction_lag_ms="4"))


def test_a_topic_of_the_remote_tier_does_not_become_compacted() -> None:
    state = with_tier(level=FeatureLevel.CONFIGURED)
    make(state, setting(log_cleanup_policy="compact"), setting(log_cleanup_policy=None))
    state.apply(new_topic(state, "orders", configs=ON))
    with pytest.raises(InvalidConfig, match=r"'orders' has a remote tier: .*takes cleanup.policy=delete"):
        state.check(setting(log_cleanup_policy="compact"))
    with pytest.raises(InvalidConfig, match=r"local.retention.ms=8 is more than retention.ms=7"):
        state.check(setting(log_local_retention_ms="8", log_retention_ms="7"))


def test_a_topic_that_moves_does_not_become_compacted() -> None:
    state = with_moves()
    state.apply(new_topic(state, "orders", partitions=8))
    topic = state.topic("orders")
    assert topic is not None
    make(state, setting(log_cleanup_policy="compact"), setting(log_cleanup_policy=None))
    command = wished(state, slot_of(topic.queue_id(0)))
    assert slots(state)[command.slot] != command.group
    state.apply(command)
    with pytest.raises(InvalidConfig, match="'orders' cannot be compacted while partition 0 moves"):
        state.check(setting(log_cleanup_policy="compact"))


def test_no_default_is_above_the_ceiling_of_a_tenant_whose_topics_have_it() -> None:
    state = secured(FeatureLevel.CONFIGURED)
    make(state, setting(log_retention_ms="50"))
    state.apply(SetTenant("acme", "acme.", retention_ms_max=60))
    state.apply(new_topic(state, "acme.a", configs={"retention.ms": "50"}))
    state.apply(new_topic(state, "other"))
    make(state, setting(log_retention_ms="61"), setting(log_retention_ms="40"))
    state.apply(new_topic(state, "acme.b"))
    make(state, setting(log_retention_ms="60"))
    for above in ("61", "-1"):
        with pytest.raises(TenantCeiling, match=r"'acme.b': retention.ms=.* is above the ceiling of tenant 'acme', 60"):
            state.check(setting(log_retention_ms=above))


def test_a_node_has_them_after_a_restart_from_a_snapshot(tmp_path: Path) -> None:
    config = NameserverConfig(log_bytes_max=4096)

    async def story() -> None:
        for is_first in (True, False):
            node = Node(node_id=1, host="127.0.0.1", port=9092)
            nameserver = await Nameserver.open(DiskFiles(tmp_path), random.Random(1), config, node)
            try:
                if is_first:
                    await nameserver.administration.create_topic("a", 1, 1, {})
                    await nameserver.config_administration.change(BROKER, ALL_BROKERS, {RETENTION: "8"})
                    for number in range(60):  # more than the log takes without a snapshot
                        await nameserver.administration.create_topic(f"b{number:0100}", 1, 1, {})
                topic = nameserver.lookups.topic("a")
                assert topic is not None
                assert topic.settings.retention_ms == 8
                made = await nameserver.administration.create_topic("c", 1, 1, {}, validate_only=True)
                assert made.settings.retention_ms == 8
            finally:
                await nameserver.close()
        assert list((tmp_path / "metadata").glob("*.snapshot"))
        directory = await open_directory(DiskFiles(tmp_path), config)
        try:
            assert retention(directory.replica.state, "a") == 8
        finally:
            await directory.close()

    asyncio.run(story())
