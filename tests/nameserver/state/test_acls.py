"""Access rules in the metadata: the level they take, their bound, their way through snapshots and between nodes."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.nameserver.nameservers import Nameservers, simulate
from tests.nameserver.state.test_state import CLUSTER, NODE

from mainstem.model import FeatureLevel, Node
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.errors import FeatureLevelTooLow, InvalidAcl, TooManyAcls
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state import state as state_module
from mainstem.nameserver.state.changes import Ids, make_commands
from mainstem.nameserver.state.commands import (
    AddAcl,
    KnownCommand,
    LoggedChange,
    RaiseFeatureLevel,
    RemoveAcl,
    decode_change,
    decode_command,
    encode_change,
    encode_command,
)
from mainstem.nameserver.state.resource_configs.topic_defaults import TopicDefaults
from mainstem.nameserver.state.state import MetadataState
from mainstem.ports import Session
from mainstem.rpc.messages.metadata import WantAcls, WantedAcl
from mainstem.security.acls.acl import Acl, Operation, PatternType, Permission, ResourceKind
from mainstem.security.acls.authorizer import Authorizer
from mainstem.security.acls.config import AuthorizerConfig
from mainstem.storage.disks.disk_files import DiskFiles

RULE = Acl(ResourceKind.TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)
OTHER = RULE._replace(principal="User:bob", pattern=PatternType.PREFIXED)


def secured(level: int = FeatureLevel.SECURED) -> MetadataState:
    state = MetadataState(TopicDefaults())
    for command in (CLUSTER, RaiseFeatureLevel(level), NODE):
        state.apply(command)
    return state


@pytest.mark.parametrize("command", [AddAcl(*RULE), RemoveAcl(*RULE)])
def test_the_logs_keep_no_rules_below_their_level(command: AddAcl | RemoveAcl) -> None:
    with pytest.raises(FeatureLevelTooLow, match="takes level 5"):
        secured(FeatureLevel.TIERED).check(command)
    secured().check(command)


def test_rules_are_added_and_removed_once() -> None:
    state = secured()
    for _ in range(2):
        state.apply(AddAcl(*RULE))
        state.apply(AddAcl(*OTHER))
    assert list(state.acl_table) == [RULE, OTHER]
    for _ in range(2):
        state.apply(RemoveAcl(*RULE))
    assert list(state.acl_table) == [OTHER]


def test_commands_stand_in_the_log_as_they_were() -> None:
    commands: list[KnownCommand] = [AddAcl(*RULE), RemoveAcl(*OTHER)]
    assert decode_change(encode_change(LoggedChange([*commands]))).commands == commands
    assert [decode_command(encode_command(command)) for command in commands] == commands
    assert AddAcl(*RULE).acl == RULE


def test_snapshots_have_the_rules() -> None:
    state = secured()
    changes: list[KnownCommand] = [AddAcl(*RULE), AddAcl(*OTHER), RemoveAcl(*RULE)]
    for change in changes:
        state.apply(change)
    after = MetadataState(TopicDefaults())
    for command in [decode_command(encode_command(command)) for command in state.commands()]:
        after.apply(command)
    assert list(after.acl_table) == [OTHER]


def test_what_makes_no_sense_is_refused_by_the_leader() -> None:
    state = secured()
    with pytest.raises(InvalidAcl, match="no colon"):
        state.check(AddAcl(*RULE._replace(principal="alice")))


def test_there_are_only_so_many_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one request count together; one that is there already needs no room."""
    monkeypatch.setattr(state_module, "ACLS_MAX", 3)
    state = secured()
    state.apply(AddAcl(*RULE))
    wanted = [RULE, *(RULE._replace(name=name) for name in ("a", "b", "c")), RULE]

    async def story() -> None:
        made = await make_commands(
            WantAcls([WantedAcl(*acl) for acl in wanted]), state, Ids(random.Random(1)), replicas=1
        )
        assert made.commands == [AddAcl(*acl) for acl in (wanted[0], wanted[1], wanted[2], wanted[4])]
        assert [(it.item, it.kind) for it in made.refusals] == [(3, TooManyAcls.__name__)]
        assert "takes no more" in made.refusals[0].message

    simulate(story())


def test_numbers_of_a_later_version_are_refused() -> None:
    async def story() -> None:
        made = await make_commands(WantAcls([WantedAcl(99, *RULE[1:])]), secured(), Ids(random.Random(1)), replicas=1)
        assert not made.commands
        assert [it.kind for it in made.refusals] == [InvalidAcl.__name__]

    simulate(story())


def test_a_node_has_its_rules_after_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        node = Node(node_id=1, host="127.0.0.1", port=9092)
        for expected in ([], [OTHER]):
            disk = DiskFiles(tmp_path)
            nameserver = await Nameserver.open(disk, random.Random(1), NameserverConfig(), node)
            try:
                assert list(nameserver.lookups.acls()) == expected
                assert await nameserver.acl_administration.add_acls([RULE, OTHER]) == [None, None]
                assert await nameserver.acl_administration.remove_acls([RULE]) == [None]
                assert nameserver.lookups.unheard_seconds() == 0
            finally:
                await nameserver.close()

    asyncio.run(story())


def test_a_change_made_by_one_node_is_known_to_all() -> None:
    """Also to one that was away meanwhile; and every node knows how long it has not heard from the leader."""
    cluster = Nameservers(seed=3)

    async def story() -> None:
        await cluster.start_all()
        await cluster.settled()
        leader = await cluster.elected()
        follower, other = (it for it in cluster.running if it != leader)
        await cluster.kill(other)
        asked = cluster.running[follower]
        assert await asked.acl_administration.add_acls([RULE, OTHER]) == [None, None]
        assert list(asked.lookups.acls()) == [RULE, OTHER]
        assert await cluster.running[leader].acl_administration.remove_acls([RULE]) == [None]
        await asked.acl_administration.current()
        assert list(asked.lookups.acls()) == [OTHER]
        await cluster.start(other)
        await cluster.until(lambda: list(cluster.running[other].lookups.acls()) == [OTHER])
        await cluster.kill(other)
        await cluster.kill(leader)
        await cluster.until(lambda: cluster.running[follower].lookups.unheard_seconds() > 5)
        await cluster.close()

    simulate(story())


@pytest.mark.parametrize("seed", range(4))
def test_what_is_revoked_is_refused_within_a_second_and_by_who_does_not_hear_within_its_time(seed: int) -> None:
    """A node that is cut off goes by the rules it has for `staleness_ms`, and lets nobody in then; an election of the
    metadata's leader is no outage."""
    cluster = Nameservers(seed=seed)
    staleness_seconds = 10.0
    config = AuthorizerConfig(enabled=True, staleness_ms=int(staleness_seconds * 1000))

    async def story() -> None:
        await cluster.start_all()
        await cluster.settled()
        loop = asyncio.get_running_loop()
        sessions = {node_id: session_of(RULE) for node_id in cluster.running}
        authorizers = {
            node_id: Authorizer(config, it.lookups.acls, it.lookups.unheard_seconds)
            for node_id, it in cluster.running.items()
        }

        def allows(node_id: int) -> bool:
            return authorizers[node_id].of(sessions[node_id]).allows(RULE.operation, RULE.kind, RULE.name)

        leader = await cluster.elected()
        assert await cluster.running[leader].acl_administration.add_acls([RULE]) == [None]
        await cluster.until(lambda: all(map(allows, sessions)))
        apart, hears = (it for it in cluster.running if it != leader)
        cluster.network.cut = {frozenset({apart, leader}), frozenset({apart, hears})}
        cut_at = loop.time()
        assert await cluster.running[leader].acl_administration.remove_acls([RULE]) == [None]
        revoked_at = loop.time()
        await cluster.until(lambda: not allows(leader) and not allows(hears))
        assert loop.time() - revoked_at <= 1.0
        assert allows(apart), "it cannot know yet"
        await cluster.until(lambda: not allows(apart))
        assert staleness_seconds - 1.0 <= loop.time() - cut_at <= staleness_seconds + 1.0
        assert RULE in cluster.running[apart].lookups.acls(), "it still has not heard"
        cluster.network.cut = set()
        await cluster.until(lambda: RULE not in cluster.running[apart].lookups.acls())
        await cluster.elected()
        await cluster.until(lambda: not any(authorizer.is_stale for authorizer in authorizers.values()))
        leader = await cluster.elected()
        assert await cluster.running[leader].acl_administration.add_acls([RULE]) == [None]
        await cluster.until(lambda: all(map(allows, sessions)))
        await cluster.kill(leader)
        served = [node_id for node_id in sessions if node_id != leader]
        refused = 0
        while not any(cluster.running[node_id].quorum.serves for node_id in served):
            refused += not all(map(allows, served))
            await asyncio.sleep(0.05)
        assert refused == 0
        await cluster.close()

    simulate(story())


def session_of(rule: Acl) -> Session:
    return Session("10.0.0.1", 1, 1, principal=rule.principal)
