"""Tenants in the metadata: ceilings, the rules of their users, their way through snapshots."""

from __future__ import annotations

import random

import pytest
from tests.nameserver.nameservers import simulate
from tests.nameserver.state.test_acls import secured

from mainstem.model import FeatureLevel
from mainstem.nameserver.errors import FeatureLevelTooLow, InvalidTenant, TenantCeiling
from mainstem.nameserver.state import tenant_rules
from mainstem.nameserver.state.changes import Ids, make_commands
from mainstem.nameserver.state.commands import SetTenant, decode_command, encode_command
from mainstem.nameserver.state.state import MetadataState
from mainstem.nameserver.state.topic_config import topic_settings
from mainstem.rpc.messages.metadata import (
    WantConfigs,
    WantDeletions,
    Wanted,
    WantedTopic,
    WantPartitions,
    WantTenant,
    WantTenantRemoval,
    WantTopics,
)
from mainstem.security.tenants.tenant import Tenant

ACME = WantTenant("acme", "acme.", 60_000, 5, ["alice"])


async def change(state: MetadataState, wanted: Wanted) -> list[str]:
    """Makes and applies a change; the refusals' kinds."""
    made = await make_commands(wanted, state, Ids(random.Random(1 + state.next_topic_number)), replicas=1)
    for command in made.commands:
        state.apply(decode_command(encode_command(command)))
    return [refusal.kind for refusal in made.refusals]


def topics(*names: str, partitions: int = 2, **configs: str) -> WantTopics:
    overrides = {key.replace("_", "."): value for key, value in configs.items()}
    return WantTopics([WantedTopic(name, partitions, 1, overrides) for name in names])


def test_the_logs_keep_no_tenants_below_their_level() -> None:
    with pytest.raises(FeatureLevelTooLow, match="takes level 5"):
        secured(FeatureLevel.TIERED).check(SetTenant("acme", "acme."))


def test_a_ceiling_of_queues_holds_together_and_later() -> None:
    async def story() -> None:
        state = secured()
        await change(state, topics("acme.old"))
        assert await change(state, ACME) == []
        assert await change(state, topics("acme.a", "acme.b", "other")) == [TenantCeiling.__name__]
        assert set(state.topics) == {"acme.old", "acme.a", "other"}
        assert await change(state, WantPartitions("acme.a", 4)) == [TenantCeiling.__name__]
        assert await change(state, WantPartitions("acme.a", 3)) == []
        assert await change(state, topics("acme.c", partitions=1)) == [TenantCeiling.__name__]
        await change(state, WantDeletions(["acme.old"]))
        assert await change(state, topics("acme.c", partitions=2)) == []
        assert await change(state, topics("acme.d", partitions=1)) == [TenantCeiling.__name__]

    simulate(story())


def test_no_retention_is_above_the_ceiling() -> None:
    async def story() -> None:
        state = secured()
        await change(state, ACME)
        assert await change(state, topics("acme.x", retention_ms="60001")) == [TenantCeiling.__name__]
        assert await change(state, topics("acme.x", retention_ms="-1")) == [TenantCeiling.__name__]
        assert await change(state, topics("acme.x")) == []
        for changes, expected in (
            ({"retention.ms": "5"}, 5),
            ({"segment.ms": "7"}, 5),
            ({"retention.ms": None}, 60_000),
        ):
            assert await change(state, WantConfigs("acme.x", dict(changes))) == []
            assert state.topics["acme.x"].settings.retention_ms == expected
        assert await change(state, WantConfigs("acme.x", {"retention.ms": "-1"})) == [TenantCeiling.__name__]

    simulate(story())


def test_rules_of_users_come_and_go_with_the_tenant() -> None:
    async def story() -> None:
        state = secured()
        await change(state, ACME)
        assert {acl.principal for acl in state.acl_table} == {"User:alice"}
        assert await change(state, WantTenant("acme", "acme-", None, None, ["bob"])) == []
        assert list(state.acl_table) == Tenant("acme", "acme-", users=("bob",)).rules()
        refused = await change(state, WantTenant("twin", "acme-", None, None, ["mallory"]))
        assert set(refused) == {InvalidTenant.__name__}
        assert len(state.acl_table) == 3
        assert await change(state, WantTenantRemoval("acme")) == []
        assert (list(state.acl_table), len(state.tenant_rules.table)) == ([], 0)
        assert await change(state, WantTenantRemoval("acme")) == [InvalidTenant.__name__]

    simulate(story())


def test_snapshots_have_tenants_and_not_the_rules_that_were_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        state = secured()
        await change(state, ACME)
        state.acl_table.remove(next(iter(state.acl_table)))
        after = MetadataState(lambda configs: topic_settings(configs, {}))
        for command in state.commands():
            after.apply(decode_command(encode_command(command)))
        assert list(after.tenant_rules.table) == [Tenant("acme", "acme.", 60_000, 5, ("alice",))]
        assert list(after.acl_table) == list(state.acl_table)
        monkeypatch.setattr(tenant_rules, "TENANTS_MAX", 1)
        assert await change(state, ACME) == []
        assert await change(state, WantTenant("more", "more.", None, None, [])) == [InvalidTenant.__name__]

    simulate(story())
