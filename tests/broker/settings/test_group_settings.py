"""Configs of groups hold at once, for the groups that have them alone."""

from __future__ import annotations

from tests.broker.share_groups.test_machine import CONFIG, KEY, Table
from tests.fakes.access.resource_configs import MemoryConfigs

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.settings.group_settings import CONSUMER_FIELDS, SHARE_FIELDS, GroupSettings, group_defaults
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.broker.share_groups.share_partition import BatchSpan
from mainstem.broker.share_groups.share_statistics import ShareCounts
from mainstem.broker.share_groups.state_machine import ShareStateMachine
from mainstem.model import ResourceType
from mainstem.nameserver.state.resource_configs.group_configs import GROUP_CONFIGS

GROUP = ResourceType.GROUP


def test_a_group_has_its_own_settings_and_others_the_nodes() -> None:
    configs, consumers, shares = MemoryConfigs(), ConsumerGroupsConfig(), ShareGroupsConfig(delivery_count_limit=9)
    settings = GroupSettings(configs, consumers, shares)
    assert settings.of_consumers("g") is consumers
    configs.set(GROUP, "g", consumer_session_timeout_ms="20000", share_delivery_count_limit="2")
    assert settings.of_consumers("g").consumer_session_timeout_ms == 20_000
    assert settings.of_consumers("g").consumer_heartbeat_interval_ms == 5_000
    assert settings.of_shares("g").delivery_count_limit == 2
    assert settings.of_shares("g") is settings.of_shares("g")
    assert settings.of_consumers("h") is consumers
    configs.table.change(GROUP, "g", {"share.delivery.count.limit": None})
    assert settings.of_shares("g").delivery_count_limit == 9
    configs.table.change(GROUP, "g", {"consumer.session.timeout.ms": "of a later version"})
    assert settings.of_consumers("g").consumer_session_timeout_ms == 45_000


def test_a_heartbeat_fits_into_the_session_wherever_each_comes_from() -> None:
    configs = MemoryConfigs()
    node = ConsumerGroupsConfig(consumer_session_timeout_ms=9_000, consumer_heartbeat_interval_ms=1_000)
    settings = GroupSettings(configs, node, ShareGroupsConfig())
    configs.set(GROUP, "g", consumer_heartbeat_interval_ms="20000")
    assert settings.of_consumers("g").consumer_heartbeat_interval_ms == 3_000


def test_the_nodes_own_values_are_told_where_they_are_not_kafkas() -> None:
    assert group_defaults(ConsumerGroupsConfig(), ShareGroupsConfig()) == {}
    told = group_defaults(ConsumerGroupsConfig(share_session_timeout_ms=7_000), ShareGroupsConfig(lock_duration_ms=9))
    assert told == {"share.session.timeout.ms": "7000", "share.record.lock.duration.ms": "9"}
    assert CONSUMER_FIELDS.keys() | SHARE_FIELDS.keys() | {"share.isolation.level"} == GROUP_CONFIGS.keys()


class ConfiguredTable(Table):
    """A share group's machine, where the group has configs of its own."""

    def __init__(self) -> None:
        self.configs = MemoryConfigs()
        super().__init__()

    def made(self) -> ShareStateMachine:
        settings = GroupSettings(self.configs, ConsumerGroupsConfig(), CONFIG)
        return ShareStateMachine(CONFIG, ShareCounts(), self.told.append, settings.of_shares)


def test_a_share_group_goes_by_them_at_once() -> None:
    table = ConfiguredTable()
    table.configs.set(GROUP, KEY.group_id, share_auto_offset_reset="latest")
    assert table.begin(5) == 5, "the node says earliest"
    table.configs.set(GROUP, KEY.group_id, share_record_lock_duration_ms="3000", share_delivery_count_limit="1")
    table.acquire("ada", 5, [BatchSpan(5, 5)], 1)
    table.pass_time(2_000)
    assert table.acquire("bob", 5, [BatchSpan(5, 5)], 1) == [], "the node's lock would have run out"
    table.pass_time(1_000)
    assert table.acquire("bob", 5, [BatchSpan(5, 5)], 1) == [], "it was given out once, and goes to nobody any more"
    assert table.begin(6) == 6
