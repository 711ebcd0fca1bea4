"""Entities, which quota is in force for whom, and buckets, against models of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.security.quotas.buckets import BURST_SECONDS, Buckets
from mainstem.security.quotas.quota import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Entity,
    described,
    entity_of,
    fault_of,
)
from mainstem.security.quotas.quota_table import InForce, QuotaTable
from mainstem.security.quotas.token_bucket import DEBT_SECONDS_MAX, TokenBucket

ALICE: Entity = ((USER, "alice"),)

# entities


def test_an_entity_is_the_same_in_whatever_order_its_parts_come() -> None:
    parts = [(USER, "alice"), (CLIENT_ID, None)]
    assert entity_of(parts) == entity_of(reversed(parts)) == ((CLIENT_ID, None), (USER, "alice"))
    assert described(entity_of(parts)) == "client-id (default), user 'alice'"
    assert entity_of([(IP, "::0001")]) == ((IP, "::1"),)


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        ([], "none is named"),
        ([("group", "g")], "no quotas of 'group'"),
        ([(USER, "a"), (USER, "b")], "two parts of one kind"),
        ([(USER, "a"), (IP, "127.0.0.1")], "of nothing else"),
        ([(IP, "example.org")], "no IP address"),
        ([(USER, "")], "1 to 1000 characters"),
        ([(USER, "a" * 1001)], "1 to 1000 characters"),
    ],
)
def test_entities_that_make_no_sense_are_named(parts: list[tuple[str, str | None]], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        entity_of(parts)


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("speed", 1.0, "no quota 'speed'"),
        (CONNECTION_CREATION_RATE, 1.0, "no quota"),
        (PRODUCER_BYTE_RATE, 0.0, "greater than 0"),
        (PRODUCER_BYTE_RATE, -1.0, "greater than 0"),
        (REQUEST_PERCENTAGE, math.nan, "greater than 0"),
        (REQUEST_PERCENTAGE, math.inf, "greater than 0"),
        (CONSUMER_BYTE_RATE, 1.5, "whole number"),
        (REQUEST_PERCENTAGE, 0.5, None),
        (CONTROLLER_MUTATION_RATE, 1.5, None),
        (PRODUCER_BYTE_RATE, None, None),
    ],
)
def test_values_that_make_no_sense_are_named(key: str, value: float | None, fault: str | None) -> None:
    found = fault_of(ALICE, {key: value})
    assert found is None if fault is None else fault in str(found)


def test_addresses_have_their_own_quota() -> None:
    assert fault_of(((IP, None),), {CONNECTION_CREATION_RATE: 10.0}) is None
    assert "no quota" in str(fault_of(((IP, None),), {PRODUCER_BYTE_RATE: 10.0}))


# the table

NAMES = st.sampled_from(["a", "b", None])
ENTITIES = st.one_of(
    NAMES.map(lambda name: ((USER, name),)),
    NAMES.map(lambda name: ((CLIENT_ID, name),)),
    st.tuples(NAMES, NAMES).map(lambda names: ((CLIENT_ID, names[0]), (USER, names[1]))),
)


def by_precedence(quotas: dict[Entity, float], user: str, client_id: str) -> float | None:
    """The rule of KIP-55: the quota whose entity fits and comes first. Those that name a user come before defaults of
    users, these before those without one; and in each of them so it is with client ids."""

    def rank(entity: Entity) -> tuple[int, int] | None:
        parts = dict(entity)
        ranks = []
        for kind, name in ((USER, user), (CLIENT_ID, client_id)):
            if kind not in parts:
                ranks.append(2)
            elif parts[kind] == name:
                ranks.append(0)
            elif parts[kind] is None:
                ranks.append(1)
            else:
                return None
        return ranks[0], ranks[1]

    fitting = [(found, value) for entity, value in quotas.items() if (found := rank(entity)) is not None]
    return min(fitting)[1] if fitting else None


@given(st.dictionaries(ENTITIES, st.integers(1, 9).map(float)), st.sampled_from("abc"), st.sampled_from("abc"))
def test_the_quota_in_force_is_the_one_that_comes_first(quotas: dict[Entity, float], user: str, client_id: str) -> None:
    table = QuotaTable()
    for entity, value in quotas.items():
        table.change(entity, {PRODUCER_BYTE_RATE: value})
    found = table.of_client(PRODUCER_BYTE_RATE, user, client_id)
    assert (None if found is None else found.per_second) == by_precedence(quotas, user, client_id)
    assert table.of_client(CONSUMER_BYTE_RATE, user, client_id) is None


def test_who_is_under_a_default_has_a_bucket_of_its_own() -> None:
    table = QuotaTable()
    table.change(((USER, None),), {PRODUCER_BYTE_RATE: 5.0})
    assert table.of_client(PRODUCER_BYTE_RATE, "alice", "x") == InForce(ALICE, 5.0)
    table.change(((CLIENT_ID, None), (USER, "alice")), {PRODUCER_BYTE_RATE: 6.0})
    assert table.of_client(PRODUCER_BYTE_RATE, "alice", "x") == InForce(((CLIENT_ID, "x"), (USER, "alice")), 6.0)
    table.change(((IP, None),), {CONNECTION_CREATION_RATE: 3.0})
    table.change(((IP, "10.0.0.1"),), {CONNECTION_CREATION_RATE: 4.0})
    assert table.of_address(CONNECTION_CREATION_RATE, "10.0.0.1") == InForce(((IP, "10.0.0.1"),), 4.0)
    assert table.of_address(CONNECTION_CREATION_RATE, "10.0.0.2") == InForce(((IP, "10.0.0.2"),), 3.0)


def test_changes_set_and_remove() -> None:
    table = QuotaTable()
    version = table.version
    table.change(ALICE, {PRODUCER_BYTE_RATE: 5.0, CONSUMER_BYTE_RATE: 6.0})
    assert table.version is not version
    table.change(ALICE, {PRODUCER_BYTE_RATE: None})
    assert list(table) == [(ALICE, {CONSUMER_BYTE_RATE: 6.0})]
    table.change(ALICE, {CONSUMER_BYTE_RATE: None})
    table.change(ALICE, {CONSUMER_BYTE_RATE: None})
    assert not len(table)


# buckets


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 50)), max_size=50))
def test_a_bucket_lets_through_its_rate_and_one_burst(takes: list[tuple[float, float]]) -> None:
    """A client that waits as told has never used more than the rate since any moment, but for one burst and one
    request."""
    bucket = TokenBucket(10.0, 2.0, 0.0)
    now = used = 0.0
    for pause, amount in takes:
        now += pause
        used += amount
        wait = bucket.take(amount, now)
        assert wait <= DEBT_SECONDS_MAX
        now += wait
        assert used <= 10.0 * now + 2.0 + 1e-6
        assert bucket.room(now) >= -1e-6


def test_a_debt_is_settled_in_time_and_bounded() -> None:
    bucket = TokenBucket(10.0, 2.0, 0.0)
    assert bucket.take(1, 0.0) == 0
    assert bucket.take(11, 0.0) == pytest.approx(1.0)
    assert bucket.debt_seconds(0.4) == pytest.approx(0.6)
    assert bucket.take(10_000, 0.5) == DEBT_SECONDS_MAX
    bucket.resize(1000.0, 2.0, 0.5)
    assert bucket.debt_seconds(0.5) == pytest.approx(0.6)


def test_all_under_one_quota_share_a_bucket_and_there_are_only_so_many() -> None:
    buckets = Buckets()
    one = buckets.bucket(PRODUCER_BYTE_RATE, InForce(ALICE, 100.0), 0.0)
    assert buckets.bucket(PRODUCER_BYTE_RATE, InForce(ALICE, 100.0), 1.0) is one
    assert one.burst == 100.0 * BURST_SECONDS
    assert buckets.bucket(CONSUMER_BYTE_RATE, InForce(ALICE, 100.0), 1.0) is not one
    assert buckets.bucket(PRODUCER_BYTE_RATE, InForce(ALICE, 50.0), 2.0) is one
    assert one.rate == 50.0


def test_names_that_clients_make_up_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem.security.quotas.buckets.BUCKETS_MAX", 10)
    buckets = Buckets()
    for number in range(100):
        buckets.bucket(PRODUCER_BYTE_RATE, InForce(((CLIENT_ID, str(number)),), 1.0), 0.0)
    assert len(buckets) == 10
