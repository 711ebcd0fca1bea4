"""The balancer: the metadata leader begins by itself what a rebalance would, slowly, where an operator has switched
that on (`nameserver.balance`).

It plans at each look as the command does, and has `Patience` judge what is due. It begins nothing while the cluster has
other things to do: a node that holds something is drained, or does not live; a disk is full or fails; a replica or a
slot is on its way, whoever began that; or the load of some node is not known. The nodes tell all of that, and what was
moved within the last hour. A node keeps at how many looks in a row a node has had too much to do, or a queue did not
begin to move, while it leads; and when a slot has moved last, also while it does not.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from msgspec import structs

from mainstem.model import FeatureLevel, Node, Sample, Topic, partition_of, topic_number_of
from mainstem.nameserver.cluster.balance_planner import BalancePlanner, PlannedBalance
from mainstem.nameserver.cluster.node_liveness import LivenessVerdict, NodeState
from mainstem.nameserver.cluster.unbegun_moves import UNBEGUN_LOOKS_MAX, UnbegunMoves
from mainstem.nameserver.errors import NameserverError
from mainstem.nameserver.quorum.metadata_quorum import MetadataQuorum
from mainstem.nameserver.quorum.proposer import NotLeading, Proposer, Unsettled
from mainstem.nameserver.requests import Requests
from mainstem.nameserver.state.moving_slots import MovingSlots
from mainstem.nameserver.state.plans.balance_patience import Patience, own_ages
from mainstem.nameserver.state.plans.balance_plan import BalanceMove
from mainstem.nameserver.state.plans.drain_plan import left_on, moves_under_way
from mainstem.nameserver.state.plans.queue_plan import QueueShift
from mainstem.rpc.messages.loads import BY_BALANCER, ToldBalancer, ToldSlotMove
from mainstem.rpc.messages.metadata import WantMove, WantPreference, WantSlotKept, WantSlotMove

QUEUES_SETTLED_SECONDS = 120.0
"""Nothing begins for so long after a queue has moved: until then the rates of its write groups, which are smoothed over
half a minute, tell of before to more than a fiftieth. A node that starts does not know when slots have moved, and takes
it for just then."""

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
        """When a slot was on its way, or had moved since the look before."""
        self._slot_moves = 0
        """How often slots had moved by the last look, all together."""
        self._settings = settings
        self._planner = planner
        self._quorum = quorum
        self._proposer = proposer
        self._requests = requests
        self._lookups = lookups
        self._takers = takers
        self._sleep = sleep
        self._patience = Patience(settings.moves_per_hour_max, settings.rest_seconds)
        self._unbegun = UnbegunMoves()
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
            self._look_at_slots()
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
        self._unbegun.forget()
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
        self._moves_last_hour = len(own_ages([*plan.lately, *plan.slots_lately]))
        for stuck in self._unbegun.look(self._lookups.moving_slots.wishes, plan.slots_lately):
            await self._take_back(stuck)
        if why := self._unrest(plan):
            self._patience.forget()
            return why
        if plan.queue is not None:
            due = self._patience.look_at_queue(plan.queue, plan.lately, plan.slots_lately)
        else:
            due = self._patience.look(plan.moves, plan.placements, plan.standings, plan.lately, plan.slots_lately)
        if isinstance(due.move, QueueShift):
            return await self._move_queue(due.move)
        if due.move is not None:
            await self._begin(due.move)
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
        self._moves_last_hour += 1
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
        self._moves_last_hour += 1
        log.info("%s moves with slot %d from write group %d to %d: %s", queue, shift.slot, shift.old, shift.new, why)
        self._begun["queue"] += 1
        return ""

    async def _take_back(self, move: ToldSlotMove) -> None:
        """Have a queue stay that did not begin to move. Its slot rests, as it was asked for lately."""
        why = f"{BY_BALANCER}it had not begun at {UNBEGUN_LOOKS_MAX} looks in a row"
        await self._change(WantSlotKept(move.slot, structs.replace(move, why=why, age_seconds=0.0, taken_back=True)))
        log.warning(
            "%s:%d stays in write group %d with slot %d: its move to write group %d, which the balancer asked for, had "
            "not begun at %d looks in a row",
            move.topic, move.partition, move.old, move.slot, move.new, UNBEGUN_LOOKS_MAX,
        )  # fmt: skip

    async def _change(self, wanted: WantMove | WantPreference | WantSlotMove | WantSlotKept) -> None:
        """Raises what the metadata refuses it with."""
        for outcome in (await self._proposer.propose(self._requests.maker(wanted), b"")).items:
            if isinstance(outcome, NameserverError):
                raise outcome

    def _unrest(self, plan: PlannedBalance) -> str:
        """Why this is no moment to begin anything; empty: it is one."""
        lookups, takers = self._lookups, self._takers()
        settled_in = QUEUES_SETTLED_SECONDS - (self._monotonic() - self._slots_moved_at)
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
        if why := self._on_its_way(plan):
            return why
        if not plan.by_load:
            return "the load of some node is not known"
        return f"a queue has moved: its load is measured where it is in {settled_in:.0f} s" if settled_in > 0 else ""

    def _look_at_slots(self) -> None:
        """Note whether slots move, or have moved since the last look: every node knows, whichever leads."""
        slots = self._lookups.moving_slots
        moves = sum(slots.numbers.values())
        if slots.wishes or moves != self._slot_moves:
            self._slots_moved_at, self._slot_moves = self._monotonic(), moves

    def _on_its_way(self, plan: PlannedBalance) -> str:
        for group in sorted(plan.placements):
            if group not in plan.standings:
                return f"write group {group}: no leader of it tells who its members are"
        for move in moves_under_way(plan.placements, plan.standings):
            return f"write group {move.group}: a replica is on its way"
        for slot in sorted(self._lookups.moving_slots.wishes):
            unbegun = self._unbegun.told(slot)
            return f"slot {slot} is on its way to another write group{unbegun and f': it {unbegun}'}"
        return ""
