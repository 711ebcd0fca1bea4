"""Configs of what is no topic: the level they take, what is refused, their way through snapshots and restarts."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.nameserver.state.test_acls import secured

from mainstem.model import FeatureLevel, Node, ResourceType
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.errors import FeatureLevelTooLow, InvalidConfig
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.commands import (
    BrokerConfigsChanged,
    ChangeResourceConfigs,
    LoggedChange,
    decode_change,
    decode_command,
    encode_change,
    encode_command,
)
from mainstem.nameserver.state.replica import differences
from mainstem.nameserver.state.resource_configs import config_table
from mainstem.nameserver.state.resource_configs.config_table import ConfigTable
from mainstem.nameserver.state.resource_configs.topic_defaults import TopicDefaults
from mainstem.nameserver.state.state import MetadataState
from mainstem.storage.disks.disk_files import DiskFiles

METRICS, GROUP = ResourceType.CLIENT_METRICS, ResourceType.GROUP
CHANGE = ChangeResourceConfigs(METRICS, "s", {"metrics": "*", "interval.ms": "1000"})


def test_the_logs_keep_none_below_their_level() -> None:
    with pytest.raises(FeatureLevelTooLow, match=f"takes level {FeatureLevel.CONFIGURED:d}"):
        secured(FeatureLevel.REGROUPED).check(CHANGE)
    secured(FeatureLevel.CONFIGURED).check(CHANGE)


def test_commands_stand_in_the_log_and_in_snapshots_as_they_were() -> None:
    commands = [
        CHANGE,
        ChangeResourceConfigs(METRICS, "t", {"metrics": "a"}),
        ChangeResourceConfigs(METRICS, "s", {"interval.ms": None}),
        ChangeResourceConfigs(METRICS, "t", {"metrics": None}),
    ]
    assert decode_change(encode_change(LoggedChange([*commands]))).commands == commands
    state = secured(FeatureLevel.CONFIGURED)
    for command in commands:
        state.apply(command)
    after = MetadataState(TopicDefaults())
    for again in [decode_command(encode_command(command)) for command in state.commands()]:
        after.apply(again)
    assert dict(after.config_table) == {(METRICS, "s"): {"metrics": "*"}}


@pytest.mark.parametrize(
    ("kind", "name", "changes", "fault"),
    [
        (ResourceType.TOPIC, "t", {}, "have no configs here"),
        (99, "t", {}, "have no configs here"),
        (GROUP, "", {}, "a group has an id"),
        (GROUP, "g", {"consumer.session.timeout.ms": "999"}, "a whole number from 1000"),
        (GROUP, "g", {"consumer.heartbeat.interval.ms": "45000"}, "is not more than consumer.heartbeat"),
        (GROUP, "g", {"share.isolation.level": "read"}, "one of read_uncommitted"),
        (METRICS, "", {}, "no name of such a resource"),
        (METRICS, "a b", {}, "no name of such a resource"),
        (METRICS, "a" * 250, {}, "at most 249"),
        (METRICS, "s", {"speed": "1"}, "unknown config 'speed'; known are metrics"),
        (GROUP, "g", {"consumer.session.timeot.ms": "9"}, r"known are consumer\.session\.timeout\.ms and 16 others$"),
        (METRICS, "s", {"interval.ms": "99"}, "a whole number from 100 to 3600000"),
        (METRICS, "s", {"metrics": "x" * 5000}, "at most 4096"),
        (METRICS, "s", {"match": "client_id"}, "it takes SELECTOR=REGULAR EXPRESSION"),
        (METRICS, "s", {"match": "speed=.*"}, "it takes SELECTOR=REGULAR EXPRESSION"),
        (METRICS, "s", {"match": "client_id=["}, "no regular expression"),
        (METRICS, "s", {"match": "client_id=a,client_id=b"}, "client_id twice"),
    ],
)
def test_changes_that_make_no_sense_are_refused(
    kind: int, name: str, changes: dict[str, str | None], fault: str
) -> None:
    with pytest.raises(InvalidConfig, match=fault):
        ConfigTable().check(kind, name, changes)


def test_there_are_configs_of_only_so_many_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has some already needs no room, nor does a removal."""
    few = config_table.RULES[METRICS]._replace(most=1)
    monkeypatch.setattr(config_table, "RULES", {**config_table.RULES, METRICS: few})
    table = ConfigTable()
    table.change(GROUP, "g", {"share.delivery.count.limit": "2"})
    table.change(METRICS, "s", {"metrics": "*"})
    before = table.version
    table.check(METRICS, "s", {"metrics": "a"})
    table.check(METRICS, "t", {"metrics": None})
    with pytest.raises(InvalidConfig, match="takes no more"):
        table.check(METRICS, "t", {"metrics": "a"})
    assert table.version is before
    table.change(METRICS, "s", {"metrics": None})
    assert table.version is not before
    assert table.names(METRICS) == []


def test_brokers_are_told_of_theirs_by_the_log_and_by_a_snapshot() -> None:
    before, after = secured(FeatureLevel.CONFIGURED), secured(FeatureLevel.CONFIGURED)
    assert after.apply(CHANGE) is None
    assert differences(before, after) == []
    command = ChangeResourceConfigs(ResourceType.BROKER, "", {"num.partitions": "3"})
    assert after.apply(command) == BrokerConfigsChanged()
    assert differences(before, after) == [BrokerConfigsChanged()]
    assert before.apply(command) == BrokerConfigsChanged()
    assert differences(before, after) == []


def test_a_node_has_them_after_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        node = Node(node_id=1, host="127.0.0.1", port=9092)
        for expected in ({}, {"metrics": "*"}):
            nameserver = await Nameserver.open(DiskFiles(tmp_path), random.Random(1), NameserverConfig(), node)
            try:
                configs = nameserver.config_administration
                assert configs.of(METRICS, "s") == expected
                await configs.change(METRICS, "s", {"metrics": "*"})
                await configs.change(METRICS, "s", {"interval.ms": "500"}, validate_only=True)
                with pytest.raises(InvalidConfig):
                    await configs.change(METRICS, "s", {"speed": "1"})
                with pytest.raises(InvalidConfig):
                    await configs.change(METRICS, "s", {"speed": "1"}, validate_only=True)
                assert configs.of(METRICS, "s") == {"metrics": "*"}
                assert configs.names(METRICS) == ["s"]
            finally:
                await nameserver.close()

    asyncio.run(story())
