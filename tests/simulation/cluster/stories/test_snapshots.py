"""A node that was away until the others had pruned what it lacks takes a snapshot, whatever happens on the way.

Everything that `Run` sees to holds here as well: what any node applies and serves is the history, tables and producers
are the same on all nodes in the end, and every queue store alone has all of it, each batch once.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.run import HEALED_SECONDS, LEFT_BEHIND, NodeSplitters, Outcomes, Run, play
from tests.simulation.find import more_at_length
from tests.simulation.merger import Mergers

CRASHES_MAX = 60


class Story(Run):
    """Load and splits, no faults but one: a node goes, and comes back to what it cannot have as a log."""

    crashes = False
    """Each time it comes back, the power goes a little later in what it does to its disks."""

    async def _story(self) -> None:
        for node in self.cluster.nodes.values():
            await node.start()
        await self.cluster.create_topic(3, patience=30)
        working = [self.loop.create_task(self._looked_after(task)) for task in self._load()]
        splitting = [
            self.loop.create_task(self._looked_after(self._split_and_merge(node)))
            for node in self.cluster.nodes.values()
        ]
        await asyncio.sleep(1.0)
        node = self._rng.choice(list(self.cluster.nodes.values()))
        node.lose_power()
        async with asyncio.timeout(HEALED_SECONDS):
            while not self.faults.is_left_behind(node):  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(0.1)
        if self.crashes:
            self.clients.ending = True
            await self._crash_on_the_way(node)
        else:
            await node.restart()
        async with asyncio.timeout(HEALED_SECONDS):
            while self.cluster.snapshots < 1:  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(0.1)
        for task in splitting:
            task.cancel()
        await self.faults.heal()
        self.clients.ending = True
        async with asyncio.timeout(HEALED_SECONDS):
            await asyncio.gather(*working)
        await self._settle()
        self.cluster.check_tasks()

    async def _crash_on_the_way(self, node: SimulatedNode) -> None:
        for change in range(1, CRASHES_MAX):
            disk = node.disk2 if change % 3 == 0 else node.disk1
            disk.cut_power(after=change)
            if await node.restart():
                life = node.life
                for _ in range(40):
                    await asyncio.sleep(0.1)
                    if node.life is not life or not node.up:
                        break
                if node.up and node.life is life:
                    if self.cluster.snapshots and not self.faults.is_left_behind(node):
                        return
                    node.lose_power()
        if not node.up:
            await node.restart()


class CrashingStory(Story):
    crashes = True


class Replacement(Run):
    """A node dies for good, and a new one with empty disks takes its place; it dies, too, now and then."""

    directory: Path
    joined = 0

    async def _story(self) -> None:
        cluster, rng = self.cluster, self._rng
        cluster.moves = True
        for node in cluster.nodes.values():
            await node.start()
        await cluster.create_topic(3, patience=30)
        working = [self.loop.create_task(self._looked_after(task)) for task in self._load()]
        splitting = [
            self.loop.create_task(self._looked_after(self._split_and_merge(node))) for node in cluster.nodes.values()
        ]
        await asyncio.sleep(3.0)
        old = rng.choice(list(cluster.nodes.values()))
        old.lose_power()
        await asyncio.sleep(rng.choice([0.1, 2.0, 6.0]))
        new = SimulatedNode(cluster, len(cluster.nodes) + 1, self.directory, rng.randrange(1 << 30))
        cluster.nodes[new.node_id] = new
        self.splitters[new.node_id] = NodeSplitters(new, random.Random(rng.random()))
        self.mergers[new.node_id] = Mergers(new, random.Random(new.node_id))
        await new.start()
        for group, replicas in cluster.placements.items():
            cluster.placements[group] = [new.node_id if one == old.node_id else one for one in replicas]
        splitting.append(self.loop.create_task(self._looked_after(self._split_and_merge(new))))
        for _ in range(rng.randint(0, 3)):
            await asyncio.sleep(rng.choice([0.3, 1.0, 3.0]))
            new.lose_power()
            assert await new.restart()
        async with asyncio.timeout(HEALED_SECONDS):
            while not self._is_done(set(cluster.nodes) - {old.node_id}):  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(0.1)
        self.joined = new.node_id
        del cluster.nodes[old.node_id]
        for task in splitting:
            task.cancel()
        self.clients.ending = True
        async with asyncio.timeout(HEALED_SECONDS):
            await asyncio.gather(*working)
        try:
            await self._settle()
        finally:
            cluster.nodes[old.node_id] = old

    def _is_done(self, wanted: set[int]) -> bool:
        return all(
            any(node.storage.groups[group].consensus.voters == wanted for node in self.cluster.leaders(group))
            for group in self.cluster.placements
        )

    def _outcomes(self) -> Outcomes:
        assert self.joined
        return Outcomes(snapshots=self.cluster.snapshots)


@pytest.mark.parametrize("seed", more_at_length([1, 0, 2]))
def test_a_new_node_takes_the_place_of_a_dead_one(tmp_path: Path, seed: int) -> None:
    run = Replacement(seed, tmp_path, seconds=1.0, faults=[LEFT_BEHIND])
    run.directory = tmp_path
    run.play()


@pytest.mark.parametrize("seed", more_at_length([1, 0, 2]))
def test_a_node_that_was_left_behind_takes_a_snapshot(tmp_path: Path, seed: int) -> None:
    story = Story(seed, tmp_path, seconds=1.0, faults=[LEFT_BEHIND])
    assert story.play().snapshots >= 1
    assert story.cluster.kept_spans >= 1, "what it had split itself stays"


@pytest.mark.parametrize("seed", more_at_length([1, 0, 2]))
def test_it_may_die_at_any_point_of_taking_it(tmp_path: Path, seed: int) -> None:
    outcomes = CrashingStory(seed, tmp_path, seconds=1.0, faults=[LEFT_BEHIND]).play()
    assert outcomes.snapshots >= 1


def test_with_other_faults_beside(tmp_path: Path) -> None:
    """Leaders die and change while they give a snapshot, links break, disks fail."""
    kinds = [LEFT_BEHIND, "crash", "crash later", "transfer", "cut off", "bad disk"]
    outcomes = play(4, tmp_path, seconds=8.0, faults=kinds)
    assert outcomes.acknowledged
