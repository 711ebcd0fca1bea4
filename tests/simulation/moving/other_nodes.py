"""One simulated run of a cluster of whole nodes in which queues move between write groups whose replicas are on other
nodes, from one seed: each write group has fewer replicas than there are nodes.

In the end each node of a write group reads all that its queues have, whichever write groups they came through. With
`FEWER` some write groups have one replica, and queues move to these and back: none has fewer copies than its topic
asked for, unless somebody asked for that (P).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.simulation.cluster.lives import Life
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.run import HEALED_SECONDS, Outcomes
from tests.simulation.elastic.run import HARM_TO_DISKS
from tests.simulation.moving.clusters import (
    ANSWER_SECONDS,
    Mover,
    MovingCluster,
    MovingClusterRun,
    MovingNode,
    MovingSettings,
)
from tests.simulation.oracle import require, seed_failed
from tests.simulation.whole.cluster import WholeSettings
from tests.simulation.whole.growing import GrowingNode

from mainstem.errors import MainstemError
from mainstem.model import FACTOR_OF_CLUSTER, QueueRead, Topic, slot_of
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.commands import Event, PartitionsAdded, TopicCreated, WriteGroupsAdded

COPIES = 3

FEWER = "fewer copies"
"""Stands for write groups with one replica, as transactions do among the faults."""

REPLACED = "replaced replicas"
"""Stands for replicas that move from node to node meanwhile."""

SINGLE_MAX = 3
"""Write groups with one replica: each costs a run the time of its heartbeats."""


class ApartSettings(MovingSettings):
    """Four nodes, or five, with three copies of everything: no topic asks for more of them."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.nodes = rng.choice([4, 4, 5])
        self.groups = rng.choice([3, 4])
        self.forget_soon()  # guests come once logs begin behind what these have of later stays

    @property
    def copies(self) -> int:
        return COPIES


class ApartNode(MovingNode, GrowingNode):
    cluster: ApartCluster

    def watch_metadata(self, nameserver: Nameserver, life: Life) -> None:
        super().watch_metadata(nameserver, life)

        def heard(event: Event) -> None:
            if life.alive and isinstance(event, TopicCreated | PartitionsAdded | WriteGroupsAdded):
                self.cluster.guard(lambda: self.cluster.placed(nameserver))

        nameserver.subscribe(heard)


class ApartCluster(MovingCluster):
    node_kind = ApartNode

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked_for: dict[tuple[UUID, int], int] = {}
        """By partition, the fewest copies that somebody asked for."""
        self._copies: dict[int, int] = {}
        """Of each write group that some node knew of."""

    def copies_of(self, topic: Topic, group: int) -> int:
        return self._copies.get(group, COPIES)

    def placed(self, nameserver: Nameserver) -> None:
        """A node knows where these queues are: each has the copies that its topic asked for, or somebody since (P)."""
        placements = nameserver.lookups.placements()
        self._copies.update((group, len(replicas)) for group, replicas in placements.items())
        for topic in nameserver.lookups.topics():
            for partition in range(topic.partitions) if placements else ():
                promised = min(topic.replication_factor, self.asked_for.get((topic.topic_id, partition), COPIES))
                copies = len(placements[nameserver.lookups.write_group(topic.queue_id(partition))])
                require(copies >= promised, f"{topic.name}-{partition} is kept {copies} times, not {promised}", "P")


class ApartMover(Mover):
    _cluster: ApartCluster
    adds_single = False
    """Whether write groups with one replica are added first."""
    replaces: random.Random | None = None
    """Draws which replicas move from node to node; None: they stay."""
    replaced = 0
    """How often some node said that one is to move."""

    async def run(self) -> None:
        while self.adds_single and not self._work.ending:
            await self._add_single()
            await asyncio.sleep(0.1)
        await super().run()

    async def _ask(self) -> None:
        await super()._ask()
        if self.replaces is not None and self.replaces.random() < 0.4:
            await self._replace(self.replaces)

    async def _replace(self, rng: random.Random) -> None:
        """Have a replica of some write group move to a node that has none."""
        nodes = [node for node in self._cluster.nodes.values() if node.serving is not None and node.roles is not None]
        if not nodes:
            return
        node = rng.choice(nodes)
        assert node.roles is not None
        nameserver = node.roles.nameserver
        group, replicas = rng.choice(sorted(nameserver.lookups.placements().items()) or [(0, ())])
        others = sorted(set(self._cluster.nodes) - set(replicas))
        if not replicas or not others:
            return
        old, new = rng.choice(replicas), rng.choice(others)

        async def move() -> bool:
            try:
                await nameserver.operations.move_replica(group, old, new)
            except MainstemError:
                return False
            return True

        if await node.call(move(), patience=ANSWER_SECONDS):
            self.replaced += 1
            self._cluster.history.note("asked to replace", group, old, new)

    def wished(self) -> list[int]:
        """The slots on their way, and -1 - n for each write group n whose replicas are."""
        return [*super().wished(), *(-1 - group for group in self._on_their_way())]

    def _on_their_way(self) -> list[int]:
        newest = self._cluster.newest_metadata()
        if newest is None or self.replaces is None:
            return []
        found = []
        for group, replicas in newest.lookups.placements().items():
            leaders = self._cluster.leaders(group)
            membership = leaders[0].storage.groups[group].consensus.committed_membership if leaders else None
            if membership is None or membership.voters != set(replicas):
                found.append(group)
        return found

    async def _add_single(self) -> None:
        nodes = [node for node in self._cluster.nodes.values() if node.serving is not None and node.roles is not None]
        if not nodes:
            return
        node = self._rng.choice(nodes)
        assert node.roles is not None
        nameserver, first = node.roles.nameserver, self._cluster.settings.groups
        total = first + self._rng.randint(1, SINGLE_MAX)

        async def add() -> bool:
            with suppress(MainstemError):
                await nameserver.operations.add_write_groups(total, 1)
            return nameserver.lookups.write_groups() > first

        self.adds_single = not await node.call(add(), patience=ANSWER_SECONDS)

    def _asks(self, topic: Topic, partition: int, nameserver: Nameserver, group: int) -> None:
        copies = len(nameserver.lookups.placements().get(group, range(COPIES)))
        place = topic.topic_id, partition
        self._cluster.asked_for[place] = min(copies, self._cluster.asked_for.get(place, COPIES))

    async def take_back_what_may_wait(self) -> None:
        """Guests come once a log begins behind some fence, which may be its last block until somebody writes again."""
        nodes = [node for node in self._cluster.nodes.values() if node.serving is not None and node.roles is not None]
        for node in nodes[:1]:
            assert node.roles is not None
            nameserver = node.roles.nameserver
            for slot, wish in list(nameserver.lookups.moving_slots.wishes.items()):
                if not wish.begun:
                    await node.call(self._kept(nameserver, slot), patience=ANSWER_SECONDS)

            for group in self._on_their_way():
                await self._turn_back(node, nameserver, group)

    async def _turn_back(self, node: SimulatedNode, nameserver: Nameserver, group: int) -> None:
        """A replica waits until a log begins behind what its node has of later stays, as a guest does."""
        replicas = set(nameserver.lookups.placements()[group])
        for leader in self._cluster.leaders(group)[:1]:
            voters = leader.storage.groups[group].consensus.committed_membership.voters
            waiting = {it for it in replicas - voters if leader.storage.mover.has_later(group, it)}
            for new, old in zip(sorted(waiting), sorted(voters - replicas), strict=False):
                await node.call(self._moved_back(nameserver, group, new, old), patience=ANSWER_SECONDS)

    async def _moved_back(self, nameserver: Nameserver, group: int, new: int, old: int) -> None:
        with suppress(MainstemError):  # it has come meanwhile
            await nameserver.operations.move_replica(group, new, old)

    async def _kept(self, nameserver: Nameserver, slot: int) -> None:
        with suppress(MainstemError):  # it has begun meanwhile
            await nameserver.operations.keep_slot(slot)


class ApartRun(MovingClusterRun):
    """`ApartRun(seed, directory).play()` raises `Violation` when an invariant does not hold."""

    cluster: ApartCluster
    mover: ApartMover

    def __init__(self, seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> None:
        names = [name for name in faults if name not in (FEWER, REPLACED)]
        super().__init__(seed, directory, seconds=seconds, faults=names)
        self._have(seed, faults)

    def _have(self, seed: int, faults: Sequence[str]) -> None:
        if FEWER in faults:
            self._have_single(random.Random(f"{seed} single"))
        if REPLACED in faults:
            self.mover.replaces = random.Random(f"{seed} replaced")

    def _have_single(self, rng: random.Random) -> None:
        """Write groups with one replica come first, and some of the topics made from then on ask for one copy. One
        replica alone is lost with its disk, so that no disk fails."""
        self.mover.adds_single = True
        self.faults.leave_out(HARM_TO_DISKS)
        self.work.factors = lambda: rng.choice([FACTOR_OF_CLUSTER, FACTOR_OF_CLUSTER, 1])

    def _outcomes(self) -> Outcomes:
        outcomes = super()._outcomes()
        if self.mover.replaces is not None:
            outcomes.moves["replaced"] = self.mover.replaced
        return outcomes

    async def _agree_on_metadata(self) -> None:
        await super()._agree_on_metadata()
        newest = self.cluster.newest_metadata()
        assert newest is not None, "nodes have started"
        self.cluster.settings.groups = newest.lookups.write_groups()

    def _mover(self, rng: random.Random) -> ApartMover:
        return ApartMover(self.cluster, self.work, rng)

    def _settings(self, rng: random.Random) -> WholeSettings:
        return ApartSettings(rng)

    def _new_cluster(self, *arguments: Any) -> ApartCluster:
        return ApartCluster(*arguments)

    def _holders_of(self, group: int) -> Collection[SimulatedNode]:
        newest = self.cluster.newest_metadata()
        assert newest is not None, "nodes have started"
        return [self.cluster.nodes[node_id] for node_id in newest.lookups.placements()[group]]

    async def _read_all(self, node: SimulatedNode) -> None:
        await super()._read_all(node)
        for queue_id in self._queue_ids:
            await self._read_before(node, queue_id)

    async def _read_before(self, node: SimulatedNode, queue_id: int) -> None:
        """A node of a write group that a queue has left reads what that has of it, until the slot is settled: it keeps
        the copies with which it was acknowledged (A)."""
        newest = self.cluster.newest_metadata()
        assert newest is not None, "nodes have started"
        others = newest.lookups.moving_slots.others.get(slot_of(queue_id), ())
        here = {group for group in others if node in self._holders_of(group)}
        queue, home = self.cluster.history.queue(queue_id), self.cluster.group_of(queue_id)
        if node in self._holders_of(home):
            return  # it has read all
        for kept in queue.batches[queue.place(queue.log_start) :]:
            if kept.group not in here or kept.index > node.storage.groups[kept.group].applied_index:
                continue
            offset = max(kept.end - 1, queue.log_start)
            answer = await node.call(
                node.storage.messages.read([QueueRead(queue_id, offset, 500)], 1 << 20), patience=HEALED_SECONDS
            )
            still = newest.lookups.moving_slots.others.get(slot_of(queue_id), ())
            if offset < queue.log_start or kept.group not in still:
                continue  # retention went on meanwhile
            what = f"node {node.node_id}, which has write group {kept.group}: queue {queue_id:#x} at {offset}"
            found = answer is not None and bool(answer[0].batches)
            require(found, f"{what}: a copy from before its move is gone: {answer}", "A")

    def _has_all_of(self, node: SimulatedNode) -> Callable[[int], bool]:
        """A node may keep what a queue had there once, of which it has no earlier part any more."""
        held = {self.cluster.group_of(queue_id) for queue_id in self._queue_ids}
        here = {group for group in held if node in self._holders_of(group)}
        return lambda queue_id: self.cluster.group_of(queue_id) in here


def play(seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> Any:
    """Play one run; a failure names its seed."""
    directory.mkdir(parents=True, exist_ok=True)
    run = ApartRun(seed, directory, seconds=seconds, faults=faults)
    try:
        return run.play()
    except Exception as error:
        raise seed_failed(seed, error) from error
