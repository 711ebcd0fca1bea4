"""The balancer: the metadata leader begins by itself what a rebalance would, slowly, where an operator has switched
that on (`nameserver.balance`).

It plans at each look as the command does, and has `Patience` judge what is due. It begins nothing while the cluster has
other things to do: a node that holds something is drained, or does not live; a disk is full or fails; a replica or a
slot is on its way, whoever began that; or the load of some node is not known. The nodes tell all of that, and what was
moved within the last hour: kept is only at how many looks in a row a node has had too much to do.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from mainstem.model import FeatureLevel, Node, Sample, Topic, partition_of, topic_number_of
from mainstem.nameserver.cluster.balance_planner import BalancePlanner, PlannedBalance
from mainstem.nameserver.cluster.node_liveness import LivenessVerdict, NodeState
from mainstem.nameserver.errors import NameserverError
from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.nameserver.quorum.proposer import NotLeading, Proposer, Unsettled
from mainstem.nameserver.recent_moves import BY_BALANCER, is_by_balancer
from mainstem.nameserver.requests import Requests
from mainstem.nameserver.state.moving_slots import MovingSlots
from mainstem.nameserver.state.plans.balance_patience import HOUR_SECONDS, EarlierMove, EarlierSlotMove, Patience
from mainstem.nameserver.state.plans.balance_plan import BalanceMove
from mainstem.nameserver.state.plans.drain_plan import left_on, moves_under_way
from mainstem.nameserver.state.plans.queue_plan import QueueShift
from mainstem.rpc.messages.loads import ToldBalancer, ToldMove, ToldSlotMove
from mainstem.rpc.messages.metadata import WantMove, WantPreference, WantSlotMove

QUEUES_SETTLED_SECONDS = 120.0
"""Nothing begins for so long after a queue has moved: until then the rates of its write groups, which are smoothed over
half a minute, tell of before to more than a fiftieth."""

COUNTED = re.compile(r"\b\d+(?= (?:of|s|minutes|moves)\b)")
"""The figures of a reason to wait that go up or down from look to look; not those that name nodes and write groups."""

log = logging.getLogger(__name__)


class BalancerSettings(NamedTuple):
    """As `nameserver.config` has them; `mode` is `off`, `leaders`, `replicas` or `queues`."""

    mode: str
    look_seconds: float
    moves_per_hour_max: int
    rest_seconds: float

    @property
    def is_on(self) -> bool:
        return self.mode != "off"


class BalancedLookups(Protocol):
    """As `nameserver.lookups`."""

    @property
    def feature_level(self) -> FeatureLevel: ...

    @property
    def draining(self) -> Collection[int]: ...

    @property
    def moving_slots(self) -> MovingSlots: ...

    def nodes(self) -> Sequence[Node]: ...

    def verdict(self, node_id: int) -> LivenessVerdict: ...

    def topic_by_number(self, number: int) -> Topic | None: ...


class Balancer:
    """`run` is a task on every node where the balancer is on; it has an effect on the one that leads the metadata."""

    def __init__(
        self,
        settings: BalancerSettings,
        planner: BalancePlanner,
        quorum: MetadataQuorum,
        proposer: Proposer,
        requests: Requests,
        lookups: BalancedLookups,
        takers: Callable[[], Collection[int]],
        sleep: Callable[[float], Awaitable[None]],
        monotonic: Callable[[], float],
    ) -> None:
        """`takers`: as `Draining.takers`."""
        self._monotonic = monotonic
        self._slots_moved_at = -math.inf
        """When slots were on their way at a look, the last time."""
        self._settings = settings
        self._planner = planner
        self._quorum = quorum
        self._proposer = proposer
        self._requests = requests
        self._lookups = lookups
        self._takers = takers
        self._sleep = sleep
        self._patience = Patience(settings.moves_per_hour_max, settings.rest_seconds)
        self._looked = False
        self._waits_for = ""
        self._moves_last_hour = 0
        self._begun = {"leader": 0, "queue": 0, "replica": 0}

    @property
    def is_on(self) -> bool:
        return self._settings.is_on

    async def run(self) -> None:
        """Look, and begin what is due, again and again, until cancelled."""
        while True:
            await self._sleep(self._settings.look_seconds)
            if not self._quorum.serves:
                self._forget()
                continue
            try:
                self._wait(await self._look())
            except (NotLeading, Unsettled):
                self._forget()  # another node leads now, and looks for itself
            except NameserverError as error:
                self._wait(str(error))

    def told(self) -> ToldBalancer | None:
        """None: it is off, or this node does not lead the metadata."""
        if not self._settings.is_on or not self._quorum.serves:
            return None
        return ToldBalancer(
            mode=self._settings.mode,
            looked=self._looked,
            waits_for=self._waits_for,
            moves_last_hour=self._moves_last_hour,
            moves_per_hour_max=self._settings.moves_per_hour_max,
        )

    def samples(self) -> Iterable[Sample]:
        for kind, count in sorted(self._begun.items()):
            yield Sample(
                "mainstem_balancer_moves_total", "counter", "Moves that the balancer began here", count,
                (("kind", kind),))  # fmt: skip
        yield Sample(
            "mainstem_balancer_busy_nodes", "gauge", "Nodes that should give something away, by the last look",
            len(self._patience.givers))  # fmt: skip

    def _forget(self) -> None:
        self._patience.forget()
        self._looked, self._waits_for, self._moves_last_hour = False, "", 0

    def _wait(self, why: str) -> None:
        """Why nothing has begun at this look; it is logged where it has not been so at the look before."""
        if why and COUNTED.sub("", why) != COUNTED.sub("", self._waits_for):
            log.info("the balancer waits: %s", why)
        self._waits_for = why

    async def _look(self) -> str:
        """Why nothing has begun, in words; empty: something has, or all is even."""
        settings = self._settings
        plan = await self._planner.plan(
            may_copy=settings.mode != "leaders", queues=settings.mode == "queues", rest_seconds=settings.rest_seconds
        )
        self._looked = True
        earlier = [EarlierMove(it.group, it.age_seconds, is_by_balancer(it)) for it in plan.lately]
        slots = [EarlierSlotMove(it.slot, it.age_seconds, is_by_balancer(it)) for it in plan.slots_lately]
        remembered: list[ToldMove | ToldSlotMove] = [*plan.lately, *plan.slots_lately]
        self._moves_last_hour = sum(is_by_balancer(it) and it.age_seconds < HOUR_SECONDS for it in remembered)
        if why := self._unrest(plan):
            self._patience.forget()
            return why
        if plan.queue is not None:
            due = self._patience.look_at_queue(plan.queue, earlier, slots)
        else:
            due = self._patience.look(plan.moves, plan.placements, plan.standings, earlier, slots)
        if due.move is not None:
            await self._begin(due.move)
        if due.queue is not None:
            return await self._move_queue(due.queue)
        return due.waits_for

    async def _begin(self, move: BalanceMove) -> None:
        why = BY_BALANCER + move.why
        if move.preferred:
            told = f"node {move.new} is to lead it, and not node {move.old}"
            wanted: WantMove | WantPreference = WantPreference(move.group, move.new, why)
        else:
            told = f"its replica moves from node {move.old} to node {move.new}"
            wanted = WantMove(move.group, move.old, move.new, why)
        await self._change(wanted)
        log.info("write group %d: %s: %s", move.group, told, why)
        self._begun["leader" if move.preferred else "replica"] += 1

    async def _move_queue(self, shift: QueueShift) -> str:
        """Why it does not move, in words; empty: it does."""
        topic, partition = self._lookups.topic_by_number(topic_number_of(shift.queue_id)), partition_of(shift.queue_id)
        if topic is None:
            return ""  # deleted since it was planned
        queue = f"{topic.name}:{partition}"
        if shift.copies:
            return (
                f"{queue} should go to write group {shift.new}, whose nodes would copy write group {shift.old} for it: "
                f"mainstem cluster move-queue {queue} --to {shift.new}, if that is worth it"
            )
        why = BY_BALANCER + shift.why
        await self._change(WantSlotMove(topic.name, partition, shift.new, why=why))
        log.info("%s moves with slot %d from write group %d to %d: %s", queue, shift.slot, shift.old, shift.new, why)
        self._begun["queue"] += 1
        return ""

    async def _change(self, wanted: WantMove | WantPreference | WantSlotMove) -> None:
        for outcome in (await self._proposer.propose(self._requests.maker(wanted), b"")).items:
            if isinstance(outcome, NameserverError):
                raise outcome
        self._moves_last_hour += 1

    def _unrest(self, plan: PlannedBalance) -> str:
        """Why this is no moment to begin anything; empty: it is one."""
        lookups, takers = self._lookups, self._takers()
        settled_in = QUEUES_SETTLED_SECONDS - self._slots_moved_ago(plan)
        if lookups.feature_level < FeatureLevel.ELASTIC:
            return f"the cluster is at feature level {lookups.feature_level}, and it takes {FeatureLevel.ELASTIC:d}"
        for node in lookups.nodes():
            if not node.stores or not left_on(node.node_id, plan.placements, plan.standings):
                continue
            if node.node_id in lookups.draining:
                return f"node {node.node_id} is being drained"
            verdict = lookups.verdict(node.node_id)
            if verdict.state is not NodeState.ALIVE:
                return f"node {node.node_id} is {verdict.state.value}"
            if node.node_id not in takers:
                return f"a disk of node {node.node_id} is full or fails"
        if why := _on_its_way(plan, lookups.moving_slots.wishes):
            return why
        if not plan.by_load:
            return "the load of some node is not known"
        return f"a queue has moved: its load is measured where it is in {settled_in:.0f} s" if settled_in > 0 else ""

    def _slots_moved_ago(self, plan: PlannedBalance) -> float:
        """Seconds since a slot was on its way; it may have come and gone between two looks."""
        now = self._monotonic()
        if self._lookups.moving_slots.wishes:
            self._slots_moved_at = now
        return min([now - self._slots_moved_at, *(it.age_seconds for it in plan.slots_lately)])


def _on_its_way(plan: PlannedBalance, wishes: Mapping[int, object]) -> str:
    for group in sorted(plan.placements):
        if group not in plan.standings:
            return f"write group {group}: no leader of it tells who its members are"
    for move in moves_under_way(plan.placements, plan.standings):
        return f"write group {move.group}: a replica is on its way"
    for slot in sorted(wishes):
        return f"slot {slot} is on its way to another write group"
    return ""
