"""Quotas in the metadata: the level they take, their bound, their way through snapshots and restarts."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.nameserver.nameservers import simulate
from tests.nameserver.state.test_acls import secured

from mainstem.model import FeatureLevel, Node
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.errors import FeatureLevelTooLow, InvalidQuota, TooManyQuotas
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state import state as state_module
from mainstem.nameserver.state.changes import Ids, make_commands
from mainstem.nameserver.state.commands import (
    ChangeQuotas,
    LoggedChange,
    decode_change,
    decode_command,
    encode_change,
    encode_command,
)
from mainstem.nameserver.state.resource_configs.topic_defaults import TopicDefaults
from mainstem.nameserver.state.state import MetadataState
from mainstem.rpc.messages.metadata import WantedQuotas, WantQuotas
from mainstem.security.quotas.quota import CLIENT_ID, CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, USER, Entity
from mainstem.security.quotas.quota_admin import QuotaChange
from mainstem.storage.disks.disk_files import DiskFiles

ALICE: Entity = ((USER, "alice"),)
BOTH: Entity = ((CLIENT_ID, None), (USER, "alice"))
CHANGE = ChangeQuotas([*ALICE], {PRODUCER_BYTE_RATE: 1024.0})


def test_the_logs_keep_no_quotas_below_their_level() -> None:
    with pytest.raises(FeatureLevelTooLow, match="takes level 5"):
        secured(FeatureLevel.TIERED).check(CHANGE)
    secured().check(CHANGE)


def test_commands_stand_in_the_log_and_in_snapshots_as_they_were() -> None:
    commands = [CHANGE, ChangeQuotas([*BOTH], {CONSUMER_BYTE_RATE: 5.0, PRODUCER_BYTE_RATE: None})]
    assert decode_change(encode_change(LoggedChange([*commands]))).commands == commands
    state = secured()
    for command in commands:
        state.apply(command)
    after = MetadataState(TopicDefaults())
    for again in [decode_command(encode_command(command)) for command in state.commands()]:
        after.apply(again)
    assert dict(after.quota_table) == {ALICE: {PRODUCER_BYTE_RATE: 1024.0}, BOTH: {CONSUMER_BYTE_RATE: 5.0}}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (ChangeQuotas([], {}), "none is named"),
        (ChangeQuotas([*ALICE], {"speed": 1.0}), "no quota 'speed'"),
        (ChangeQuotas([*ALICE], {PRODUCER_BYTE_RATE: -1.0}), "greater than 0"),
    ],
)
def test_what_makes_no_sense_is_refused_by_the_leader(change: ChangeQuotas, fault: str) -> None:
    with pytest.raises(InvalidQuota, match=fault):
        secured().check(change)


def test_there_are_quotas_of_only_so_many_entities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one request count together; one that has quotas already needs no room, nor does a removal."""
    monkeypatch.setattr(state_module, "ENTITIES_MAX", 3)
    state = secured()
    state.apply(CHANGE)
    names = ["alice", "a", "b", "c", "alice"]
    wanted = [WantedQuotas([(USER, name)], {PRODUCER_BYTE_RATE: 1.0}) for name in names]
    wanted.append(WantedQuotas([(USER, "d")], {PRODUCER_BYTE_RATE: None}))

    async def story() -> None:
        made = await make_commands(WantQuotas(wanted), state, Ids(random.Random(1)), replicas=1)
        assert [(it.item, it.kind) for it in made.refusals] == [(3, TooManyQuotas.__name__)]
        assert "takes no more" in made.refusals[0].message
        assert len(made.commands) == 5

    simulate(story())


def test_a_node_has_its_quotas_after_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        node = Node(node_id=1, host="127.0.0.1", port=9092)
        for expected in ({}, {BOTH: {PRODUCER_BYTE_RATE: 7.0}}):
            nameserver = await Nameserver.open(DiskFiles(tmp_path), random.Random(1), NameserverConfig(), node)
            try:
                admin = nameserver.quota_administration
                assert dict(await admin.quotas()) == expected
                gone = QuotaChange(ALICE, {PRODUCER_BYTE_RATE: None})
                bad = QuotaChange(ALICE, {"speed": 1.0})
                kept = QuotaChange(BOTH, {PRODUCER_BYTE_RATE: 7.0})
                first, refusal, last = await admin.change_quotas([gone, bad, kept])
                assert (first, last) == (None, None)
                assert isinstance(refusal, InvalidQuota)
            finally:
                await nameserver.close()

    asyncio.run(story())
