"""A replica that was moved away returns with an empty log, while a member of old is back that was away all the time. By
what that one remembers the two are a majority: if the returned replica voted, they would lead and commit beside the
others, without blocks that it had acknowledged before it was moved away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.planted import BREAKS, RETURNED_PLANTS, planted
from tests.simulation.cluster.run import LEFT_BEHIND
from tests.simulation.cluster.stories.test_departures import ThereAndBack
from tests.simulation.find import more_at_length
from tests.simulation.oracle import Violation, require

COPIES = 3

TOGETHER_SECONDS = 5.0
"""Simulated. Several elections, and what is committed then."""


class ReturnedBesideAStaleMember(ThereAndBack):
    """Of three members one is away. Another one is moved to a new node; then it is to return, and is cut off together
    with the first, which is back. Then all see each other again."""

    restarts = False
    """The returned replica's node is restarted before it sees the others."""

    async def _story(self) -> None:
        cluster, rng = self.cluster, self._rng
        founders = list(cluster.placements[0])
        new, working = await self._begin()
        stale, moved = (cluster.nodes[node_id] for node_id in rng.sample(founders, 2))
        await asyncio.sleep(1.0)
        stale.lose_power()
        self._move(moved, new)
        await self._until(lambda: self._is_empty(moved), but=stale)
        members = frozenset({*cluster.nodes} - {stale.node_id, moved.node_id})
        await asyncio.sleep(1.0)
        ways = {way for a in (stale.node_id, moved.node_id) for b in members for way in ((a, b), (b, a))}
        cluster.network.cut |= ways
        self._move(new, moved)
        require(await stale.restart(), f"node {stale.node_id} does not start")
        await self._until(lambda: self._has_begun(moved))
        if self.restarts:
            moved.lose_power()
            require(await moved.restart(), f"node {moved.node_id} does not start")
        await asyncio.sleep(TOGETHER_SECONDS)
        cluster.network.cut -= ways
        await self._end_load(working)
        await self._until(lambda: self._voters() == frozenset(founders))
        await self._until(lambda: self._is_empty(new))
        require(
            not any(moved.storage.hard_states.returned(group) for group in cluster.placements),
            f"node {moved.node_id} votes, and has not noted that it caught up",
            "S",
        )
        new.lose_power()
        del cluster.nodes[new.node_id]
        try:
            await self._settle()
        finally:
            cluster.nodes[new.node_id] = new

    def _has_begun(self, node: SimulatedNode) -> bool:
        return node.serving is not None and not any(map(node.storage.hard_states.left, self.cluster.placements))


class RestartedOnTheWay(ReturnedBesideAStaleMember):
    restarts = True


def of_three(directory: Path, number: int, story: type[ReturnedBesideAStaleMember]) -> ReturnedBesideAStaleMember:
    """The run of the so many-th seed that has three nodes."""
    directory.mkdir()
    for seed in range(1, 100):
        run = story(seed, directory, seconds=1.0, faults=[LEFT_BEHIND])
        if len(run.cluster.nodes) == COPIES:
            number -= 1
            if not number:
                run.directory = directory
                return run
        run.loop.close()
    raise AssertionError("hardly any seed has three nodes")


@pytest.mark.parametrize("number", more_at_length([1, 2, 3, 4]))
@pytest.mark.parametrize("story", [ReturnedBesideAStaleMember, RestartedOnTheWay])
def test_a_replica_that_returned_does_not_vote_before_it_has_caught_up(
    number: int, story: type[ReturnedBesideAStaleMember], tmp_path: Path
) -> None:
    of_three(tmp_path / "run", number, story).play()


def test_a_vote_of_a_replica_that_returned_is_found(tmp_path: Path) -> None:
    name = "returned-replicas-vote"

    def play_all() -> None:
        for number in range(1, 6):
            of_three(tmp_path / str(number), number, ReturnedBesideAStaleMember).play()

    with planted(name, RETURNED_PLANTS), pytest.raises(Violation) as found:
        play_all()
    assert found.value.breaks
    assert found.value.breaks in BREAKS[name], str(found.value)
