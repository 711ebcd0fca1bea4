"""Nodes that share quotas: their parts add up, and clients get the whole of a quota however they are spread."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.security.quotas.buckets import PART_SECONDS, Buckets
from mainstem.security.quotas.quota import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    USER,
    Entity,
)
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


class Consumers:
    """Clients of one quota that read as fast as they may, so many on each node, batches of one size each. Each is told
    how much it may have at once, waits as it is told, and pauses for a little while before the next."""

    def __init__(self, spread: tuple[int, ...], batch_bytes: int, random: Random, pause_seconds: float) -> None:
        self._random, self._batch_bytes, self._pause_seconds = random, batch_bytes, pause_seconds
        self._sharing = QuotaSharing(-SETTLING_SECONDS)
        self._buckets = [Buckets(lambda: len(spread)) for _ in spread]
        self._due: list[tuple[float, int, Callable[[float, int], float], int]] = []
        self.passed: list[tuple[float, int]] = []
        for node, clients in enumerate(spread):
            self._push(random.random() * BEAT_SECONDS, self._beat, node)
            for _ in range(clients):
                self._push(random.random() / 5, self._fetch, node)

    def share_of(self, first: float, last: float) -> float:
        """The part of what the quota allows between two times that passes."""
        while self._due[0][0] < last:
            now, _, does, node = heapq.heappop(self._due)
            self._push(does(now, node), does, node)
        return sum(size for at, size in self.passed if at >= first) / (QUOTA.per_second * (last - first))

    def _push(self, at: float, does: Callable[[float, int], float], node: int) -> None:
        heapq.heappush(self._due, (at, self._random.getrandbits(64), does, node))

    def _beat(self, now: float, node: int) -> float:
        uses = self._buckets[node].used(now)
        self._buckets[node].parted(self._sharing.told(node, uses, now), now)
        return now + BEAT_SECONDS

    def _fetch(self, now: float, node: int) -> float:
        bucket = self._buckets[node].bucket(CONSUMER_BYTE_RATE, QUOTA, now)
        batches = max(1, int(bucket.piece(now)) // self._batch_bytes)
        self.passed.append((now, batches * self._batch_bytes))
        waits = bucket.take(batches * self._batch_bytes, now)
        return now + max(waits, 0.01) + self._random.random() * self._pause_seconds


@pytest.mark.parametrize("spread", [(1, 0, 0), (1, 1, 1), (4, 1, 0), (5, 2, 1), (20, 10, 10)])
@pytest.mark.parametrize("pause_seconds", [0.01, 0.2])
def test_consumers_get_the_whole_within_ten_seconds_however_many_they_are(
    spread: tuple[int, ...], pause_seconds: float
) -> None:
    """Forty that wait for each other in step would take ten seconds' worth of the quota at the wrong end of ten
    seconds."""
    for seed in range(10):
        found = Consumers(spread, 2_500, Random(seed), pause_seconds).share_of(2, 12)
        assert found == pytest.approx(1, abs=0.03), f"seed {seed}"


@pytest.mark.parametrize("seed", range(5))
def test_a_node_whose_clients_take_large_pieces_and_pause_keeps_its_part(seed: int) -> None:
    """Each batch is three quarters of a second's worth of a node's even part."""
    found = Consumers((1, 1, 1), 250_000, Random(seed), 0.2).share_of(2, 22)
    assert found == pytest.approx(1, abs=0.05)
