"""The loads of nodes and write groups, and the moves because of them, as views say them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import structs

from mainstem.console.views.of_cluster import (
    BalanceMoveView,
    BalancerView,
    NodeLoadView,
    QueuePartView,
    QueueShiftView,
    WriteGroupLoadView,
)
from mainstem.model import Topic, partition_of, topic_number_of
from mainstem.nameserver.state.plans.balance_plan import BalanceMove
from mainstem.nameserver.state.plans.queue_plan import QueueShift
from mainstem.rpc.messages.cluster import NodeReport
from mainstem.rpc.messages.loads import BY_BALANCER, ToldMove, ToldNodeLoad, ToldSlotMove, ToldWriteGroupLoad

TopicByNumber = Callable[[int], Topic | None]


def node_load_view(told: ToldNodeLoad) -> NodeLoadView:
    load = told.load
    return NodeLoadView(
        age_seconds=told.age_seconds,
        cpu_share=load.cpu_share,
        sync_share=load.sync_share,
        write_free_bytes=load.write_free_bytes,
        write_total_bytes=load.write_total_bytes,
        store_free_bytes=load.store_free_bytes,
        store_total_bytes=load.store_total_bytes,
    )


def write_group_load_view(told: ToldWriteGroupLoad, topic_by_number: TopicByNumber) -> WriteGroupLoadView:
    named = ((topic_by_number(topic_number_of(it.queue_id)), it) for it in told.busiest)
    busiest = [
        QueuePartView(topic=topic.name, partition=partition_of(it.queue_id), part=it.part)
        for topic, it in named
        if topic is not None
    ]
    return WriteGroupLoadView(bytes_in=told.bytes_in, bytes_out=told.bytes_out, requests=told.requests, busiest=busiest)


def queue_shift_view(shift: QueueShift | None, topic_by_number: TopicByNumber) -> QueueShiftView | None:
    """None: there is none, or its topic has been deleted."""
    topic = topic_by_number(topic_number_of(shift.queue_id)) if shift is not None else None
    if shift is None or topic is None:
        return None
    return QueueShiftView(
        topic=topic.name, partition=partition_of(shift.queue_id), slot=shift.slot, old=shift.old, new=shift.new,
        why=shift.why, copies=shift.copies,
    )  # fmt: skip


def slot_move_view(told: ToldSlotMove) -> QueueShiftView:
    return QueueShiftView(
        topic=told.topic, partition=told.partition, slot=told.slot, old=told.old, new=told.new, why=told.why,
        age_seconds=told.age_seconds, taken_back=told.taken_back,
    )  # fmt: skip


def balance_move_view(move: BalanceMove, copied: int | None = None) -> BalanceMoveView:
    """`copied`: bytes."""
    return BalanceMoveView(
        group=move.group, old=move.old, new=move.new, why=move.why, preferred=move.preferred, bytes=copied
    )


def balancer_view(
    leader: NodeReport | None, moves: Iterable[ToldMove], slot_moves: Iterable[ToldSlotMove]
) -> BalancerView | None:
    """As the metadata leader reports of it; any node remembers to have begun the moves, the newest first."""
    if leader is None or leader.balancer is None:
        return None
    told = leader.balancer
    last = next((it for it in moves if it.by_balancer), None)
    shown = None
    if last is not None:
        why = last.why.removeprefix(BY_BALANCER)
        shown = BalanceMoveView(group=last.group, old=last.old, new=last.new, why=why, preferred=last.preferred)
    last_slot = next((it for it in slot_moves if it.by_balancer), None)
    last_queue = None
    if last_slot is not None:
        last_queue = structs.replace(slot_move_view(last_slot), why=last_slot.why.removeprefix(BY_BALANCER))
    return BalancerView(
        mode=told.mode,
        looked=told.looked,
        waits_for=told.waits_for,
        moves_last_hour=told.moves_last_hour,
        moves_per_hour_max=told.moves_per_hour_max,
        last=shown,
        last_age_seconds=None if last is None else last.age_seconds,
        last_queue=last_queue,
    )
