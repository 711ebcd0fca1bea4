"""A replica is moved off a node that lives: what the node has of it goes, and nothing else; it may come back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from tests.simulation.cluster.clients import Producer
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.planted import BREAKS, RETURN_PLANTS, planted
from tests.simulation.cluster.run import HEALED_SECONDS, LEFT_BEHIND, NodeSplitters, Run
from tests.simulation.find import at_length, more_at_length
from tests.simulation.merger import Mergers
from tests.simulation.oracle import Violation, require

from mainstem.kernel import COMMITTED_END, LOG_START
from mainstem.raft import RaftError
from mainstem.storage.errors import StorageError
from mainstem.storage.split.split_lease import LEASE_SECONDS
from mainstem.storage.store_files.store_file import PACKED_DIRECTORY, QUEUES_DIRECTORY, RUNS_DIRECTORY

STORE_DIRECTORIES = (RUNS_DIRECTORY, PACKED_DIRECTORY, QUEUES_DIRECTORY)

GRACE_SECONDS = 1.0
"""For files that no manifest names: here only the test has them looked for."""

MOVED_SECONDS = 5 * HEALED_SECONDS
"""Simulated. A replica of a hundred small runs is copied at a slow disk's pace, one run after the other."""


class ThereAndBack(Run):
    """A node's replicas move to another one and, when all of them are gone from it, back."""

    directory: Path
    crashes = False
    """The power goes while they are removed, a little later each time."""

    async def _story(self) -> None:
        cluster, rng = self.cluster, self._rng
        cluster.settings.store = msgspec.structs.replace(cluster.settings.store, orphan_grace_seconds=GRACE_SECONDS)
        new, working = await self._begin()
        splitting = {node_id: self._splitting(node) for node_id, node in cluster.nodes.items()}
        await asyncio.sleep(3.0)
        old = cluster.nodes[rng.choice(list(cluster.placements[0]))]
        await self._until(lambda: bool(self._files(old)))  # something is split before the move
        self._move(old, new)
        if self.crashes:
            await self._crash_on_the_way(old)
        await self._until(lambda: self._is_empty(old))
        self._check_that_nothing_is_left(old)
        splitting.pop(old.node_id).cancel()  # a zombie that comes back to old slices has their files spared each time
        await self._until_removed(old)
        splitting[old.node_id] = self._splitting(old)
        if rng.random() < 0.5:
            old.lose_power()
            require(await old.restart(), f"node {old.node_id} does not start without what it left")
            self._check_that_nothing_is_left(old)
        await self._end_load(working)  # who takes a snapshot has nothing to show readers until it leads
        self.clients.ending = False
        producers = [Producer(self.clients, list(self._queue_ids), -1, -1) for _ in range(2)]
        working = [self.loop.create_task(self._looked_after(producer.run())) for producer in producers]
        self._move(new, old)
        await asyncio.sleep(3.0)
        await self._end_load(working)  # small runs are made faster than they are copied
        await self._until(lambda: self._voters() == {*cluster.nodes} - {new.node_id})
        await self._until(lambda: self._is_empty(new))
        new.lose_power()
        for task in splitting.values():
            task.cancel()
        del cluster.nodes[new.node_id]
        try:
            await self._settle()
        finally:
            cluster.nodes[new.node_id] = new

    async def _begin(self) -> tuple[SimulatedNode, list[asyncio.Task[None]]]:
        """Have everybody run, with a node more than there are replicas, under load: that node, and the load."""
        cluster, rng = self.cluster, self._rng
        cluster.moves = True
        new = SimulatedNode(cluster, len(cluster.nodes) + 1, self.directory, rng.randrange(1 << 30))
        cluster.nodes[new.node_id] = new
        self.splitters[new.node_id] = NodeSplitters(new, random.Random(rng.random()))
        self.mergers[new.node_id] = Mergers(new, random.Random(new.node_id))
        for node in cluster.nodes.values():
            await node.start()
        await cluster.create_topic(3, patience=30)
        return new, [self.loop.create_task(self._looked_after(task)) for task in self._load()]

    async def _end_load(self, working: Sequence[asyncio.Task[None]]) -> None:
        self.clients.ending = True
        async with asyncio.timeout(HEALED_SECONDS):
            await asyncio.gather(*working)

    def _splitting(self, node: SimulatedNode) -> asyncio.Task[None]:
        return self.loop.create_task(self._looked_after(self._split_and_merge(node)))

    def _move(self, old: SimulatedNode, new: SimulatedNode) -> None:
        for group, replicas in self.cluster.placements.items():
            self.cluster.placements[group] = [new.node_id if one == old.node_id else one for one in replicas]

    async def _crash_on_the_way(self, node: SimulatedNode) -> None:
        await self._until(lambda: any(node.storage.hard_states.left(group) for group in self.cluster.placements))
        for change in range(1, 40):
            if self._is_empty(node):
                return
            disk = node.disk2 if change % 3 == 0 else node.disk1
            disk.cut_power(after=change)
            if node.up:
                life = node.life
                for _ in range(30):
                    await asyncio.sleep(0.1)
                    if node.life is not life or not node.up:
                        break
            if not node.up:
                await node.restart()

    async def _until(self, true: Callable[[], bool], *, but: SimulatedNode | None = None) -> None:
        """`but` is left alone when it is down."""
        async with asyncio.timeout(MOVED_SECONDS):
            while not true():
                await asyncio.sleep(0.1)
                for node in self.cluster.nodes.values():
                    if not node.up and node is not but:  # a power cut that was to come earlier
                        await node.restart()

    def _voters(self) -> set[int]:
        """The nodes that have a say in all groups, as their leaders know; none while one has other voters."""
        voters = {
            frozenset(node.storage.groups[group].consensus.voters)
            for group in self.cluster.placements for node in self.cluster.leaders(group)
        }  # fmt: skip
        return set(voters.pop()) if len(voters) == 1 else set()

    def _is_empty(self, node: SimulatedNode) -> bool:
        if node.serving is None:
            return False
        storage, groups = node.serving, self.cluster.placements
        return all(
            storage.hard_states.left(group) and not storage.groups[group].last_index
            and not storage.stored.manifest.position(group).position for group in groups
        )  # fmt: skip

    def _check_that_nothing_is_left(self, node: SimulatedNode) -> None:
        for group in node.storage.groups:
            place = f"node {node.node_id}: write group {group.group}"
            require(group.consensus.core is None, f"{place} takes part")
            require(not node.storage.stored.manifest.spans(group.group), f"{place} has runs")
            require(not group.applied_index and not len(group.producers), f"{place} has a state")

    async def _until_removed(self, node: SimulatedNode) -> None:
        """Retention takes the files, once it has seen them for as long as it leaves any file alone."""
        await asyncio.sleep(LEASE_SECONDS)  # of a merge that nobody finishes
        for _ in range(3):
            await node.call(node.storage.maintenance.retain(), patience=60)
            await asyncio.sleep(GRACE_SECONDS + 0.1)
        files = self._files(node)
        require(not files, f"node {node.node_id} has runs of nobody: {files}")

    def _files(self, node: SimulatedNode) -> list[str]:
        return [path for path in node.disk2.paths() if path.partition("/")[0] in STORE_DIRECTORIES]


class CrashingOnTheWay(ThereAndBack):
    crashes = True


class MovedWhileAway(ThereAndBack):
    """A founder loses power before it has made a checkpoint, and its replicas move to another node before it is
    back. Its log tells nothing of the members, neither of the first ones nor of those that came."""

    async def _story(self) -> None:
        cluster, rng = self.cluster, self._rng
        cluster.settings.storage = msgspec.structs.replace(
            cluster.settings.storage, checkpoint_seconds=3600.0, checkpoint_bytes=1 << 30
        )
        founders = frozenset(cluster.placements[0])
        new, working = await self._begin()
        await asyncio.sleep(1.0)
        old = cluster.nodes[rng.choice(sorted(founders))]
        old.lose_power()
        self._move(old, new)
        await self._until(lambda: self._voters() == {*cluster.nodes} - {old.node_id}, but=old)
        require(await old.restart(), f"node {old.node_id} does not start after others took its place")
        for group in old.storage.groups:
            voters = group.consensus.voters
            require(voters in (founders, frozenset()), f"node {old.node_id} takes {sorted(voters)} for the voters")
        await self._until(lambda: self._is_empty(old))
        self._check_that_nothing_is_left(old)
        await self._end_load(working)
        del cluster.nodes[old.node_id]
        try:
            await self._settle()
        finally:
            cluster.nodes[old.node_id] = old


class RetentionWhileAway(ThereAndBack):
    """One write group leaves a node, and the others' records are deleted: runs that hold both go. Then the group comes
    back with a snapshot of the node that took its place, and which has the very same runs: all nodes give files as a
    whole."""

    came_back = False
    """Whether the snapshot brought a run that retention had dropped."""

    async def _story(self) -> None:
        cluster = self.cluster
        require(cluster.settings.groups > 1, "a seed with one write group")
        cluster.settings.forget_soon()
        cluster.settings.whole_files_upto = len(cluster.nodes) + 1
        new, working = await self._begin()
        splitting = [self.loop.create_task(self._looked_after(self._split(node))) for node in cluster.nodes.values()]
        await asyncio.sleep(4.0)
        away = cluster.group_of(self._queue_ids[0])
        members = [cluster.nodes[node_id] for node_id in cluster.placements[away]]
        await self._until(lambda: all(one.storage.groups[away].blocks.first_index() > 1 for one in members))
        old = await cluster.lead(away, HEALED_SECONDS)
        shared = [
            name
            for name in old.storage.queue_store.manifest.files
            if len(old.storage.queue_store.manifest.counts_for(name)) > 1
        ]
        self._move_group(away, old, new)
        await self._until(lambda: self._has_left(old, away))
        await self._end_load(working)
        for task in splitting:
            task.cancel()
        for group in cluster.placements:
            if group != away:
                await self._delete_records(group)
        await self._until(lambda: self._log_starts_moved(old, away))
        await old.call(old.storage.maintenance.retain(), patience=60)
        dropped = set(old.storage.queue_store.manifest.dropped)
        require(bool(dropped & set(shared)), "retention drops no run that holds the group that left")
        await self._have_lead(away, new)
        copied = {file.name for _after, _upto, file in new.storage.queue_store.manifest.spans(away).described()}
        self.came_back = bool(dropped & copied)
        self._move_group(away, new, old)
        await self._until(lambda: self._has_left(new, away))
        await self._until(lambda: old.storage.queue_store.splits.split_position(away) > 0)
        new.lose_power()
        del cluster.nodes[new.node_id]
        try:
            await self._settle()
        finally:
            cluster.nodes[new.node_id] = new

    def _move_group(self, group: int, old: SimulatedNode, new: SimulatedNode) -> None:
        placements = self.cluster.placements
        placements[group] = [new.node_id if one == old.node_id else one for one in placements[group]]

    def _has_left(self, node: SimulatedNode, group: int) -> bool:
        storage = node.serving
        return (
            storage is not None and storage.hard_states.left(group) and not storage.groups[group].last_index
            and not storage.queue_store.splits.split_position(group)
        )  # fmt: skip

    async def _delete_records(self, group: int) -> None:
        """All that is committed in it now."""
        leader = await self.cluster.lead(group, HEALED_SECONDS)
        ends = {queue_id: -1 for queue_id in self._queue_ids if self.cluster.group_of(queue_id) == group}
        require(await leader.call(leader.storage.queues.truncate(ends), patience=60) is not None, "no answer")

    def _log_starts_moved(self, node: SimulatedNode, away: int) -> bool:
        table = node.storage.table
        slots = [table.find(queue_id) for queue_id in self._queue_ids if self.cluster.group_of(queue_id) != away]
        return all(table.get(slot, LOG_START) == table.get(slot, COMMITTED_END) for slot in slots)

    async def _have_lead(self, group: int, node: SimulatedNode) -> None:
        async with asyncio.timeout(MOVED_SECONDS):
            while not node.leads(group):
                for leader in self.cluster.leaders(group):
                    try:
                        leader.storage.groups[group].consensus.transfer_leadership(node.node_id)
                    except (StorageError, RaftError):
                        pass
                await asyncio.sleep(0.5)


class BackToItsJournal(RetentionWhileAway):
    """One write group leaves a node that had split its beginning, and comes back with its whole log: no other node
    splits. Its blocks of before begin in the middle in the journal, and stay for the sake of the other write groups."""

    async def _story(self) -> None:
        cluster = self.cluster
        require(cluster.settings.groups > 1, "a seed with one write group")
        cluster.settings.forget_soon()
        new, working = await self._begin()
        old = cluster.nodes[self._rng.choice(list(cluster.placements[0]))]
        splitting = self.loop.create_task(self._looked_after(self._split(old)))
        away = cluster.group_of(self._queue_ids[0])
        await self._until(lambda: old.storage.groups[away].blocks.first_index() > 1)
        splitting.cancel()
        await asyncio.sleep(3.0)
        self._move_group(away, old, new)
        await self._until(lambda: self._has_left(old, away))
        self._move_group(away, new, old)
        await self._until(lambda: self._has_left(new, away))
        await self._end_load(working)
        new.lose_power()
        del cluster.nodes[new.node_id]
        try:
            await self._settle()
        finally:
            cluster.nodes[new.node_id] = new


Returning = TypeVar("Returning", bound=RetentionWhileAway)


def returning(directory: Path, number: int, story: type[Returning]) -> Returning:
    """The run of the so many-th seed that has more than one write group."""
    directory.mkdir()
    for seed in range(1, 100):
        run = story(seed, directory, seconds=1.0, faults=[LEFT_BEHIND])
        if run.cluster.settings.groups > 1:
            number -= 1
            if not number:
                run.directory = directory
                return run
        run.loop.close()
    raise AssertionError("hardly any seed has more than one write group")


RETURNS = 6
"""Runs in which the leader that is to give the snapshot may be another one; in most it is not."""


def test_a_group_that_comes_back_has_its_history_whatever_retention_dropped(tmp_path: Path) -> None:
    came_back = 0
    for number in range(1, 1 + RETURNS):
        run = returning(tmp_path / str(number), number, RetentionWhileAway)
        run.play()
        came_back += run.came_back
        if came_back == 2:
            return
    raise AssertionError(f"in {came_back} of {RETURNS} runs a snapshot named what retention had dropped")


@pytest.mark.parametrize("number", more_at_length([1, 2, 3, 4]))
def test_a_group_that_comes_back_is_not_read_from_what_the_journal_has_of_before(number: int, tmp_path: Path) -> None:
    returning(tmp_path / str(number), number, BackToItsJournal).play()


@pytest.mark.long  # finds a planted bug
def test_runs_that_stay_dropped_are_found_as_a_hole(tmp_path: Path) -> None:
    name = "dropped-outlives-a-snapshot"

    def play_all() -> None:
        for number in range(1, 1 + RETURNS):
            returning(tmp_path / str(number), number, RetentionWhileAway).play()

    with planted(name, RETURN_PLANTS), pytest.raises(Violation, match="a hole in the split history") as found:
        play_all()
    assert found.value.breaks == BREAKS[name]


@pytest.mark.parametrize(
    ("seed", "story"),
    [
        at_length(1, ThereAndBack),  # at each change it crashes on the way
        (1, CrashingOnTheWay),
        *[(seed, MovedWhileAway) for seed in (3, 4)],
        *[at_length(seed, MovedWhileAway) for seed in (1, 2)],  # half a minute each
    ],
)
def test_a_replica_leaves_nothing_behind_and_may_come_back(
    tmp_path: Path, seed: int, story: type[ThereAndBack]
) -> None:
    run = story(seed, tmp_path, seconds=1.0, faults=[LEFT_BEHIND])
    run.directory = tmp_path
    run.play()
