"""A node that died is replaced, and another one dies as soon as the write groups' leaders say that it may: the rest has
a majority, and elects leaders."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.run import LEFT_BEHIND
from tests.simulation.cluster.stories.test_departures import MOVED_SECONDS, ThereAndBack
from tests.simulation.find import more_at_length
from tests.simulation.oracle import Violation, require

from mainstem.node.node_reports import NodeReports

ELECTED_SECONDS = 10.0
"""Simulated. Several election timeouts, with a vote that is split now and then."""

LOOK_SECONDS = 0.0005
"""Simulated. Less than a message takes to another node."""

SEEDS = range(1, 5)


class ReplacedThenAnotherDies(ThereAndBack):
    async def _story(self) -> None:
        cluster, rng = self.cluster, self._rng
        new, working = await self._begin()
        await asyncio.sleep(rng.choice([0.5, 2.0]))
        old = rng.choice([cluster.nodes[one] for one in cluster.placements[0]])
        old.lose_power()
        del cluster.nodes[old.node_id]
        try:
            await asyncio.sleep(rng.choice([0.0, 1.0, 3.0]))
            self._move(old, new)
            await self._until_replaced(frozenset(cluster.nodes))
            other = cluster.leaders(rng.randrange(cluster.settings.groups))[0]
            other.lose_power()
            await asyncio.sleep(ELECTED_SECONDS)
            for group in cluster.placements:
                require(bool(cluster.leaders(group)), f"write group {group}: two of three live, and none leads", "S")
            await other.restart()
            await self._end_load(working)
            await self._settle()
        finally:
            cluster.nodes[old.node_id] = old

    async def _until_replaced(self, members: frozenset[int]) -> None:
        for _ in range(int(MOVED_SECONDS / LOOK_SECONDS)):
            if all(self._says_that_it_is_done(group, members) for group in self.cluster.placements):
                return
            await asyncio.sleep(LOOK_SECONDS)
        raise Violation(f"nodes {sorted(members)} are not the members of all write groups", "S")

    def _says_that_it_is_done(self, group: int, members: frozenset[int]) -> bool:
        """As `cluster status` shows it: these have a vote, and no others. Then most of them know that."""
        for node in self.cluster.leaders(group):
            for led in NodeReports(node.node_id, node.storage, None).own().led:
                if led.group != group or members != {member.node for member in led.members if member.voter}:
                    continue
                knowing = [one.node_id for one in self.cluster.nodes.values() if self._voters_of(one, group) == members]
                place = f"write group {group}: node {node.node_id} says that nodes {sorted(members)} vote"
                require(len(knowing) > len(members) // 2, f"{place}, only {knowing} know it", "S")
                return len(led.members) == len(members)
        return False

    def _voters_of(self, node: SimulatedNode, group: int) -> frozenset[int]:
        """By its log."""
        logged = node.storage.groups[group].blocks.memberships
        return logged[max(logged)].voters if logged else frozenset()


@pytest.mark.parametrize("seed", more_at_length(SEEDS))
def test_after_a_replacement_another_node_may_die(seed: int, tmp_path: Path) -> None:
    run = ReplacedThenAnotherDies(seed, tmp_path, seconds=1.0, faults=[LEFT_BEHIND])
    run.directory = tmp_path
    run.play()
