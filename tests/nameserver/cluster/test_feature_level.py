"""The feature level: nodes of two programs in one cluster, who may raise it and when, and what is kept unknown."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from tests.fakes.files import SimulatedFiles
from tests.nameserver.nameservers import Nameservers, simulate
from tests.nameserver.state.test_state import CLUSTER, NODE, replayed

from mainstem.errors import ConfigError
from mainstem.model import FeatureLevel, LevelRange, ListenerAddress, Node
from mainstem.nameserver.cluster.node_liveness import NodeState
from mainstem.nameserver.cluster_ports import Facts
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.errors import (
    FeatureLevelNotReady,
    FeatureLevelTooLow,
    InconsistentCommand,
    NameserverError,
    UnreadableFeatureLevel,
)
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.commands import (
    FORMAT_VERSION_CHANGE,
    FORMAT_VERSION_COMMAND,
    Command,
    DeleteTopic,
    LoggedChange,
    RaiseFeatureLevel,
    UnknownCommand,
    decode_change,
    decode_command,
    encode_change,
    encode_command,
)
from mainstem.nameserver.state.resource_configs.topic_defaults import TopicDefaults
from mainstem.nameserver.state.state import MetadataState

FIRST, HARDENED = FeatureLevel.FIRST, FeatureLevel.HARDENED
OLD = LevelRange(FIRST, FIRST)
OF_LATER = {"type": "note", "optional": "node 1", "text": "of a later version"}


def optional(**fields: object) -> bytes:
    return bytes((FORMAT_VERSION_COMMAND,)) + msgspec.msgpack.encode({**OF_LATER, **fields})


def of_old(commands: list[Command]) -> MetadataState:
    state = MetadataState(TopicDefaults(), OLD)
    for command in commands:
        state.apply(command)
    return state


# what is unknown


def test_an_unknown_command_that_is_optional_is_kept_and_handed_on_as_it_came() -> None:
    command = decode_command(optional())
    assert isinstance(command, UnknownCommand)
    assert encode_command(command) == optional()
    state = replayed([CLUSTER, RaiseFeatureLevel(2), NODE, command])
    assert optional() in [encode_command(it) for it in state.commands()]
    again = replayed(decode_command(encode_command(it)) for it in state.commands())
    assert list(again.commands()) == list(state.commands())


def test_the_newest_about_the_same_takes_the_place_of_those_before() -> None:
    commands = [
        decode_command(data)
        for data in (
            optional(text="1"), optional(optional="node 2"), optional(text="2"), optional(type="mark"),
        )
    ]  # fmt: skip
    state = replayed([CLUSTER, RaiseFeatureLevel(2), *commands])
    kept = [it for it in state.commands() if isinstance(it, UnknownCommand)]
    assert kept == commands[1:]


@pytest.mark.parametrize(
    "fields",
    [{"optional": None}, {"optional": 1}, {"type": 7}, {"type": "delete_topic"}, {"type": "raise_feature_level"}],
)
def test_what_is_not_optional_or_is_known_and_wrong_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a command this program knows"):
        decode_command(optional(**fields))


def test_a_change_may_hold_both_and_one_that_is_not_known_refuses_it_all() -> None:
    known = msgspec.msgpack.encode(DeleteTopic(7))
    change = {"commands": [msgspec.Raw(known), OF_LATER], "request": b"r" * 16, "at_ms": 9, "refusals": []}
    found = decode_change(bytes((FORMAT_VERSION_CHANGE,)) + msgspec.msgpack.encode(change))
    assert found.commands[0] == DeleteTopic(7)
    assert isinstance(found.commands[1], UnknownCommand)
    assert (found.request, found.at_ms) == (b"r" * 16, 9)
    change["commands"] = [OF_LATER, {"type": "purge", "optional": 3}]
    with pytest.raises(ValueError, match="not a change this program knows"):
        decode_change(bytes((FORMAT_VERSION_CHANGE,)) + msgspec.msgpack.encode(change))


def test_a_change_that_all_know_is_logged_in_the_bytes_that_the_first_level_reads() -> None:
    change = LoggedChange([DeleteTopic(7)], b"r" * 16, 9)
    expected = {"commands": [{"type": "delete_topic", "number": 7}], "request": b"r" * 16, "at_ms": 9}
    assert encode_change(change) == bytes((2,)) + msgspec.msgpack.encode(expected)
    assert decode_change(encode_change(change)) == change


# the state


def test_the_level_goes_up_only_and_is_part_of_snapshots() -> None:
    state = replayed([CLUSTER, NODE])
    assert state.feature_level is FIRST
    assert not any(isinstance(it, RaiseFeatureLevel) for it in state.commands())
    for level in (0, 1):
        with pytest.raises(NameserverError, match="never goes down"):
            state.check(RaiseFeatureLevel(level))
    with pytest.raises(NameserverError, match="there is no feature level 99"):
        state.check(RaiseFeatureLevel(99))
    state.check(RaiseFeatureLevel(2))
    state.apply(RaiseFeatureLevel(2))
    assert replayed(state.commands()).feature_level is HARDENED
    with pytest.raises(InconsistentCommand):
        state.apply(RaiseFeatureLevel(2))


def test_a_program_stops_at_a_level_that_it_cannot_work_at_before_what_it_brings() -> None:
    with pytest.raises(UnreadableFeatureLevel, match="is at feature level 2, this program knows those up to 1"):
        of_old([CLUSTER, RaiseFeatureLevel(2)])


def test_a_command_of_a_level_is_refused_below_it() -> None:
    state = replayed([CLUSTER, NODE])
    command = decode_command(optional())
    with pytest.raises(FeatureLevelTooLow, match="feature-level --raise"):
        state.check(command)
    state.apply(RaiseFeatureLevel(2))
    state.check(command)


# clusters


def test_a_new_cluster_starts_at_its_newest_level_alone_or_not() -> None:
    async def scenario() -> None:
        cluster = Nameservers(61)
        await cluster.start_all()
        await cluster.until(lambda: all(it.lookups.placements() for it in cluster.running.values()))
        assert {it.lookups.feature_level for it in cluster.running.values()} == {FeatureLevel.newest()}
        await cluster.close()
        config, node = NameserverConfig(), Node(node_id=1, host="h", port=1)
        alone = await Nameserver.open(SimulatedFiles(1), random.Random(1), config, node)
        assert alone.lookups.feature_level is FeatureLevel.newest()
        await alone.close()

    simulate(scenario())


def test_nodes_say_where_their_listeners_are_as_soon_as_all_read_it() -> None:
    async def scenario() -> None:
        cluster = await old_cluster(62)
        cluster.endpoints = {
            node_id: (ListenerAddress("INSIDE", f"in{node_id}", 1), ListenerAddress("OUTSIDE", f"out{node_id}", 2))
            for node_id in (1, 2)
        }
        for node_id in (1, 2, 3):
            await upgrade(cluster, node_id)
        assert not any(node.endpoints for node in cluster.running[1].lookups.nodes())
        await cluster.running[2].operations.raise_feature_level(FeatureLevel.newest())

        def said() -> bool:
            return all(
                {node.node_id: node.endpoints for node in it.lookups.nodes() if node.endpoints} == cluster.endpoints
                for it in cluster.running.values()
            )

        await cluster.until(said)
        await cluster.close()

    simulate(scenario())


def test_a_new_node_alone_says_where_its_listeners_are_and_its_snapshots_do() -> None:
    async def scenario() -> None:
        node = Node(node_id=1, host="h", port=1, endpoints=(ListenerAddress("OUTSIDE", "h", 1),))
        alone = await Nameserver.open(SimulatedFiles(1), random.Random(1), NameserverConfig(), node)
        await alone.waits.until(lambda: list(alone.lookups.nodes()) == [node])
        assert replayed(list(alone.replica.state.commands())).nodes == alone.replica.state.nodes
        await alone.close()

    simulate(scenario())


def test_a_new_cluster_with_an_old_node_starts_at_the_level_that_this_one_reads() -> None:
    async def scenario() -> None:
        cluster = Nameservers(62)
        cluster.levels[2] = OLD
        await cluster.start_all()
        await cluster.until(lambda: all(it.lookups.placements() for it in cluster.running.values()))
        assert {it.lookups.feature_level for it in cluster.running.values()} == {FIRST}
        await cluster.close()

    simulate(scenario())


async def old_cluster(seed: int, **config: Any) -> Nameservers:
    """Three nodes of the old program with a topic."""
    cluster = Nameservers(seed, **config)
    cluster.levels.update(dict.fromkeys((1, 2, 3), OLD))
    await cluster.start_all()
    await cluster.until(lambda: all(it.lookups.placements() for it in cluster.running.values()))
    await cluster.running[1].administration.create_topic("before", 1, 1, {})
    return cluster


async def upgrade(cluster: Nameservers, node_id: int) -> None:
    if node_id in cluster.running:
        await cluster.stop(node_id)
    del cluster.levels[node_id]
    await cluster.start(node_id)
    await asyncio.sleep(2)


@pytest.mark.parametrize("seed", range(70, 75))
def test_the_level_is_raised_when_all_read_it_and_not_before(seed: int) -> None:
    async def scenario() -> None:
        cluster = await old_cluster(seed)
        for node_id in (1, 2):
            await upgrade(cluster, node_id)
            with pytest.raises(FeatureLevelNotReady, match=r"node 3 reads level 1 only|reads level 1 only"):
                await cluster.running[node_id].operations.raise_feature_level(2)
        await upgrade(cluster, 3)
        assert {it.lookups.feature_level for it in cluster.running.values()} == {FIRST}
        asked = cluster.running[1 + seed % 3]
        await asked.operations.raise_feature_level(2)
        assert asked.lookups.feature_level is HARDENED
        await cluster.settled()
        assert {it.lookups.feature_level for it in cluster.running.values()} == {HARDENED}
        with pytest.raises(NameserverError, match="never goes down"):
            await asked.operations.raise_feature_level(1)
        assert asked.lookups.topic("before") is not None
        await cluster.close()

    simulate(scenario())


def test_a_node_that_is_away_stands_against_it_and_back_again_does_not() -> None:
    async def scenario() -> None:
        cluster = await old_cluster(64)
        for node_id in (1, 2, 3):
            await upgrade(cluster, node_id)
        leader = await cluster.elected()
        away = next(node_id for node_id in cluster.running if node_id != leader)
        await cluster.kill(away)
        await asyncio.sleep(2)
        with pytest.raises(FeatureLevelNotReady, match=f"node {away} is (suspected|dead)"):
            await cluster.running[leader].operations.raise_feature_level(2)
        await asyncio.sleep(6)
        assert cluster.running[leader].lookups.verdict(away).state is NodeState.DEAD
        with pytest.raises(FeatureLevelNotReady, match=f"node {away} is dead"):
            await cluster.running[leader].operations.raise_feature_level(2)
        await cluster.start(away)
        await asyncio.sleep(2)
        await cluster.running[leader].operations.raise_feature_level(2)
        await cluster.close()

    simulate(scenario())


async def led_by(cluster: Nameservers, node_id: int) -> Nameserver:
    """Have this node lead; returns with the turn in which it does, before anybody has told it anything."""
    leader = await cluster.elected()
    if leader != node_id:
        cluster.running[leader].quorum.transfer_leadership(node_id)
        await cluster.until(lambda: cluster.leader() == node_id)
    return cluster.running[node_id]


@pytest.mark.parametrize("seed", range(80, 84))
def test_a_leader_that_has_not_heard_of_all_nodes_yet_raises_nothing(seed: int) -> None:
    """They are not silent for long enough to be suspected, and one of them may be of the old program."""

    async def scenario() -> None:
        cluster = await old_cluster(seed)
        for node_id in (1, 2):
            await upgrade(cluster, node_id)
        await led_by(cluster, 1)
        await asyncio.sleep(5)
        heir = await led_by(cluster, 2)
        assert heir.lookups.verdict(3).state is NodeState.ALIVE
        assert heir.lookups.report(3) is None
        with pytest.raises(FeatureLevelNotReady, match="node 3 was not heard of yet"):
            await heir.operations.raise_feature_level(2)
        await asyncio.sleep(2)
        with pytest.raises(FeatureLevelNotReady, match="node 3 reads level 1 only"):
            await heir.operations.raise_feature_level(2)
        await cluster.close()

    simulate(scenario())


def test_what_a_node_read_in_an_earlier_term_of_the_leader_does_not_count() -> None:
    """It registered here as of the new program, went back to the old one while another node led, and was not heard of
    since this one leads again."""

    async def scenario() -> None:
        cluster = await old_cluster(85)
        for node_id in (1, 2):
            await upgrade(cluster, node_id)
        first = await led_by(cluster, 1)
        await cluster.start(4)
        await asyncio.sleep(5)
        await led_by(cluster, 2)
        await cluster.stop(4)
        cluster.levels[4] = OLD
        await cluster.start(4)
        await asyncio.sleep(2)
        assert await led_by(cluster, 1) is first
        with pytest.raises(FeatureLevelNotReady, match="node 4 was not heard of yet"):
            await first.operations.raise_feature_level(2)
        await cluster.close()

    simulate(scenario())


def test_a_program_that_is_too_new_for_the_level_of_its_own_log_does_not_take_part() -> None:
    async def scenario() -> None:
        config, node, disk = NameserverConfig(), Node(node_id=1, host="h", port=1), SimulatedFiles(1)
        before = await Nameserver.open(disk, random.Random(1), config, node, facts=Facts(levels=OLD))
        assert before.lookups.feature_level is FIRST
        await before.close()
        changes = disk.changes
        later = Facts(levels=LevelRange(HARDENED, HARDENED + 1))
        with pytest.raises(UnreadableFeatureLevel, match="this program works from level 2 on"):
            await Nameserver.open(disk, random.Random(2), config, node, facts=later)
        assert disk.changes == changes, "nothing was changed"
        again = await Nameserver.open(disk, random.Random(3), config, node)
        await again.close()

    simulate(scenario())


def test_a_node_that_is_gone_for_good_does_not_stand_in_the_way() -> None:
    async def scenario() -> None:
        cluster = await old_cluster(65, replication_factor=2)
        await cluster.start(4)
        for node_id in (1, 2, 3):
            await upgrade(cluster, node_id)
        leader = await cluster.elected()
        gone = next(node_id for node_id in (1, 2, 3) if node_id != leader)
        await cluster.kill(gone)
        asked = cluster.running[leader]
        for group, replicas in asked.lookups.placements().items():
            if gone in replicas:
                await asked.operations.move_replica(group, gone, 4)
        await asked.operations.change_member(gone, 4)
        await asyncio.sleep(6)
        await asked.operations.raise_feature_level(2)
        await cluster.close()

    simulate(scenario())


def test_an_old_program_does_not_come_back_into_a_raised_cluster() -> None:
    async def scenario() -> None:
        cluster = Nameservers(66)
        await cluster.start_all()
        await cluster.until(lambda: all(it.lookups.placements() for it in cluster.running.values()))
        await cluster.settled()
        for node_id in (3, 4):  # one with a directory, one without
            if node_id in cluster.running:
                await cluster.stop(node_id)
            cluster.levels[node_id] = OLD
            with pytest.raises(UnreadableFeatureLevel, match="start"):
                await cluster.start(node_id)
        cluster.levels.clear()
        await cluster.start(3)
        await cluster.start(4)
        await cluster.close()

    simulate(scenario())


def test_the_leader_refuses_a_node_that_cannot_work_at_its_level() -> None:
    async def scenario() -> None:
        cluster = Nameservers(67)
        await cluster.start_all()
        await cluster.until(lambda: all(it.lookups.placements() for it in cluster.running.values()))
        await cluster.start(4)
        stranger = cluster.running[4]
        stranger.registration.facts = Facts(rpc="10.0.0.9:9093", levels=OLD)
        with pytest.raises(UnreadableFeatureLevel, match="node 4 can work at level 1 only"):
            await stranger.registration.register(Node(node_id=4, host="elsewhere", port=9))
        stranger.registration.facts = Facts(rpc="10.0.0.9:9093", levels=LevelRange(FeatureLevel.newest() + 1, 90))
        with pytest.raises(UnreadableFeatureLevel, match=r"node 4 can work at levels \d+ to 90"):
            await stranger.registration.register(Node(node_id=4, host="elsewhere", port=9))
        await cluster.close()

    simulate(scenario())


def test_it_is_raised_by_itself_where_that_is_configured() -> None:
    async def scenario() -> None:
        cluster = await old_cluster(68, feature_level="automatic")
        for node_id in (1, 2):
            await upgrade(cluster, node_id)
        await asyncio.sleep(10)
        assert {it.lookups.feature_level for it in cluster.running.values()} == {FIRST}
        await upgrade(cluster, 3)
        await asyncio.sleep(5)
        assert {it.lookups.feature_level for it in cluster.running.values()} == {FeatureLevel.newest()}
        await cluster.close()

    simulate(scenario())


def test_who_raises_it_is_the_operator_or_nobody() -> None:
    with pytest.raises(ConfigError, match="operator or automatic"):
        NameserverConfig(feature_level="anybody").validate()
