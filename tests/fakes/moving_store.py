"""The storage of several nodes whose write groups change leaders: one truth, and each node's view of it.

Queues belong to `groups` write groups, by partition, until they are moved to another one. A node appends to the
groups it leads; what it appends is committed after `commit_seconds()`, in order. `move` ends a leadership: what is not
committed is kept from the first on, or lost, as the caller says, and its futures are answered with NOT_LEADER either
way, after the node was told. A node may be told late: then its appends hang until it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy
import numpy.typing
from tests.fakes.memory_store import MemoryStore

from mainstem.errors import LeaderMissing, MainstemError
from mainstem.model import (
    AppendResult,
    AppendTransaction,
    BatchAppend,
    Outcome,
    WriteGroupNodes,
    partition_of,
)
from mainstem.ports import Clock
from mainstem.prompt_future import PromptFuture

Told = Callable[[int, bool], None]


@dataclass
class Pending:
    future: PromptFuture[list[AppendResult]]
    results: list[AppendResult]
    ends: dict[int, int]
    """By queue: where it ends with this append."""


class MovingStore(MemoryStore):
    """The committed commands, and those that the leaders have appended behind them."""

    def __init__(self, clock: Clock, groups: int, nodes: Sequence[int], commit_seconds: Callable[[], float]) -> None:
        super().__init__(clock, leader_epoch=1)
        self.groups = groups
        self.nodes = tuple(nodes)
        self.placed: dict[int, tuple[int, ...]] = {}
        """The nodes that are said to have replicas of a write group, where it is not all."""
        self.moved: dict[int, int] = {}
        """The write groups of queues that have moved."""
        self.commit_seconds = commit_seconds
        self.leaders = dict.fromkeys(range(groups), nodes[0])
        self.terms = dict.fromkeys(range(groups), 1)
        self.told: dict[int, Told] = {}
        """By node: who hears that the node serves a group, or ceases to."""
        self.serving = {node_id: set[int]() for node_id in nodes}
        """The write groups that each node believes to serve."""
        self.serving[nodes[0]].update(range(groups))
        self._open: dict[int, list[Pending]] = {group: [] for group in range(groups)}
        self._hanging: dict[tuple[int, int], list[Pending]] = {}
        """By node and group: appended by who does not lead any more and does not know it yet."""
        self._finding_out: dict[tuple[int, int], list[asyncio.Future[None]]] = {}
        """By node and group: who waits to hear that the node does not serve it."""

    def group_of(self, queue_id: int) -> int:
        return self.moved.get(queue_id, partition_of(queue_id) % self.groups)

    def move_queue(self, queue_id: int, group: int) -> None:
        """A queue without appends under way goes on in another write group. Nobody is told."""
        self.moved[queue_id] = group
        self._owners.pop(queue_id, None)

    def append_on(
        self, node_id: int, batches: Sequence[BatchAppend], acks: int, owner_epoch: int | None
    ) -> PromptFuture[list[AppendResult]]:
        """To queues of one write group."""
        future: PromptFuture[list[AppendResult]] = PromptFuture()
        (group,) = {self.group_of(batch.queue_id) for batch in batches}
        if group not in self.serving[node_id]:
            future.set_result([AppendResult(Outcome.NOT_LEADER) for _ in batches])
        elif self.leaders[group] != node_id:
            hanging = Pending(future, [AppendResult(Outcome.NOT_LEADER) for _ in batches], {})
            self._hanging.setdefault((node_id, group), []).append(hanging)
        elif not self._admits(batches, owner_epoch):
            future.set_result([AppendResult(Outcome.FENCED) for _ in batches])
        else:
            results = [self._append(batch) for batch in batches]
            known = {batch.queue_id for batch in batches} & self.queues.keys()
            pending = Pending(future, results, {queue_id: self.queues[queue_id].end for queue_id in known})
            self._open[group].append(pending)
            if acks == 0:
                future.set_result(results)
            if not self._held:
                asyncio.get_running_loop().call_later(self.commit_seconds(), self._commit_until, group, pending)
        return future

    def release(self) -> None:
        self._held = False
        for group, uncommitted in self._open.items():
            if uncommitted:
                self._commit_until(group, uncommitted[-1])

    def move(self, group: int, to: int, *, kept: int = 0, told_after_seconds: float = 0.0) -> None:
        """Have node `to` (-1: nobody) lead a group. Of what is not committed the first `kept` appends are."""
        old, uncommitted = self.leaders[group], self._open[group]
        for pending in uncommitted[:kept]:
            self._commit_queues(pending.ends)
        for queue_id in {queue_id for pending in uncommitted[kept:] for queue_id in pending.ends}:
            self._truncate(queue_id)
        self._open[group] = []
        self.leaders[group] = to
        self.terms[group] += 1
        self.leader_epoch = max(self.terms.values())
        for queue_id in [queue_id for queue_id in self._owners if self.group_of(queue_id) == group]:
            del self._owners[queue_id]
        if old >= 0:
            self._hanging.setdefault((old, group), []).extend(uncommitted)
            if told_after_seconds and old != to:
                asyncio.get_running_loop().call_later(told_after_seconds, self._tell_lost, old, group)
            else:
                self._tell_lost(old, group)
        if to >= 0:
            self.serving[to].add(group)
            self._find_out(to, group)
            self.told.get(to, _nobody)(group, True)

    async def not_serving(self, node_id: int, group: int) -> None:
        """Until a node knows that it does not serve a group, or leads it again."""
        knows = asyncio.get_running_loop().create_future()
        self._finding_out.setdefault((node_id, group), []).append(knows)
        await knows

    def _tell_lost(self, node_id: int, group: int) -> None:
        if self.leaders[group] == node_id and group in self.serving[node_id]:
            return  # it leads again
        self.serving[node_id].discard(group)
        self._find_out(node_id, group)
        self.told.get(node_id, _nobody)(group, False)
        for pending in self._hanging.pop((node_id, group), []):
            if not pending.future.done():
                pending.future.set_result([AppendResult(Outcome.NOT_LEADER) for _ in pending.results])

    def _find_out(self, node_id: int, group: int) -> None:
        for knows in self._finding_out.pop((node_id, group), []):
            if not knows.done():
                knows.set_result(None)

    def _commit_until(self, group: int, last: Pending) -> None:
        uncommitted = self._open[group]
        if last not in uncommitted:
            return
        count = uncommitted.index(last) + 1
        self._open[group] = uncommitted[count:]
        for pending in uncommitted[:count]:
            self._commit_queues(pending.ends)
        for pending in uncommitted[:count]:
            if not pending.future.done():
                pending.future.set_result(pending.results)

    def _commit_queues(self, ends: Mapping[int, int]) -> None:
        for queue_id, end in ends.items():
            if queue_id not in self.queues:
                continue  # it is deleted meanwhile
            queue = self.queues[queue_id]
            size = sum(len(it.data) for it in queue.batches if queue.high_watermark <= it.base_offset < end)
            queue.high_watermark = end
            for waiter in self._waiters:
                waiter.committed(queue_id, end, size)

    def _truncate(self, queue_id: int) -> None:
        queue = self.queues[queue_id]
        queue.batches = [batch for batch in queue.batches if batch.next_offset <= queue.high_watermark]
        queue.end = queue.high_watermark


def _nobody(group: int, serving: bool) -> None:
    pass


class NodeStore:
    """One node's `ports.MessageStore`, `ports.QueueAdmin` and `ports.Leadership`."""

    def __init__(self, shared: MovingStore, node_id: int) -> None:
        self._shared = shared
        self._node_id = node_id
        self.read = shared.read
        self.read_at_once = shared.read_at_once
        self.offsets = shared.offsets
        self.offset_for_timestamp = shared.offset_for_timestamp
        self.wait = shared.wait
        self.create = shared.create
        self.delete = shared.delete
        self.epoch_end = shared.epoch_end
        self.usage = shared.usage

    def append(
        self,
        batches: Sequence[BatchAppend],
        acks: int,
        *,
        copies_min: int | Mapping[int, int] = 0,
        owner_epoch: int | None = None,
        transaction: AppendTransaction | None = None,
    ) -> PromptFuture[list[AppendResult]]:
        return self._shared.append_on(self._node_id, batches, acks, owner_epoch)

    async def own(self, queue_id: int, *, held: int | None = None) -> int:
        group = self.group_of(queue_id)
        if group not in self._shared.serving[self._node_id]:
            raise LeaderMissing(f"queue {queue_id:#x} is led elsewhere")
        if self._shared.leaders[group] != self._node_id:
            return held or 0  # it does not know yet that it does not lead: whatever it appends is in no log
        return await self._shared.own(queue_id, held=held)

    async def truncate(self, before: Mapping[int, int]) -> dict[int, int | MainstemError | None]:
        for queue_id in before:
            if self._shared.leaders[self.group_of(queue_id)] != self._node_id:
                raise LeaderMissing(f"queue {queue_id:#x} is led elsewhere")
        return await self._shared.truncate(before)

    def group_of(self, queue_id: int) -> int:
        return self._shared.group_of(queue_id)

    def has_moved(self, queue_id: int) -> bool:
        return False

    def groups_of(self, queue_ids: numpy.typing.NDArray[numpy.uint64]) -> numpy.typing.NDArray[numpy.int64]:
        return numpy.array([self.group_of(queue_id) for queue_id in queue_ids.tolist()], numpy.int64)

    def replicas(self, group: int) -> WriteGroupNodes:
        shared = self._shared
        placed = shared.placed.get(group, shared.nodes)
        return WriteGroupNodes(shared.leaders[group], shared.terms[group], placed, placed)

    def leads(self, group: int) -> bool:
        return group in self._shared.serving[self._node_id]

    def serves_here(self, queue_id: int) -> bool:
        return self.leads(self.group_of(queue_id))

    @property
    def leaderless(self) -> bool:
        return all(leader < 0 for leader in self._shared.leaders.values())

    async def confirm(self, group: int) -> None:
        """A node that does not lead any more finds no majority, and waits until it is told."""
        if self.leads(group) and self._shared.leaders[group] != self._node_id:
            await self._shared.not_serving(self._node_id, group)
        if not self.leads(group):
            raise LeaderMissing(f"write group {group} is led elsewhere")

    def abreast(self) -> dict[int, list[int]]:
        others = [node_id for node_id in self._shared.nodes if node_id != self._node_id]
        return dict.fromkeys(self._shared.serving[self._node_id], others)

    def in_sync_fewest(self, classes: Collection[int]) -> int:
        return len(self._shared.nodes) if self._shared.serving[self._node_id] else 0
