"""An operator of a cluster: has nodes join, drains them, cancels that at times, has replicas spread evenly and nodes
removed, by what any node offers to operators. And the machines of the cluster, one of which dies now and then for
longer than the others wait for it.

While faults go on, the operator begins one thing after the other and does not wait long. In the end everything that was
begun must come to its end (S).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from tests.simulation.elastic.cluster import ElasticCluster, ElasticNode
from tests.simulation.oracle import Violation, require
from tests.simulation.whole.clients import Work

from mainstem.console.views.of_cluster import BalanceView, DrainView
from mainstem.nameserver.errors import NodeWasRemoved
from mainstem.node.views.cluster_views import LocalClusterViews

T = TypeVar("T")

ANSWER_SECONDS = 5.0
"""How long the operator waits for an answer."""

LOOK_SECONDS = 0.25

PATIENCE_SECONDS = 12.0
"""How long something is waited for while faults go on: a replica moves within five when nothing is in the way."""

FINISHING_SECONDS = 90.0
"""…and when there are none any more: a drain moves a handful of replicas, one after the other."""


WRITE_GROUPS_MAX = 8
"""Each costs a run the time of its heartbeats."""


class _Answer(NamedTuple):
    """Stands apart from no answer at all."""

    said: object


class Operator:
    """`run` until the work ends; `did` counts what came about, by kind."""

    def __init__(
        self,
        cluster: ElasticCluster,
        work: Work,
        rng: random.Random,
        bring_up: Callable[[ElasticNode], Awaitable[None]],
        joined: Callable[[ElasticNode], None],
    ) -> None:
        """`bring_up` starts a node that is off; `joined` is told of every node that joins."""
        self._cluster = cluster
        self._work = work
        self._rng = rng
        self._bring_up = bring_up
        self._joined = joined
        self.factors: Sequence[int | None] = (None,)
        """Of the write groups that are added: how many replicas they have; None: as many as the first ones."""
        self.did: dict[str, int] = {}

    async def run(self) -> None:
        rng = self._rng
        if self.factors[-1] is not None:
            await self._until(lambda: self._grow(self.factors[-1]), PATIENCE_SECONDS)
        await self._pause(0.0, 0.5, 2.0)
        await self._join()
        while not self._work.ending:
            await rng.choice(
                [self._drain, self._drain, self._lose, self._lose, self._rebalance, self._join, self._grow_any]
            )()
            await self._pause(0.0, 0.3, 1.5)
        await self._finish()

    # --- one thing after the other ------------------------------------------------------------------------

    async def _join(self) -> None:
        if not self._cluster.spares:
            return
        node = self._cluster.spares.pop(0)
        self._cluster.nodes[node.node_id] = node
        await self._bring_up(node)
        self._did("joined")
        self._joined(node)

    async def _drain(self) -> None:
        """Have a node give away what it holds, and perhaps think better of it."""
        node_id, rng = self._rng.choice(sorted(self._cluster.nodes)), self._rng
        draining = self._draining()
        if node_id in draining or len(self._cluster.nodes) - len(draining) <= self._cluster.settings.copies:
            await self._cancel_any()
            return
        if await self._changed(lambda views: views.drain_node(node_id, cancel=False)):
            self._did("drained")
            if rng.random() < 0.3:
                await self._pause(0.2, 1.5, 4.0)
                await self._cancel(node_id)
            elif await self._until(lambda: self._is_empty(node_id), PATIENCE_SECONDS) and rng.random() < 0.5:
                await self._cancel(node_id)

    async def _cancel_any(self) -> None:
        if draining := self._draining():
            await self._cancel(self._rng.choice(draining))

    async def _cancel(self, node_id: int) -> None:
        if await self._changed(lambda views: views.drain_node(node_id, cancel=True)):
            self._did("cancelled")

    async def _lose(self) -> None:
        """A machine is off until what it held is rebuilt, or only until that has begun, or is about to."""
        node, rng = self._cluster.nodes[self._rng.choice(sorted(self._cluster.nodes))], self._rng
        held = self._held(node.node_id)
        if not node.up or node.serving is None or node.life_stopped or not held:
            return
        node.lose_power()
        self._cluster.history.note("lost", node.node_id)
        kind = rng.choice(["rebuilt", "begun", "begun", "about to begin"])
        if kind == "about to begin":
            await self._pause(float(self._cluster.settings.rebuild_after_seconds), 3.0)
        else:
            enough = 1 if kind == "begun" else len(held)

            async def moved() -> bool:
                return node.up or len(self._held(node.node_id)) <= len(held) - enough

            await self._until(moved, 1.5 * PATIENCE_SECONDS)
            if kind == "begun":
                await self._pause(0.0, 0.3, 1.0, 2.0)
        gone = len(held) - len(self._held(node.node_id))
        if not node.up:
            self._did("lost" if gone == 0 else "rebuilding" if gone < len(held) else "rebuilt")
            await self._bring_up(node)

    async def _grow_any(self) -> None:
        await self._grow(self.factors[0] if len(self.factors) == 1 else self._rng.choice(self.factors))

    async def _grow(self, factor: int | None) -> bool:
        """More write groups with so many replicas, which take over what slots of their class have no queues. Whether a
        node said that it is done."""
        newest = self._cluster.newest_metadata()
        present = newest.lookups.write_groups() if newest is not None else WRITE_GROUPS_MAX
        total = present + self._rng.randint(1, 3)
        if total > WRITE_GROUPS_MAX or not await self._changed(lambda views: views.add_write_groups(total, factor)):
            return False
        self._did("grown" if factor is None else "classed")
        return True

    async def _rebalance(self) -> None:
        await self._until(self._is_balanced, PATIENCE_SECONDS)

    # --- the end ------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """There are no faults any more: everything comes to its end."""
        while self._cluster.spares:
            await self._join()
        drained = self._draining()
        while drained and len(self._cluster.nodes) - len(drained) < self._cluster.settings.copies:
            # A drain that nobody who was up knew of was followed by another: the nodes that are left cannot take both.
            await self._cancel_surely(drained.pop())
        if drained and self._rng.random() < 0.3:
            await self._cancel_surely(drained[0])
            drained = drained[1:]
        for node_id in drained:
            await self._finish_drain(node_id)
        await self._finish_balance()

    async def _finish_balance(self) -> None:
        if not await self._until(self._is_balanced, FINISHING_SECONDS, ending=True):
            raise Violation(f"replicas are not spread evenly: {await self._balance(dry_run=True)}", "S")
        self._did("balanced")

    async def _finish_drain(self, node_id: int) -> None:
        """A node becomes empty; then it goes, or takes something again."""

        async def over() -> bool:
            return node_id not in self._draining() or await self._is_empty(node_id)

        if not await self._until(over, FINISHING_SECONDS, ending=True):
            raise Violation(f"node {node_id} does not become empty: {await self._drain_of(node_id)}", "S")
        if node_id not in self._draining():  # it was cancelled before, and not every node had heard of that
            return
        self._did("emptied")
        if self._rng.random() < 0.5:
            await self._remove(node_id)
        else:
            await self._cancel_surely(node_id)

    async def _cancel_surely(self, node_id: int) -> None:
        await self._insist(lambda views: views.drain_node(node_id, cancel=True), "cancelled")

    async def _remove(self, node_id: int) -> None:
        """Take a node that is empty out of the cluster for good; it does not come back."""
        node = self._cluster.nodes.pop(node_id)
        self._cluster.removed[node_id] = node
        await node.stop()
        await self._insist(lambda views: views.remove_node(node_id), "removed")
        node.may_refuse = True
        if not await node.restart():
            refusal = node.refusal
            require(isinstance(refusal, NodeWasRemoved), f"node {node_id}, which was removed, says {refusal!r}", "P")
            return
        assert node.roles is not None
        ended = node.roles.setup.supervision.ended  # by metadata of its own, which was old, it is of the cluster yet

        async def over() -> bool:
            return ended.done()

        over_soon = await self._until(over, FINISHING_SECONDS, ending=True)
        require(over_soon, f"node {node_id} runs on, which was removed", "P")
        node.lose_power(keep_all=True)

    # --- asking -------------------------------------------------------------------------------------------

    async def _is_balanced(self) -> bool:
        """Have moves begin that may; whether none is left and none is under way."""
        plan = await self._balance(dry_run=False)
        if plan is None:
            return False
        if plan.begun:
            self._did("balancing", plan.begun)
        return not plan.moves and not plan.begun and not plan.under_way

    async def _balance(self, *, dry_run: bool) -> BalanceView | None:
        answer = await self._ask(lambda views: views.rebalance(dry_run=dry_run))
        return answer.said if answer is not None and isinstance(answer.said, BalanceView) else None

    async def _is_empty(self, node_id: int) -> bool:
        drain = await self._drain_of(node_id)
        if drain is None:
            return False
        self._cluster.copies.said_to_hold(node_id, drain.groups_left)
        return drain.empty

    async def _drain_of(self, node_id: int) -> DrainView | None:
        """How far a node's drain is, as some node says; None: no answer, or it knows of no drain."""
        answer = await self._ask(lambda views: views.cluster())
        drains: list[DrainView] = getattr(answer.said, "drains", []) if answer is not None else []
        return next((drain for drain in drains if drain.node == node_id), None)

    async def _insist(self, change: Callable[[LocalClusterViews], Awaitable[str | None]], what: str) -> None:
        if not await self._until(lambda: self._changed(change), FINISHING_SECONDS, ending=True):
            raise Violation(f"the operator's change is refused, or not answered, all the time: {what}", "S")
        self._did(what)

    async def _changed(self, change: Callable[[LocalClusterViews], Awaitable[str | None]]) -> bool:
        """Whether some node said that it is done; else it may be done, or not."""
        answer = await self._ask(change)
        return answer is not None and answer.said is None

    async def _ask(self, question: Callable[[LocalClusterViews], Awaitable[object]]) -> _Answer | None:
        nodes = [node for node in self._cluster.nodes.values() if node.up and node.serving is not None]
        if not nodes:
            return None
        node = self._rng.choice(nodes)

        async def answered() -> _Answer:
            return _Answer(await question(node.views))

        return await node.call(answered(), patience=ANSWER_SECONDS)

    async def _until(self, true: Callable[[], Awaitable[bool]], patience: float, *, ending: bool = False) -> bool:
        """Whether it came to be true within so many seconds, and before the end if this is not that."""
        over = self._cluster.loop.time() + patience
        while self._cluster.loop.time() < over and (ending or not self._work.ending):
            if await true():
                return True
            await asyncio.sleep(LOOK_SECONDS)
        return False

    # --- what an observer knows ---------------------------------------------------------------------------

    def _draining(self) -> list[int]:
        """As far as any node knows."""
        known: set[int] = set()
        for node in self._cluster.nodes.values():
            if node.serving is not None and node.roles is not None:
                known |= node.roles.nameserver.lookups.draining
        return sorted(known & set(self._cluster.nodes))

    def _held(self, node_id: int) -> list[int]:
        """The write groups that placement has on a node, by the newest that any node knows."""
        newest = self._cluster.newest_metadata()
        if newest is None:
            return []
        return [group for group, replicas in newest.lookups.placements().items() if node_id in replicas]

    async def _pause(self, *seconds: float) -> None:
        """One of these, less if the end comes."""
        over = self._cluster.loop.time() + self._rng.choice(seconds)
        while self._cluster.loop.time() < over and not self._work.ending:  # noqa: ASYNC110 - simulated time
            await asyncio.sleep(LOOK_SECONDS)

    def _did(self, what: str, count: int = 1) -> None:
        self.did[what] = self.did.get(what, 0) + count
        self._cluster.history.note("operator", what)
