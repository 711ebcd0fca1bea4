"""Simulated runs of clusters with an object store, which has outages: what all of them have in common."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from tests.fakes.object_store import SimulatedBucket, Weather
from tests.simulation.cluster.faults import Faults, Kind
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.run import HEALED_SECONDS, Run
from tests.simulation.oracle import require
from tests.simulation.tiered.remote_objects import RemoteObjects

from mainstem.errors import MainstemError
from mainstem.model import FeatureLevel, QueueRead
from mainstem.raft import RaftError
from mainstem.storage.agreed_clock import BOUND_MS
from mainstem.storage.errors import StorageError
from mainstem.storage.remote.remote_upkeep import RemoteUpkeep
from mainstem.storage.role import Storage

OUTAGE = "store down"
BAD_WEATHER = "store weather"
DEPOSED = "deposed while tiering"
LEADS_AGAIN = "leads again"
"""Faults' names."""

TIER_FAULTS = (OUTAGE, BAD_WEATHER, DEPOSED, LEADS_AGAIN)

OUTAGE_SECONDS = (0.3, 3.0, 40.0)

UPLOAD_SECONDS_MAX = 2.0
"""How long a leader is watched for an upload."""

CLOCK_STEP_MS = BOUND_MS - 60_000

LATE_SECONDS = Weather().late_seconds + Weather().timeout_seconds
"""No request is late any more."""

GRACE_MS = 25 * 3_600_000
"""Intents of earlier epochs are looked for once more after a day."""

READ_TRIES_MAX = 300
"""A store that counts as down is asked again within some seconds."""

CLEAN_TRIES_MAX = 50
"""Looks of a leader within which nothing is left to be deleted: a store that counts as down is asked again soon."""

LEAD_TRIES_MAX = 50
"""Attempts, some tenths of a second apart, to have another node lead."""


class Busy(Protocol):
    """Those who write to the object store for a node."""

    @property
    def node(self) -> SimulatedNode: ...

    step: str
    """The step that one of them is at; empty: none."""
    zombies: set[asyncio.Task[None]]
    """Uploads that go on without the process that began them."""


class StoreFaults(Faults):
    """Those of a cluster, and those of its object store."""

    def __init__(self, run: StoreRun, rng: random.Random, only: Sequence[str]) -> None:
        self._run = run
        super().__init__(run.cluster, rng, only)

    def kinds(self) -> list[Kind]:
        return [
            *super().kinds(),
            (OUTAGE, self._store_down),
            (BAD_WEATHER, self._store_weather),
            (DEPOSED, self._depose_while_tiering),
            (LEADS_AGAIN, self._lead_again),
        ]

    async def heal(self) -> None:
        await super().heal()
        self._run.bucket.weather = Weather()

    async def _store_down(self) -> None:
        weather = self._run.bucket.weather
        self._run.cluster.store_troubles += 1
        weather.down = True
        await asyncio.sleep(self._rng.choice(OUTAGE_SECONDS))
        weather.down = False

    async def _store_weather(self) -> None:
        rng = self._rng
        self._run.cluster.store_troubles += 1
        self._run.bucket.weather = Weather(
            latency_seconds=(0.0, rng.choice([0.0, 0.05, 1.0])),
            lost_answers=rng.choice([0.0, 0.1, 0.5]),
            lost_requests=rng.choice([0.0, 0.2]),
            late_requests=rng.choice([0.0, 0.1, 0.3]),
            failures=rng.choice([0.0, 0.3]),
            requests_per_second_max=rng.choice([5.0, 100.0, float("inf")]),
            refuses=rng.random() < 0.1,
        )
        await asyncio.sleep(2 * self._some_time())
        self._run.bucket.weather = Weather()

    async def _lead_again(self) -> None:
        """A leader that is uploading loses its write groups, the next one deletes what it has uploaded, and it leads
        again."""
        busy = self._run.busy()
        if not await self._soon(lambda: any(one.step for one in busy), UPLOAD_SECONDS_MAX):
            return
        node = next(one.node for one in busy if one.step)
        for group in range(self._cluster.settings.groups):
            if node.leads(group):
                others = [other for other in self._cluster.nodes if other != node.node_id]
                await self._run.have_lead(group, self._rng.choice(others))
                await self._run.look(group)
                await self._run.have_lead(group, node.node_id)

    async def _depose_while_tiering(self) -> None:
        """A leader loses its write groups, or dies, at some step of an upload: between intent, upload and record."""
        busy = self._run.busy()
        if not await self._soon(lambda: any(one.step for one in busy), UPLOAD_SECONDS_MAX):
            return
        node = next(one.node for one in busy if one.step)
        await asyncio.sleep(self._rng.choice([0.0, 0.001, 0.02]))
        how, life = self._rng.randrange(3), node.life
        if not node.up or node.serving is None or life is None or life.stopped:
            return
        if how == 0:
            node.lose_power()
            await self._restarted(node)
        elif how == 1:
            others = {other for other in self._cluster.nodes if other != node.node_id}
            await self._cut({(node.node_id, other) for other in others} | {(other, node.node_id) for other in others})
        else:
            await self._transfer()


class StoreRun(Run):
    """`bucket` is the store of all nodes, `objects` the observer that holds it against the logs (U)."""

    new_faults: type[StoreFaults] = StoreFaults
    """Makes what goes wrong."""

    def __init__(self, seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> None:
        super().__init__(seed, directory, seconds=seconds, faults=faults)
        self._tiering = rng = random.Random(f"{seed} tiering")
        cluster, history = self.cluster, self.cluster.history
        cluster.settings.storage = msgspec.structs.replace(
            cluster.settings.storage, retention_check_seconds=rng.choice([0.5, 2.0])
        )
        self._old_seconds = random.Random(f"{seed} level").choice([0.0, 0.5, 1.0, 3.0])
        """How long the cluster is at an older feature level."""
        if self._old_seconds:
            cluster.level = FeatureLevel.REDUCED
        self.bucket = SimulatedBucket(self.loop, random.Random(f"{seed} store"))
        cluster.bucket = self.bucket
        self.objects = RemoteObjects(self.bucket, cluster.guard, self._is_live)
        self.objects.joins = lambda: cluster.level >= FeatureLevel.JOINED
        history.remote = self.objects
        self.faults = self.new_faults(self, random.Random(f"{seed} store faults"), faults)

    def busy(self) -> Sequence[Busy]:
        """Those who write to the store."""
        raise NotImplementedError

    def _is_live(self, queue_id: int, offset: int) -> bool:
        queue = self.cluster.history.queue(queue_id)
        return not queue.deleted and offset >= queue.log_start

    # --- the story ----------------------------------------------------------------------------------------

    def _load(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield from super()._load()
        yield self._delete_records()
        yield self._look_after()
        yield self._raise_level()

    async def _delete_records(self) -> None:
        """Somebody moves log starts, now and then, so that files of the tier die."""
        rng = self._tiering
        while not self.clients.ending:
            await asyncio.sleep(rng.choice([0.2, 0.5, 1.0]))
            await self._delete_some(rng.choice(self._queue_ids), rng.random() < 0.3)

    async def _look_after(self) -> None:
        """Leaders look for what does not count oftener than they do by themselves."""
        while not self.clients.ending:
            await asyncio.sleep(self._tiering.choice([0.2, 0.5]))
            await self.look(self._tiering.randrange(self.cluster.settings.groups))

    async def _raise_level(self) -> None:
        """Some clusters begin before queue segments were one object each: they have both."""
        if self._old_seconds:
            await asyncio.sleep(self._old_seconds)
            self.cluster.level = FeatureLevel.newest()

    async def _delete_some(self, queue_id: int, whole: bool) -> None:
        queue, group = self.cluster.history.queue(queue_id), self.cluster.group_of(queue_id)
        offset = -1 if whole else self._tiering.randint(queue.log_start, (queue.log_start + queue.end) // 2)
        for leader in self.cluster.leaders(group):
            await leader.call(self._truncated(leader.storage, {queue_id: offset}), patience=5)

    async def _truncated(self, storage: Storage, before: dict[int, int]) -> None:
        try:
            await storage.queues.truncate(before)
        except (MainstemError, OSError):
            pass  # it does not lead any more

    # --- the end ------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        await super()._settle()
        await self._end_uploads()
        await self._clean_up()
        for group in range(self.cluster.settings.groups):
            for node in self._holders_of(group):
                self._check_replica(node, group)
        self.objects.check_store()
        await asyncio.gather(*(self._check_extents(node) for node in self.cluster.nodes.values()))
        await asyncio.gather(*map(self._read_all, self.cluster.nodes.values()))

    async def _end_uploads(self) -> None:
        """Return once nothing reaches the store any more that was begun before."""
        for one in self.busy():
            if one.zombies:
                _, pending = await asyncio.wait(one.zombies, timeout=HEALED_SECONDS)
                require(not pending, f"node {one.node.node_id}: an upload does not end", "S")
        await asyncio.sleep(LATE_SECONDS)

    async def _clean_up(self) -> None:
        """Have new leaders look for what earlier ones have left, and again when a day is over."""
        groups = range(self.cluster.settings.groups)
        for group in groups:
            await self._have_another_lead(group)
            await self.look(group)
        self._let_a_day_pass()
        for _ in range(CLEAN_TRIES_MAX):
            for group in groups:
                await self.look(group)
            if not self.objects.unfinished():
                await self._converge()  # meanwhile retention may go on: coordinators move the starts of their logs
                if not self.objects.unfinished():
                    break
            await asyncio.sleep(5.0)
        left = self.objects.unfinished()
        require(not left, f"nobody deletes what is left in the store: {left[:5]}, {len(left)} files", "U")

    async def look(self, group: int) -> None:
        """Have a write group's leader delete what does not count."""
        for leader in self.cluster.leaders(group):
            upkeep = leader.storage.remote_upkeep
            assert upkeep is not None
            await leader.call(self._looked(upkeep, group), patience=60)

    async def _looked(self, upkeep: RemoteUpkeep, group: int) -> None:
        try:
            await upkeep.look(group)
        except (MainstemError, OSError):
            pass  # the store is out, or the leader is another

    def _let_a_day_pass(self) -> None:
        """In steps that the agreed time follows at once."""
        for _ in range(GRACE_MS // CLOCK_STEP_MS):
            for node in self.cluster.nodes.values():
                node.clock.step(CLOCK_STEP_MS)
            for node in self.cluster.nodes.values():
                node.storage.agreed_clock.now()

    async def _have_another_lead(self, group: int) -> None:
        before = await self.cluster.lead(group, HEALED_SECONDS)
        others = [node.node_id for node in self._holders_of(group) if node is not before]
        if not others:
            return
        await self.have_lead(group, others[0])
        after = await self.cluster.lead(group, HEALED_SECONDS)
        require(after is not before, f"write group {group}: node {before.node_id} leads for ever", "S")

    async def have_lead(self, group: int, node_id: int) -> None:
        """Have a node lead a write group, if that can be brought about within seconds."""
        for _ in range(LEAD_TRIES_MAX):
            if self.cluster.nodes[node_id].leads(group):
                return
            for leader in self.cluster.leaders(group):
                await leader.call(self._transferred(leader.storage, group, node_id), patience=1)
            await asyncio.sleep(0.1)

    async def _transferred(self, storage: Storage, group: int, node_id: int) -> None:
        try:
            storage.groups[group].transfer_leadership(node_id, storage.setup.clock.now_ms())
        except (StorageError, RaftError):
            pass  # it does not lead any more, or the other one cannot

    async def _read_all(self, node: SimulatedNode) -> None:
        """Every queue from its start to its end, on this node. A read of the remote tier is looked for again, as a
        consumer does that was told that there is nothing yet, or to come again."""
        applied = {group.group: group.applied_index for group in node.storage.groups}
        for queue_id in self._held_queues(node):
            queue = self.cluster.history.queue(queue_id)
            offset, end = queue.log_start, queue.end_applied(applied)
            tries = 0
            while (offset := max(offset, queue.log_start)) < end:
                read = QueueRead(queue_id, offset, self._rng.choice([500, 5000, 1 << 20]))
                answer = await node.call(node.storage.messages.read([read], 1 << 20), patience=60)
                require(answer is not None, f"node {node.node_id}: a read takes too long")
                assert answer is not None
                (found,) = answer
                if not found.batches:
                    tries += 1
                    there = tries < READ_TRIES_MAX or offset < queue.log_start
                    require(there, f"node {node.node_id}: nothing at {offset} of {end}: {found}", "A")
                    await asyncio.sleep(0.2)
                    continue
                tries = 0
                what = f"node {node.node_id}"
                self.cluster.history.check_read(what, queue_id, offset, found.batches, found.next_offset)
                offset = found.next_offset

    def _check_replica(self, node: SimulatedNode, group: int) -> None:
        entries = [(entry.after, entry.upto, entry.name) for entry in node.storage.remote.manifest.ranges(group)]
        self.objects.check_files(f"node {node.node_id}", group, entries)
