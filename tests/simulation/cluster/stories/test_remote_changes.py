"""Changes of the remote tier, made by leaders that die and change on the way: what counts is the same on all replicas,
and nothing that was recorded is lost, or taken back, or said of a file that its leader did not intend."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.run import HEALED_SECONDS, LEFT_BEHIND, Run
from tests.simulation.cluster.stories.test_snapshots import CrashingStory, Replacement
from tests.simulation.find import more_at_length
from tests.simulation.oracle import require
from tests.storage.remote.remote_files import packed, span

from mainstem.storage.errors import StorageError
from mainstem.storage.remote.decided.remote_tier import RemoteTier


class Recorded:
    """The names that leaders were told of the files of one write group."""

    def __init__(self) -> None:
        self.counts: set[str] = set()
        """Recorded, and nobody wanted them gone since."""
        self.gone: set[str] = set()
        """Recorded as gone."""
        self.may_be: set[str] = set()
        """Nobody was told what became of them."""


class Changers:
    """The leader intends, uploads, and records; some of it late."""

    def __init__(self, run: Run, rng: random.Random) -> None:
        self._run = run
        self._rng = rng
        self._names = itertools.count(1)
        self.recorded = {group: Recorded() for group in range(run.cluster.settings.groups)}
        self.changes = 0
        self.refused = 0

    async def work(self, group: int) -> None:
        """Have this write group's leaders change what counts, until the run ends."""
        cluster, rng = self._run.cluster, self._rng
        while not self._run.clients.ending:
            await asyncio.sleep(rng.choice([0.02, 0.1, 0.3]))
            leaders = cluster.leaders(group)
            if leaders:
                await self.change(rng.choice(leaders), group)

    async def change(self, node: SimulatedNode, group: int) -> None:
        rng, known = self._rng, self.recorded[group]
        tier = node.storage.remote
        files = [packed(f"{group}-{next(self._names)}", group) for _ in range(rng.choice([1, 2, 40]))]
        names = [file.name for file in files]
        if await self._record(node, tier, group, intended=names) != "recorded":
            return
        await asyncio.sleep(rng.choice([0.0, 0.1, 1.0]))  # the upload
        after = tier.position(group).upto
        known.may_be.update(names)
        said = await self._record(node, tier, group, upto=after + 5, spans=[span(after, after + 5, *files)])
        if said == "recorded":
            known.may_be.difference_update(names)
            known.counts.update(names)
        elif said is not None:
            self.refused += 1
        old = sorted(known.counts)[: rng.choice([0, 0, 3])]
        if not old:
            return
        known.counts.difference_update(old)
        known.may_be.update(old)
        if await self._record(node, tier, group, gone=old) == "recorded":
            known.may_be.difference_update(old)
            known.gone.update(old)
            await self._record(node, tier, group, deleted=old)

    async def _record(self, node: SimulatedNode, tier: RemoteTier, group: int, **change: Any) -> str | None:
        """The answer; None: there was none, so that nobody knows whether it was done."""

        async def record() -> str | None:
            try:
                return await tier.record(group, **change)
            except (StorageError, OSError):
                return None

        said = await node.call(record(), patience=20)
        if said == "recorded":
            self.changes += 1
        elif said is not None and "is not led by this node" in said and "spans" in change:
            return None  # another leader may find it in its log
        return said

    def check(self) -> None:
        """All replicas say the same, and what was told holds."""
        for group, known in self.recorded.items():
            said = {}
            for node in self._run.cluster.nodes.values():
                tier = node.storage.remote
                names = {entry.name for one in tier.manifest.spans(group) for entry in one}
                noted = [
                    {name: noted.epoch for name, noted in notes.items()}
                    for notes in (tier.intended(group), tier.leaving(group))
                ]
                said[node.node_id] = tier.position(group), names, noted
                require(
                    known.counts <= names, f"node {node.node_id}: {known.counts - names} was recorded, is lost", "R"
                )
                require(not known.gone & names, f"node {node.node_id}: {known.gone & names} went, and counts", "R")
                unknown = names - known.counts - known.may_be
                require(not unknown, f"node {node.node_id}: {unknown} counts, nobody recorded it", "R")
                require(not names & set(noted[0] | noted[1]), f"node {node.node_id}: counts, and does not", "R")
            first = next(iter(said.values()))
            for node_id, one in said.items():
                require(one == first, f"write group {group}: node {node_id} says {one}, another {first}", "R")


class LeadersChange(Run):
    """A run whose leaders change the remote tier."""

    changers: Changers

    def _load(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield from super()._load()
        self.changers = Changers(self, random.Random(f"{self.cluster.settings.storage} remote"))
        for group in range(self.cluster.settings.groups):
            yield self.changers.work(group)

    async def _converge(self) -> None:
        await super()._converge()
        for node in self.cluster.nodes.values():
            await node.storage.remote.drained()
        self.changers.check()


class Snapshots(LeadersChange, CrashingStory):
    """A node that lacks changes takes a snapshot, and dies at some points of taking it."""


class Replaced(LeadersChange, Replacement):
    """A new node takes the place of a dead one."""


class ManifestLost(LeadersChange):
    """A node that is off loses its manifest of the remote tier, or has an older copy of it, and starts again."""

    async def _settle(self) -> None:
        node = self._rng.choice(list(self.cluster.nodes.values()))
        path = Path(node.manifest_path)
        path = path.with_name(f"remote-{path.name}")
        await node.stop()
        older = path.read_bytes() if path.exists() and self._rng.random() < 0.5 else None
        await self._restarted(node)
        self.clients.ending = False
        for group in self.changers.recorded:
            for _ in range(3):
                await self.changers.change(await self.cluster.lead(group, HEALED_SECONDS), group)
        self.clients.ending = True
        await self._converge()
        await node.stop()
        require(path.exists(), "the tier was never used")
        path.unlink()
        if older is not None:
            path.write_bytes(older)
        await self._restarted(node)
        await super()._settle()

    async def _restarted(self, node: SimulatedNode) -> None:
        require(await node.restart(), f"node {node.node_id} does not start: {node.refusal}")
        for group in self.changers.recorded:
            await self.cluster.lead(group, HEALED_SECONDS)


@pytest.mark.parametrize("seed", more_at_length(range(1, 13), 2))
def test_all_replicas_say_what_counts(tmp_path: Path, seed: int) -> None:
    run = LeadersChange(seed, tmp_path)
    run.play()
    assert run.changers.changes


@pytest.mark.parametrize("seed", more_at_length(range(1, 7), 1))
def test_who_takes_a_snapshot_learns_what_counts(tmp_path: Path, seed: int) -> None:
    run = Snapshots(seed, tmp_path, faults=[LEFT_BEHIND])
    assert run.play().snapshots
    assert run.changers.changes


@pytest.mark.parametrize("seed", more_at_length([1, 0, 2]))
def test_a_new_replica_learns_what_counts(tmp_path: Path, seed: int) -> None:
    run = Replaced(seed, tmp_path, seconds=1.0, faults=[LEFT_BEHIND])
    run.directory = tmp_path
    run.play()
    assert run.changers.changes


@pytest.mark.parametrize("seed", more_at_length(range(1, 9), 2))
def test_a_manifest_that_is_lost_or_old_is_made_whole_from_another_replica(tmp_path: Path, seed: int) -> None:
    run = ManifestLost(seed, tmp_path, seconds=1.0, faults=["transfer"])
    run.play()
    assert run.changers.changes
