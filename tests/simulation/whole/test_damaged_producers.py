"""A node comes to lead while the pages that have its idempotent producers are damaged, and none of them is in memory:
their next batches wait until other replicas, which take their time, have told what they know of them, and nobody is
taken for unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.planted import planted
from tests.simulation.find import more_at_length, seed_that_finds
from tests.simulation.oracle import seed_failed
from tests.simulation.whole.clients import Producer
from tests.simulation.whole.faults import PRODUCERS
from tests.simulation.whole.node import WholeNode
from tests.simulation.whole.planted import WHOLE_BREAKS, WHOLE_PLANTS
from tests.simulation.whole.run import WholeRun

from mainstem.storage.repair.producer_mending import ProducerMending
from mainstem.storage.state.producers.producer_files import PAGE_BYTES

PRODUCERS_COUNT = 6
SEEDS = range(1, 6)


class DamagedAtOnce(WholeRun):
    """A node starts, with all producers in a file of each write group whose page has a flipped bit, and leads at once:
    with files this few nothing but appends and a start looks at them. Other replicas answer some seconds later."""

    ANSWER_SECONDS = 15.0

    async def _start_nodes(self) -> None:
        settings = self.cluster.settings
        settings.begins_old = False  # there are no such files before the level is raised
        settings.storage = msgspec.structs.replace(settings.storage, producers_in_memory=1 << 17)
        await super()._start_nodes()

    async def _story(self) -> None:
        await self._start_nodes()
        await self._create_topics()
        producers = [Producer(self.work, -1, idempotent=True) for _ in range(PRODUCERS_COUNT)]
        for producer in producers:
            await producer.begin()
        await self._write(producers)
        node = self.cluster.nodes[1]
        assert node.serving is not None
        await node.call(node.serving.checkpointer.save(), patience=10)
        node.lose_power(keep_all=True)
        node.boot()
        assert self._damage(node)
        await node.restart()
        await self._lead_with(node)
        await self._write(producers)
        await self._converge()
        await self._compare_tables()
        self.mended = node.storage.producers.damaged.mended
        for other in self.cluster.nodes.values():
            assert not other.storage.producers.damaged.lost

    async def _write(self, producers: Sequence[Producer]) -> None:
        for _ in range(3):
            for producer in producers:
                await producer.produce()

    def _damage(self, node: WholeNode) -> int:
        """How many pages."""
        files = [path for path in node.disk1.paths() if PRODUCERS in path and node.disk1.content(path)]
        for path in files:  # each has a page, behind its header; the names of its producers come after that
            node.disk1.flip(path, 8 * (PAGE_BYTES + 50))
        node.disk1.troubles += len(files)
        return len(files)

    async def _lead_with(self, node: WholeNode) -> None:
        for group in range(self.cluster.settings.groups):
            leader = await self.cluster.lead(group, 60)
            if leader is not node:

                async def transfer(leader: SimulatedNode = leader, group: int = group) -> None:
                    leader.storage.groups[group].consensus.transfer_leadership(node.node_id)

                await leader.call(transfer(), patience=5)
                await self.cluster.lead(group, 60)


def _answers_come_late() -> tuple[type, str, Any]:
    """For a while nobody gets to ask other replicas for producers."""
    ask = ProducerMending.round

    async def late(mending: ProducerMending) -> None:
        await asyncio.sleep(DamagedAtOnce.ANSWER_SECONDS)
        await ask(mending)

    return ProducerMending, "round", late


def play(seed: int, directory: Path, *, faults: Sequence[str] = ()) -> DamagedAtOnce:
    directory.mkdir(parents=True, exist_ok=True)
    run = DamagedAtOnce(seed, directory, faults=faults or ["transfer"])
    try:
        with planted("late", {"late": _answers_come_late}):
            run.play()
    except Exception as error:
        raise seed_failed(seed, error) from error
    return run


@pytest.mark.parametrize("seed", more_at_length(SEEDS))
def test_producers_in_damaged_pages_go_on_with_a_new_leader(seed: int, tmp_path: Path) -> None:
    assert play(seed, tmp_path).mended


def test_producers_that_are_dropped_with_their_pages_are_noticed(tmp_path: Path) -> None:
    name = "damaged-producers-are-dropped"
    with planted(name, WHOLE_PLANTS):
        assert seed_that_finds(play, WHOLE_BREAKS[name], SEEDS, tmp_path)
