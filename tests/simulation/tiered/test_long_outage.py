"""Ten minutes in which the object store of a cluster says nothing, on a simulated clock: producing and the tail feel
nothing, whoever asks for what lies in the store alone is told to come again, what waits for it is told, the store is
asked seldom, and all of it is uploaded afterwards.

The run's own invariants hold as well (`test_remote_tier.py`): in the end everything is there, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.simulation.cluster import node as simulated_node
from tests.simulation.cluster.clients import Clients, Producer
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.oracle import require
from tests.simulation.tiered.run import TieredRun

from mainstem.model import Outcome, QueueRead, QueueSlice, TopicSettings
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.remote.config import ReadCacheConfig

OUTAGE_SECONDS = 600.0
BEFORE_SECONDS = 100.0
"""By then something lies in the store alone."""
AFTER_SECONDS = 60.0
REQUESTS_MAX = 600
"""Of three nodes and their splitters while the store is out: one a second, all of them together."""
CLIENTS_SECONDS = 30.0
"""For which clients wait for an answer by default."""
PAST_SECONDS = 10.0
"""Between two reads of the past."""
LEADER_SECONDS_MAX = 60.0
STEPS_MAX = 20
"""Merges made one after the other."""
AGAIN = {Outcome.STORAGE_FAILED, Outcome.STORAGE_BUSY}
"""Clients are told so with errors after which they ask again."""


class Steady(Producer):
    """Sends something every two seconds, and reads it at the tail; `slowest` has how long either took, in turn."""

    def __init__(self, clients: Clients, queue_ids: list[int]) -> None:
        super().__init__(clients, queue_ids, 1, -1)
        self.took: list[tuple[float, float]] = []
        """When, and for how long."""
        self._ends: dict[int, int] = dict.fromkeys(queue_ids, 0)

    async def run(self) -> None:
        clock = self._clients.cluster.loop.time
        while not self._clients.ending:
            began = clock()
            await self.produce()
            await self._follow()
            self.took.append((began, clock() - began))
            await asyncio.sleep(2.0)

    async def _follow(self) -> None:
        """Read all that is new, at the leaders."""
        cluster = self._clients.cluster
        for queue_id, end in self._ends.items():
            for leader in cluster.leaders(cluster.group_of(queue_id)):
                found = await read(leader, queue_id, end)
                if found is not None and found.outcome is Outcome.OK and found.batches:
                    self._ends[queue_id] = found.next_offset
                    cluster.history.check_read("the tail", queue_id, end, found.batches, found.next_offset)

    def slowest(self, since: float, until: float) -> float:
        return max(took for began, took in self.took if since <= began < until)


async def read(node: SimulatedNode, queue_id: int, offset: int) -> QueueSlice | None:
    answer = await node.call(node.storage.messages.read([QueueRead(queue_id, offset, 5000)], 5000), patience=100)
    return answer[0] if answer else None


class ReadOfThePast(NamedTuple):
    began: float
    took: float
    outcome: Outcome
    has_batches: bool


class Outage:
    """The only fault of such a run, and what is seen meanwhile."""

    def __init__(self, run: TenMinutes) -> None:
        self._run = run
        self.began = self.ended = 0.0
        self.requests = 0
        self.lags: list[int] = []
        """Bytes that wait for the store, every minute."""
        self.happened: dict[str, int] = {}
        """Nothing else does."""

    async def run(self) -> None:
        run, clock = self._run, self._run.loop.time
        await asyncio.sleep(BEFORE_SECONDS)
        require(run.local_copies_gone() > 0, "nothing lies in the store alone")
        run.bucket.weather.down = True
        await run.restart_all()  # nothing of the past is in memory any more
        self.began, asked = clock(), run.bucket.asked
        while clock() < self.began + OUTAGE_SECONDS:
            await asyncio.sleep(60.0)
            self.lags.append(await run.lag())
        self.ended, self.requests = clock(), run.bucket.asked - asked
        run.bucket.weather.down = False

    async def heal(self) -> None:
        assert self.ended, "the store was not out for so long"


class TenMinutes(TieredRun):
    """One producer and its reader, one who reads the past, and well-behaved splitters, mergers and tierers."""

    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory, seconds=BEFORE_SECONDS + OUTAGE_SECONDS + AFTER_SECONDS, faults=["none"])
        self.outage = Outage(self)
        for tierers in self.tierers.values():
            tierers.unit_bytes = tierers.piece_bytes = 1 << 20
        self.faults = self.outage  # type: ignore[assignment]  # all that there is of them
        self.past: list[ReadOfThePast] = []

    async def lag(self) -> int:
        """Bytes that wait for the store, as all nodes tell."""
        for node in self.cluster.nodes.values():
            await node.storage.tier_log.waits()  # as splitters ask, while they wait for work
        return sum(node.storage.tier_log.waiting_bytes() for node in self.cluster.nodes.values())

    async def restart_all(self) -> None:
        """One node after the other, as when a cluster is upgraded."""
        for node in self.cluster.nodes.values():
            node.lose_power(keep_all=True)
            if not await node.restart():
                require(False, f"node {node.node_id} does not start while the store is out: {node.refusal!r}")
            for group in range(self.cluster.settings.groups):
                await self.cluster.lead(group, LEADER_SECONDS_MAX)

    async def _create_topics(self) -> None:
        tiered = TopicSettings(remote_storage_enable=True, retention_ms=-1, local_retention_ms=0)
        await self.cluster.create_topic(2, patience=30, settings=tiered)
        await self.cluster.create_topic(1, patience=30, settings=TopicSettings(retention_ms=-1))

    def _load(self) -> Iterator[Coroutine[Any, Any, None]]:
        self._queue_ids = [topic.queue_id(at) for topic in self.cluster.topics for at in range(topic.partitions)]
        self.steady = Steady(self.clients, list(self._queue_ids))
        yield self.steady.run()
        yield self._read_the_past()

    async def _read_the_past(self) -> None:
        topic, clock = self.cluster.topics[0], self.loop.time
        while not self.outage.began:  # noqa: ASYNC110  # what is read before is in memory
            await asyncio.sleep(1.0)
        while not self.clients.ending:
            for queue_id in map(topic.queue_id, range(topic.partitions)):
                for leader in self.cluster.leaders(self.cluster.group_of(queue_id)):
                    began = clock()
                    found = await read(leader, queue_id, 0)
                    if found is not None and found.outcome is not Outcome.NOT_LEADER:
                        self.past.append(ReadOfThePast(began, clock() - began, found.outcome, bool(found.batches)))
            await asyncio.sleep(PAST_SECONDS)

    async def _split(self, node: SimulatedNode) -> None:
        splitters = self.splitters[node.node_id]
        while True:
            await asyncio.sleep(10.0)
            if node.serving is not None:
                await node.call(self._once(node, lambda: splitters.split(well_behaved=True)), patience=30)

    async def _merge(self, node: SimulatedNode) -> None:
        """Those that merge, and then those that upload, as one splitter does it."""
        mergers, tierers = self.mergers[node.node_id], self.tierers[node.node_id]
        while True:
            await asyncio.sleep(15.0)
            for _ in range(STEPS_MAX):
                if node.serving is None or not await node.call(
                    mergers.merge(well_behaved=True, drain=True), patience=30
                ):
                    break
            if node.serving is not None:
                await node.call(self._once(node, lambda: tierers.tier(well_behaved=True)), patience=300)

    def refused(self, since: float, until: float = inf) -> list[ReadOfThePast]:
        """The reads of the past that began meanwhile and got nothing."""
        return [read for read in self.past if since <= read.began < until and not read.has_batches]


@pytest.mark.long
def test_ten_minutes_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_node, "OBJECT_STORE", ObjectStoreConfig())
    cache = ReadCacheConfig(memory_bytes=1 << 20, disk_bytes=0, chunk_bytes=1 << 16, index_bytes=1 << 20)
    monkeypatch.setattr(simulated_node, "READ_CACHE", cache)
    run = TenMinutes(1, tmp_path)
    run.play()
    outage = run.outage
    timeout = run.bucket.weather.timeout_seconds
    assert run.steady.slowest(outage.began, outage.ended) < timeout, "a request to the store alone takes longer"
    assert sum(outage.began <= began < outage.ended for began, _ in run.steady.took) > OUTAGE_SECONDS / 4
    refused = run.refused(outage.began, outage.ended)
    assert len(refused) > OUTAGE_SECONDS / PAST_SECONDS / 2
    assert {read.outcome for read in refused} <= AGAIN
    assert max(read.took for read in refused) < CLIENTS_SECONDS
    assert sorted(outage.lags) == outage.lags
    assert outage.lags[-1] > outage.lags[0] > 0
    assert 10 < outage.requests < REQUESTS_MAX
    assert not run.refused(outage.ended + ObjectStoreConfig().probe_seconds_max)
    assert run.past[-1].began > outage.ended
