"""Plans how the cluster's load should be spread, from what the nodes tell: for operators, and for the balancer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from mainstem.model import FeatureLevel, Node
from mainstem.nameserver.cluster.node_loads import SETTLED_SECONDS
from mainstem.nameserver.state.plans.balance_plan import BalanceMove, plan_balance
from mainstem.nameserver.state.plans.drain_plan import Placements, Standings, keeps_apart, moves_under_way
from mainstem.nameserver.state.plans.load_plan import Loads, loads_of
from mainstem.nameserver.state.plans.queue_plan import QueueShift, plan_queue_shifts
from mainstem.nameserver.state.plans.replica_placement import Locations
from mainstem.rpc.messages.loads import ToldLoads, ToldMove, ToldSlotMove

REST_SECONDS = 600.0
"""A write group that has moved does not move because of load for so long: if it costs its new node more than was
foretold, it does not go back and forth."""

LOADS_LOOKS_MAX = 4
LOADS_LOOK_SECONDS = 1.0
"""Between two looks whether the metadata leader knows the loads of all nodes: about a heartbeat."""


class ToldFacts(NamedTuple):
    """The part of the nodes' reports that plans go by. `lately`: the moves that somebody remembers to have begun, the
    newest first."""

    standings: Standings
    loads: ToldLoads
    lately: list[ToldMove]
    slots_lately: list[ToldSlotMove]
    """As `lately`: the slots that were to move between write groups."""


class PlannedBalance(NamedTuple):
    """The moves of a rebalance, and what they were planned from. `by_load`: the loads of all nodes are known; `lately`:
    as `ToldFacts`."""

    moves: list[BalanceMove]
    placements: Placements
    standings: Standings
    by_load: bool
    lately: list[ToldMove]
    slots_lately: list[ToldSlotMove]
    without_room: list[int]
    """Nodes that take nothing, as too little of a disk is free."""
    staying: Mapping[int, str]
    """Write groups of which no replica moves for now, for the sake of queues that move, and why."""
    queue: QueueShift | None
    """The queue that should go to another write group, as nothing else helps a node that is too busy."""


class PlannedLookups(Protocol):
    """As `nameserver.lookups`."""

    @property
    def feature_level(self) -> FeatureLevel: ...

    def nodes(self) -> Sequence[Node]: ...

    def placements(self) -> Mapping[int, tuple[int, ...]]: ...

    def slots(self) -> Sequence[int]: ...

    def staying(self) -> Mapping[int, str]: ...


class BalancePlanner:
    """Makes plans on any node; each asks all nodes."""

    def __init__(
        self,
        lookups: PlannedLookups,
        takers: Callable[[], list[int]],
        leader_of: Callable[[int], int],
        told: Callable[[], Awaitable[ToldFacts]],
        refusal: Callable[[QueueShift], Awaitable[str]],
        room_percent_min: int,
    ) -> None:
        """`takers` names the nodes that may give or take; `told` asks the nodes; `refusal` says why the metadata would
        not move a queue, or nothing."""
        self._refusal = refusal
        self._lookups = lookups
        self._takers = takers
        self._leader_of = leader_of
        self._told = told
        self._room_percent_min = room_percent_min

    async def plan(
        self,
        looks_max: int = LOADS_LOOKS_MAX,
        *,
        may_copy: bool = True,
        queues: bool = True,
        rest_seconds: float = REST_SECONDS,
    ) -> PlannedBalance:
        """The moves that would spread what the nodes do; with `queues`, where none helps, of a queue. A new metadata
        leader has a moment to hear their loads."""
        lookups = self._lookups
        for attempt in range(looks_max):
            facts = await self._told()
            placements, staying, takers = dict(lookups.placements()), lookups.staying(), self._takers()
            unsettled = self._unsettled(placements, facts.standings, facts.lately)
            loads = loads_of(facts.loads, takers, unsettled, self._room_percent_min)
            if loads is not None or not facts.loads.nodes or attempt == looks_max - 1:
                break
            await asyncio.sleep(LOADS_LOOK_SECONDS)
        locations = {node.node_id: node.location for node in lookups.nodes()}
        plan = partial(
            plan_balance, placements, locations, takers, loads,
            may_prefer=lookups.feature_level >= FeatureLevel.ELASTIC, may_copy=may_copy,
            resting={it.group for it in facts.lately if it.age_seconds < rest_seconds},
            staying=frozenset(staying),
        )  # fmt: skip
        moves = await asyncio.to_thread(plan)  # of very many: some seconds
        without_room = sorted(it for it, measure in loads.nodes.items() if not measure.has_room) if loads else []
        queue = None
        if queues and loads is not None and not moves:
            resting = {it.slot for it in facts.slots_lately if it.age_seconds < rest_seconds}
            queue = await self._queue_shift(placements, locations, loads, facts.loads, resting)
        return PlannedBalance(
            moves, placements, facts.standings, loads is not None, facts.lately, facts.slots_lately, without_room,
            staying, queue,
        )  # fmt: skip

    async def _queue_shift(
        self,
        placements: Placements,
        locations: Locations,
        loads: Loads,
        told: ToldLoads,
        resting: Collection[int],
    ) -> QueueShift | None:
        """The queue whose move helps most, of those that the metadata would not refuse; one whose slot rests if there
        is no other."""
        busiest = {it.group: it.busiest for it in told.write_groups if it.busiest}
        if not busiest or self._lookups.feature_level < FeatureLevel.STORED:
            return None
        slots, apart = list(self._lookups.slots()), partial(keeps_apart, locations)
        for shift in await asyncio.to_thread(plan_queue_shifts, placements, loads, busiest, slots, apart, resting):
            if not await self._refusal(shift):
                return shift
        return None

    def _unsettled(self, placements: Placements, standings: Standings, lately: Iterable[ToldMove]) -> set[int]:
        """The nodes whose measures tell of before: they gave or took something lately, or do now, or lead what another
        node should lead."""
        found = {node for it in lately if it.age_seconds < SETTLED_SECONDS for node in (it.old, it.new)}
        found |= {node for it in moves_under_way(placements, standings) for node in (it.old, it.new)}
        for group, replicas in placements.items():
            leader = self._leader_of(group)
            if replicas and leader not in (-1, replicas[0]):
                found |= {leader, replicas[0]}
        return found
