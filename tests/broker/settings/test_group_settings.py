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
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_fetch import ACCEPT, RENEW

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
    shares = ShareGroupsConfig(lock_duration_ms=9, renewals=False)
    assert group_defaults(ConsumerGroupsConfig(share_session_timeout_ms=7_000), shares) == {
        "share.session.timeout.ms": "7000",
        "share.record.lock.duration.ms": "9",
        "share.renew.acknowledge.enable": "false",
    }
    without_effect = {config.name for config in GROUP_CONFIGS.values() if config.without_effect}
    assert CONSUMER_FIELDS.keys() | SHARE_FIELDS.keys() | without_effect == GROUP_CONFIGS.keys()


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


def test_a_share_group_may_have_no_renewals() -> None:
    table = ConfiguredTable()
    table.begin(5)
    table.acquire("ada", 5, [BatchSpan(5, 6)], 2)
    assert table.acknowledge("ada", (5, 5, (RENEW,))) is ErrorCode.NONE
    table.configs.set(GROUP, KEY.group_id, share_renew_acknowledge_enable="false")
    assert table.acknowledge("ada", (5, 6, (ACCEPT, RENEW))) is ErrorCode.INVALID_RECORD_STATE, "nothing of it is done"
    assert table.acknowledge("ada", (5, 6, (ACCEPT, ACCEPT))) is ErrorCode.NONE
