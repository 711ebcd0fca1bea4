"""Quotas, tenants, access rules and credentials under faults: all nodes judge the same, and share what they share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence

import pytest
from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.model import ScramChange, ScramCredential, ScramMechanism
from mainstem.nameserver.errors import NameserverError
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.commands import KeepAbsentUsersSecret, RemoveScramCredential, SetScramCredential
from mainstem.nameserver.state.scram_table import ScramTable
from mainstem.rpc.messages.metadata import WantTenant
from mainstem.security.acls.acl import Acl, Operation, PatternType, Permission, ResourceKind
from mainstem.security.quotas.quota import OF_CLIENTS, PRODUCER_BYTE_RATE, TENANT, USER, Entity
from mainstem.security.quotas.quota_admin import QuotaChange
from mainstem.security.quotas.quota_table import QuotaTable
from mainstem.security.quotas.sharing import QuotaPart, QuotaUse

NAMES = ("a", "b", "c")
CHANGES = 40
MECHANISM = ScramMechanism.SHA_256


class Told:
    """A `QuotaUser` that uses what the test says."""

    def __init__(self, use: QuotaUse) -> None:
        self.use = use
        self.part = 0.0

    def quotas_used(self) -> Sequence[QuotaUse]:
        return [self.use]

    def quotas_parted(self, parts: Iterable[QuotaPart]) -> None:
        for part in parts:
            self.part = part.per_second


def test_parts_of_a_quota_go_where_it_is_used_under_any_leader() -> None:
    async def scenario() -> None:
        cluster = Nameservers(73)
        await cluster.start_all()
        leader = await cluster.elected()
        eager, idle = QuotaUse(b"q" * 16, 100.0, 30.0, held_back=True), QuotaUse(b"q" * 16, 100.0, 0.0, held_back=False)
        users = {node_id: Told(eager) for node_id in cluster.running}
        for node_id, nameserver in cluster.running.items():
            nameserver.share_quotas(users[node_id])
        await asyncio.sleep(4)
        assert [round(user.part) for user in users.values()] == [33, 33, 33]
        other = next(node_id for node_id in users if node_id != leader)
        users[other].use = idle
        await asyncio.sleep(3)
        assert [round(user.part) for user in users.values() if user is not users[other]] == [50, 50]
        await cluster.kill(leader)
        left = [users[node_id] for node_id in cluster.running]
        await cluster.elected()
        await asyncio.sleep(8)
        assert sorted(round(user.part) for user in left) == [0, 100]
        await cluster.close()

    simulate(scenario())


async def change_something(nameserver: Nameserver, draw: random.Random) -> bool:
    """One change of quotas, of a tenant, of rules or of credentials; whether it was made."""
    name = draw.choice(NAMES)
    rate = draw.choice([None, 10.0, 20.0])
    kind = draw.randrange(5)
    try:
        if kind == 0:
            entity: Entity = ((draw.choice([USER, TENANT]), name),)
            await nameserver.quota_administration.change_quotas([QuotaChange(entity, {PRODUCER_BYTE_RATE: rate})])
        elif kind == 1:
            quotas: dict[str, float | None] = {} if rate is None else {PRODUCER_BYTE_RATE: rate}
            users = draw.sample(NAMES, draw.randrange(3))
            await nameserver.operations.set_tenant(WantTenant(name, f"{name}.", None, None, users, quotas))
        elif kind == 2:
            await nameserver.operations.remove_tenant(name)
        elif kind == 3:
            keys = draw.randbytes(MECHANISM.key_bytes)
            kept = None if rate is None else ScramCredential(MECHANISM, draw.randbytes(12), 4096, keys, keys[::-1])
            credentials = nameserver.credentials(draw.randbytes)
            return await credentials.change_scram([ScramChange(name, MECHANISM, kept)]) == [None]
        else:
            rule = Acl(
                ResourceKind.TOPIC, name, PatternType.LITERAL, f"User:{name}", "*", Operation.READ, Permission.ALLOW
            )  # fmt: skip
            await nameserver.acl_administration.add_acls([rule])
    except NameserverError:
        return False
    return True


def judged(nameserver: Nameserver) -> dict[str, object]:
    """The credential, the quotas and the rights of each user at a node."""
    quotas, tenants = nameserver.lookups.quotas(), nameserver.lookups.tenants()
    found: dict[str, object] = {}
    for user in NAMES:
        tenant = tenants.of_user(user)
        found[user] = (
            nameserver.lookups.scram_credential(user, MECHANISM),
            tenant,
            [quotas.of_client(key, user, "x") for key in OF_CLIENTS],
            None if tenant is None else quotas.of_tenant(PRODUCER_BYTE_RATE, tenant.name),
            sorted(acl for acl in nameserver.lookups.acls() if acl.principal == f"User:{user}"),
            tenants.owner(f"{user}.topic"),
        )
    return found


class ForgetsRemovals(QuotaTable):
    """The planted bug: quotas that are taken away stay in force."""

    def change(self, entity: Entity, changes: dict[str, float | None]) -> None:  # type: ignore[override]
        super().change(entity, {key: value for key, value in changes.items() if value is not None})


class ForgetsRemovedUsers(ScramTable):
    """The planted bug: a user whose credential is taken away still has it."""

    def apply(self, command: SetScramCredential | RemoveScramCredential | KeepAbsentUsersSecret) -> None:
        if not isinstance(command, RemoveScramCredential):
            super().apply(command)


def forget_quotas(nameserver: Nameserver) -> None:
    nameserver.replica.state.quota_table = ForgetsRemovals()


def forget_users(nameserver: Nameserver) -> None:
    nameserver.replica.state.scram_table = ForgetsRemovedUsers()


async def story_of_faults(seed: int, *, forget: Callable[[Nameserver], None] | None = None) -> None:
    draw = random.Random(seed)
    cluster = Nameservers(seed)
    await cluster.start_all()
    await cluster.elected()
    if forget is not None:
        forget(cluster.running[1])
    made = 0
    for step in range(CHANGES):
        made += await change_something(draw.choice([*cluster.running.values()]), draw)
        if step % 10 == 5:
            cluster.network.split({draw.choice([*cluster.running])})
        elif step % 10 == 8:
            cluster.network.heal()
        elif step % 10 == 9 and forget is None:
            gone = draw.choice([*cluster.running])
            await cluster.kill(gone)
            await change_something(draw.choice([*cluster.running.values()]), draw)
            await cluster.start(gone)
    cluster.network.heal()
    await cluster.elected()
    await cluster.until(lambda: len({it.lookups.version for it in cluster.running.values()}) == 1)
    verdicts = [judged(nameserver) for nameserver in cluster.running.values()]
    try:
        assert all(verdict == verdicts[0] for verdict in verdicts), f"nodes judge differently, seed {seed}"
        assert made > CHANGES / 2
    finally:
        await cluster.close()


@pytest.mark.parametrize("seed", range(200, 204))
def test_after_faults_all_nodes_judge_the_same(seed: int) -> None:
    simulate(story_of_faults(seed))


@pytest.mark.parametrize("forget", [forget_quotas, forget_users])
def test_a_node_that_forgets_removals_is_found_out(forget: Callable[[Nameserver], None]) -> None:
    with pytest.raises(AssertionError, match="nodes judge differently"):
        simulate(story_of_faults(306, forget=forget))
