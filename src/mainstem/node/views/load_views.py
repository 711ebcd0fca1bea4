"""The loads of nodes and write groups, and the moves because of them, as views say them."""

from __future__ import annotations

from mainstem.console.views.of_cluster import BalanceMoveView, NodeLoadView, WriteGroupLoadView
from mainstem.nameserver.state.plans.balance_plan import BalanceMove
from mainstem.rpc.messages.loads import ToldNodeLoad, ToldWriteGroupLoad


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
