"""Nodes that share quotas: their parts add up, and clients get the whole of a quota however they are spread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.security.quotas.buckets import PART_SECONDS, Buckets
from mainstem.security.quotas.quota import CONTROLLER_MUTATION_RATE, PRODUCER_BYTE_RATE, USER, Entity
from mainstem.security.quotas.quota_table import InForce
from mainstem.security.quotas.sharing import (
    LEAST,
    QUOTAS_TOLD_MAX,
    SETTLING_SECONDS,
    USE_SECONDS,
    QuotaSharing,
    QuotaUse,
    quota_id,
)

ALICE: Entity = ((USER, "alice"),)
QUOTA = InForce(ALICE, 1_000_000.0)
BEAT_SECONDS = 0.5
STEP_SECONDS = 0.01


class Nodes:
    """Three nodes and their leader, on a clock of their own. `wanted`: bytes per second that clients of each would
    send."""

    def __init__(self, wanted: list[float]) -> None:
        self.wanted = wanted
        self.now = 0.0
        self.sharing = QuotaSharing(0.0)
        self.buckets = [Buckets(lambda: 3) for _ in range(3)]
        self.quiet_until = [0.0] * 3
        self.heard = [True] * 3
        self.passed = [0.0] * 3

    def run(self, seconds: float) -> float:
        """The bytes that pass on all nodes, per second."""
        begun, before = self.now, sum(self.passed)
        beats = round(BEAT_SECONDS / STEP_SECONDS)
        for step in range(round(seconds / STEP_SECONDS)):
            self.now += STEP_SECONDS
            for node, wanted in enumerate(self.wanted):
                if wanted and self.now >= self.quiet_until[node]:
                    bucket = self.buckets[node].bucket(PRODUCER_BYTE_RATE, QUOTA, self.now)
                    self.passed[node] += wanted * STEP_SECONDS
                    self.quiet_until[node] = self.now + bucket.take(wanted * STEP_SECONDS, self.now)
                if step % beats == node:  # they do not beat together
                    uses = self.buckets[node].used(self.now)
                    if self.heard[node]:
                        self.buckets[node].parted(self.sharing.told(node, uses, self.now), self.now)
        return (sum(self.passed) - before) / (self.now - begun)


@pytest.mark.parametrize(
    "wanted",
    [
        [5e6, 5e6, 5e6], [20e6, 0, 0], [20e6, 2e6, 0], [8e6, 1.5e6, 1.2e6], [5e6, 1e5, 0], [5e6, 4e5, 2e5],
        [5e6, 3e5, 3e5],
    ],
)  # fmt: skip
def test_clients_get_the_whole_quota_and_no_more_however_they_are_spread(wanted: list[float]) -> None:
    nodes = Nodes(wanted)
    nodes.run(5)
    passed = nodes.run(10)
    assert 0.95 <= passed / QUOTA.per_second <= 1.05


def test_what_nobody_wants_any_more_is_given_to_others() -> None:
    nodes = Nodes([5e6, 5e6, 0])
    nodes.run(5)
    nodes.wanted = [0, 0, 5e6]
    nodes.run(5)
    assert 0.95 <= nodes.run(10) / QUOTA.per_second <= 1.05


def test_a_node_that_hears_nothing_has_an_even_part() -> None:
    nodes = Nodes([5e6, 0, 0])
    nodes.run(5)
    nodes.heard = [False] * 3
    nodes.run(PART_SECONDS + 2)
    assert 0.95 <= nodes.run(10) / (QUOTA.per_second / 3) <= 1.05


USES = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=8)


@given(USES)
def test_parts_add_up_to_the_quota(uses: list[tuple[float, bool]]) -> None:
    """But for what is used while parts change, and the least that every node has."""
    sharing, whole = QuotaSharing(0.0), 1000.0
    share = 1 / len(uses)
    now = SETTLING_SECONDS
    for _ in range(2):
        parts = [
            sharing.told(node, [QuotaUse(b"q", whole, used * share * whole, held_back)], now)
            for node, (used, held_back) in enumerate(uses)
        ]
    total = sum(part.per_second for (part,) in parts)
    assert total <= whole * (1 + LEAST * len(uses)) + 1e-6
    if any(held_back for _, held_back in uses):
        assert total >= whole - 1e-6


def test_a_new_leader_hears_all_nodes_first_and_forgets_those_that_are_silent() -> None:
    sharing = QuotaSharing(10.0)
    use = QuotaUse(b"q", 100.0, 40.0, held_back=True)
    assert sharing.told(1, [use], 10.0) == []
    at = 10.0 + SETTLING_SECONDS
    sharing.told(2, [use], at)
    assert sharing.told(1, [use], at)[0].per_second == 50
    assert sharing.told(1, [use], at + USE_SECONDS)[0].per_second == 100


def test_of_very_many_quotas_those_with_most_use_are_told() -> None:
    buckets = Buckets(lambda: 3)
    buckets.used(0.0)
    for number in range(3 * QUOTAS_TOLD_MAX):  # the last ones are taken up because they are held back
        quota = InForce(((USER, f"u{number}"),), 300.0)
        buckets.bucket(PRODUCER_BYTE_RATE, quota, 1.0).take(number, 1.0)
    told = buckets.used(2.0)
    assert len(told) == QUOTAS_TOLD_MAX
    assert told[0].quota == quota_id(PRODUCER_BYTE_RATE, ((USER, f"u{3 * QUOTAS_TOLD_MAX - 1}"),))
    for seconds in range(100):
        told = buckets.used(3.0 + seconds)
    assert told == []


def test_what_one_node_has_by_itself_is_not_shared() -> None:
    buckets = Buckets(lambda: 3)
    assert buckets.bucket(PRODUCER_BYTE_RATE, InForce(ALICE, 300.0), 0.0).rate == 100
    assert buckets.bucket(CONTROLLER_MUTATION_RATE, InForce(ALICE, 300.0), 0.0).rate == 300
    assert Buckets().bucket(PRODUCER_BYTE_RATE, InForce(ALICE, 300.0), 0.0).rate == 300
    assert buckets.bucket(PRODUCER_BYTE_RATE, InForce(ALICE, 600.0), 0.0).rate == 200
