"""Tenants in the metadata: ceilings, the rules of their users, their way through snapshots."""

from __future__ import annotations

import random

import pytest
from tests.nameserver.nameservers import simulate
from tests.nameserver.state.test_acls import secured

from mainstem.model import FeatureLevel
from mainstem.nameserver.errors import FeatureLevelTooLow, InvalidQuota, InvalidTenant, TenantCeiling
from mainstem.nameserver.state import tenant_rules
from mainstem.nameserver.state.changes import Ids, make_commands
from mainstem.nameserver.state.commands import SetTenant, decode_command, encode_command
from mainstem.nameserver.state.resource_configs.topic_defaults import TopicDefaults
from mainstem.nameserver.state.state import MetadataState
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
from mainstem.security.quotas.quota import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, TENANT
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


def test_a_tenant_is_not_taken_for_another_one_of_its_name() -> None:
    async def story() -> None:
        state = secured()
        create = WantTenant("acme", "acme.", 60_000, 5, ["alice"], how="create")
        assert await change(state, create) == []
        assert InvalidTenant.__name__ in await change(state, create)
        assert await change(state, WantTenant("acme", queues_max=7, how="alter")) == []
        assert state.tenant_rules.table.named("acme") == Tenant("acme", "acme.", 60_000, 7, ("alice",))
        assert await change(state, WantTenant("acme", retention_ms_max=None, users=[], how="alter")) == []
        assert state.tenant_rules.table.named("acme") == Tenant("acme", "acme.", None, 7)
        assert len(state.acl_table) == 0
        assert await change(state, WantTenant("none", how="alter")) == [InvalidTenant.__name__]
        assert await change(state, WantTenant("odd", "odd.", how="make")) == [InvalidTenant.__name__]
        assert [tenant.name for tenant in state.tenant_rules.table] == ["acme"]

    simulate(story())


def test_quotas_of_tenants_come_and_go_with_them() -> None:
    async def story() -> None:
        low = secured()
        wanted = WantTenant("acme", "acme.", quotas={PRODUCER_BYTE_RATE: 10.0})
        assert FeatureLevelTooLow.__name__ in await change(low, wanted)
        assert len(low.tenant_rules.table) == 0
        state = secured(FeatureLevel.TENANTED)
        entity = ((TENANT, "acme"),)
        assert await change(state, wanted) == []
        assert state.quota_table.of(entity) == {PRODUCER_BYTE_RATE: 10.0}
        alter = WantTenant("acme", quotas={CONSUMER_BYTE_RATE: 5.0}, how="alter")
        assert await change(state, alter) == []
        assert state.quota_table.of(entity) == {PRODUCER_BYTE_RATE: 10.0, CONSUMER_BYTE_RATE: 5.0}
        replace = WantTenant("acme", "acme.", quotas={CONSUMER_BYTE_RATE: 6.0})
        assert await change(state, replace) == []
        assert state.quota_table.of(entity) == {CONSUMER_BYTE_RATE: 6.0}
        bad = WantTenant("acme", prefix="other.", quotas={"speed": 1.0}, how="alter")
        assert InvalidQuota.__name__ in await change(state, bad)
        assert state.tenant_rules.table.named("acme") == Tenant("acme", "acme.")
        assert await change(state, WantTenantRemoval("acme")) == []
        assert entity not in state.quota_table

    simulate(story())


def test_queues_of_a_thousand_tenants_are_counted() -> None:
    async def story() -> None:
        state = secured()
        for number in range(1_000):
            await change(state, WantTenant(f"t{number}", f"t{number}.", None, 999, []))
        names = [f"t{number}.q" for number in range(1_000)]
        assert await change(state, topics(*names, partitions=999)) == []
        assert state.partitions_total == 999_000
        assert await change(state, topics("t7.more", "free", partitions=1)) == [TenantCeiling.__name__]
        for number in (0, 7, 999):
            tenant = state.tenant_rules.table.named(f"t{number}")
            assert tenant is not None
            assert state.tenant_rules.queues(tenant) == 999

    simulate(story())


def test_snapshots_have_tenants_and_not_the_rules_that_were_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        state = secured()
        await change(state, ACME)
        state.acl_table.remove(next(iter(state.acl_table)))
        after = MetadataState(TopicDefaults())
        for command in state.commands():
            after.apply(decode_command(encode_command(command)))
        assert list(after.tenant_rules.table) == [Tenant("acme", "acme.", 60_000, 5, ("alice",))]
        assert list(after.acl_table) == list(state.acl_table)
        monkeypatch.setattr(tenant_rules, "TENANTS_MAX", 1)
        assert await change(state, ACME) == []
        assert await change(state, WantTenant("more", "more.", None, None, [])) == [InvalidTenant.__name__]

    simulate(story())
