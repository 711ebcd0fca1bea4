"""Explanations of this cluster: gathers what `explanations` makes sentences of."""

from __future__ import annotations

from mainstem.console.views.of_explanation import BegunMoveView, ExplanationView
from mainstem.model import slot_of
from mainstem.nameserver.cluster.balance_planner import BalancePlanner
from mainstem.nameserver.nameserver import Nameserver
from mainstem.node.views.cluster_views import LocalClusterViews
from mainstem.node.views.explanations import (
    ExplainedCluster,
    ExplainedQueue,
    explain_node,
    explain_queue,
    explain_write_group,
)
from mainstem.node.views.load_views import balance_move_view, queue_shift_view, slot_move_view
from mainstem.rpc.messages.loads import ToldMove


class LocalExplanations:
    """Implements `console.views.node_views.Explanations`; each asks all nodes."""

    def __init__(self, nameserver: Nameserver, cluster: LocalClusterViews, planner: BalancePlanner) -> None:
        self._nameserver = nameserver
        self._cluster = cluster
        self._planner = planner

    async def node(self, node_id: int) -> ExplanationView | None:
        return explain_node(await self._known(), node_id)

    async def write_group(self, group: int) -> ExplanationView | None:
        return explain_write_group(await self._known(), group)

    async def partition(self, topic: str, partition: int) -> ExplanationView | None:
        found = self._nameserver.lookups.topic(topic)
        if found is None or not 0 <= partition < found.partitions:
            return None
        queue_id = found.queue_id(partition)
        lookups, slot = self._nameserver.lookups, slot_of(queue_id)
        wish, others = lookups.moving_slots.wishes.get(slot), lookups.moving_slots.others.get(slot, ())
        guests = lookups.guests() if others else {}
        queue = ExplainedQueue(
            topic,
            partition,
            slot,
            lookups.write_group(queue_id),
            -1 if wish is None else wish.group,
            others,
            lookups.moving_slots.kept_in(slot, lookups.topics()) if others else "",
            {group: sorted(guests.get(group, ())) for group in others},
        )
        return explain_queue(await self._known(), queue)

    async def _known(self) -> ExplainedCluster:
        view = await self._cluster.cluster()
        slots = self._nameserver.lookups.slots()
        if self._nameserver.others is None:
            return ExplainedCluster(view, [], None, unplanned="this node is a cluster of its own", slots=slots)
        balance = await self._planner.plan(looks_max=1)
        return ExplainedCluster(
            view,
            [begun_move_view(it) for it in balance.lately],
            [balance_move_view(it) for it in balance.moves],
            by_load=balance.by_load,
            queue=queue_shift_view(balance.queue, self._nameserver.lookups.topic_by_number),
            slots_begun=[slot_move_view(it) for it in balance.slots_lately],
            slots=slots,
        )


def begun_move_view(told: ToldMove) -> BegunMoveView:
    return BegunMoveView(
        group=told.group,
        old=told.old,
        new=told.new,
        preferred=told.preferred,
        why=told.why,
        age_seconds=told.age_seconds,
    )
