"""Whose a name is, against all prefixes looked at one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.security.tenants.tenant import Tenant, fault_of_tenant
from mainstem.security.tenants.tenant_table import TenantTable

TEXTS = st.text("ab.", min_size=1, max_size=5)
CHANGES = st.lists(st.tuples(st.sampled_from(["t1", "t2", "t3", "t4"]), st.none() | TEXTS), max_size=20)


@given(CHANGES, st.lists(TEXTS, max_size=10))
def test_the_longest_prefix_has_a_name_whatever_changed_before(
    changes: list[tuple[str, str | None]], names: list[str]
) -> None:
    table, model = TenantTable(), dict[str, str]()
    for tenant, prefix in changes:
        if prefix is None:
            table.remove(tenant)
            model.pop(tenant, None)
        elif prefix not in model.values():
            table.set(Tenant(tenant, prefix))
            model[tenant] = prefix
        for name in names:
            owners = [(len(prefix), tenant) for tenant, prefix in model.items() if name.startswith(prefix)]
            found = table.owner(name)
            assert (found.name if found is not None else None) == (max(owners)[1] if owners else None)
            assert table.owner(name) is found


def test_a_user_is_the_first_of_its_tenants() -> None:
    table = TenantTable()
    versions = [table.version]
    changes: list[Callable[[], None]] = [
        lambda: table.set(Tenant("b", "b.", users=("alice", "bob"))),
        lambda: table.set(Tenant("a", "a.", users=("alice",))),
        lambda: table.set(Tenant("a", "a.", users=())),
        lambda: table.remove("b"),
    ]
    for change in changes:
        change()
        versions.append(table.version)
        users = [(owner.name if (owner := table.of_user(user)) is not None else None) for user in ("alice", "bob")]
        expected = [["b", "b"], ["a", "b"], ["b", "b"], [None, None]][len(versions) - 2]
        assert users == expected
    assert len(set(map(id, versions))) == len(versions)


def test_a_thousand_tenants_have_what_is_theirs() -> None:
    """Each within the prefix of all, and some within each other."""
    table = TenantTable()
    table.set(Tenant("all", "t"))
    tenants = [Tenant(f"tenant-{number}", f"t{number}.") for number in range(1_000)]
    for tenant in tenants:
        table.set(tenant)
    for number in range(0, 1_000, 10):
        table.set(Tenant(f"inner-{number}", f"t{number}.inner."))
    for number, tenant in enumerate(tenants):
        assert table.owner(f"t{number}.queue") == tenant
        inner = table.owner(f"t{number}.inner.queue")
        assert inner is not None
        assert inner.name == (f"inner-{number}" if number % 10 == 0 else tenant.name)
        assert table.owner(f"t{number}-other") == Tenant("all", "t")
    assert table.owner("s") is None


@pytest.mark.parametrize(
    "tenant",
    [
        Tenant("", "a."), Tenant("a", ""), Tenant("a", "x" * 201), Tenant("a", "a/"), Tenant("a", "__c"),
        Tenant("a", "_"), Tenant("a", "a.", 0), Tenant("a", "a.", 1, 2**63), Tenant("a", "a.", users=("*",)),
        Tenant("a", "a.", users=("b", "b")), Tenant("a", "a.", users=tuple(map(str, range(101)))),
    ],
)  # fmt: skip
def test_what_makes_no_sense_has_a_fault(tenant: Tenant) -> None:
    assert fault_of_tenant(tenant) is not None
    assert fault_of_tenant(Tenant("a", "a.", 1, 1, ("alice",))) is None
