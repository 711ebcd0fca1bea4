"""The loads of nodes and write groups, and the moves because of them, as views say them."""

from __future__ import annotations

from collections.abc import Iterable

from mainstem.console.views.of_cluster import BalanceMoveView, BalancerView, NodeLoadView, WriteGroupLoadView
from mainstem.nameserver.recent_moves import BY_BALANCER, is_by_balancer
from mainstem.nameserver.state.plans.balance_plan import BalanceMove
from mainstem.rpc.messages.cluster import NodeReport
from mainstem.rpc.messages.loads import ToldMove, ToldNodeLoad, ToldWriteGroupLoad


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


def write_group_load_view(told: ToldWriteGroupLoad) -> WriteGroupLoadView:
    return WriteGroupLoadView(bytes_in=told.bytes_in, bytes_out=told.bytes_out, requests=told.requests)


def balance_move_view(move: BalanceMove) -> BalanceMoveView:
    return BalanceMoveView(group=move.group, old=move.old, new=move.new, why=move.why, preferred=move.preferred)


def balancer_view(leader: NodeReport | None, moves: Iterable[ToldMove]) -> BalancerView | None:
    """As the metadata leader reports of it; `moves`, the newest first, are what any node remembers to have begun."""
    if leader is None or leader.balancer is None:
        return None
    told = leader.balancer
    last = next((it for it in moves if is_by_balancer(it)), None)
    shown = None
    if last is not None:
        why = last.why.removeprefix(BY_BALANCER)
        shown = BalanceMoveView(group=last.group, old=last.old, new=last.new, why=why, preferred=last.preferred)
    return BalancerView(
        mode=told.mode,
        looked=told.looked,
        waits_for=told.waits_for,
        moves_last_hour=told.moves_last_hour,
        moves_per_hour_max=told.moves_per_hour_max,
        last=shown,
        last_age_seconds=None if last is None else last.age_seconds,
    )
