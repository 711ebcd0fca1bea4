"""Whose a name is, against all prefixes looked at one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.security.tenants import tenant_table
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


def test_names_that_clients_make_up_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_table, "NAMES_KEPT_MAX", 10)
    table = TenantTable()
    table.set(Tenant("acme", "acme."))
    for number in range(100):
        assert table.owner(f"acme.{number}") == Tenant("acme", "acme.")
        assert len(table._owners) <= 10  # noqa: SLF001


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
