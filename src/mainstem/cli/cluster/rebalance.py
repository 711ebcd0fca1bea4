"""`mainstem cluster rebalance`"""

from __future__ import annotations

import time
from collections import Counter
from functools import partial

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.errors import RequestRefused
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import counted, duration, print_json, print_table, print_text, size
from mainstem.cli.terminal.progress_line import StatusLine, bar
from mainstem.console.views.asked_changes import RebalanceRequest
from mainstem.console.views.of_cluster import BalanceView

LOOK_SECONDS = 0.5
"""Between two looks at the cluster: each has the node ask all others."""

PATH = "/v1/cluster/rebalance"


@click.command("rebalance")
@click.option("--dry-run", is_flag=True, help="Only show which replicas would move, and why.")
@options.http_only
@options.token
@options.as_json
def command(http: str, token: str | None, dry_run: bool, as_json: bool) -> None:
    """Spread write groups evenly: over racks, then over nodes by their load.

    A node that was added gets its share so, and one that is busier than the others gives something away: first write
    groups that it leads to nodes that have a replica already, then replicas. Each node gives away one replica at a time
    and takes one, while clients go on. The command returns when nothing is left to move. It may be ended before, as
    what has begun is finished, and given again: it goes on from what it finds. See `mainstem cluster explain`.
    """
    node = HttpNode(http, token)
    if dry_run:
        plan = node.ask(PATH, RebalanceRequest(dry_run=True), BalanceView)
        if as_json:
            print_json(plan)
        else:
            print_plan(plan)
        return
    moved, led, last = _carry_out(node)
    if as_json:
        print_json({"moved": moved, "leaders": led})
    elif moved or led:
        done = [f"{counted(moved, 'replica')} moved"] if moved else []
        done += [f"{counted(led, 'write group')} led by another node"] if led else []
        click.echo(f"{', '.join(done)}; nothing is left to move")
    else:
        click.echo("nothing is to move")
    if not as_json:
        print_obstacles(last)


def print_plan(plan: BalanceView) -> None:
    print_table(
        [">GROUP", "WHAT", ">FROM", ">TO", ">SIZE", "~WHY"],
        [
            (move.group, "leader" if move.preferred else "replica", move.old, move.new, size(move.bytes), move.why)
            for move in plan.moves
        ],
        empty="nothing is to move now" if plan.staying else "replicas are spread evenly: nothing is to move",
    )
    print_obstacles(plan)
    if (queue := plan.queue) is not None:
        copies = ", whose nodes copy the former one first" if queue.copies else ""
        print_text(
            f"{queue.topic}:{queue.partition} had better go from write group {queue.old} to {queue.new}{copies}: "
            f"{queue.why}: mainstem cluster move-queue {queue.topic}:{queue.partition} --to {queue.new}"
        )
    if not plan.moves:
        return
    print_text()
    led = sum(move.preferred for move in plan.moves)
    if led:
        print_text(f"{counted(led, 'write group')} would be led by another node, within seconds")
    if replicas := len(plan.moves) - led:
        pace = f"at {size(plan.bytes_per_second)}/s at most" if plan.bytes_per_second else "as fast as it goes"
        told = f"{counted(replicas, 'replica')} would move{_in_all(plan)}, one at a time to each node, {pace}"
        print_text(f"{told}{_lasting(plan)}")
    if not plan.by_load:
        print_text("replicas are counted, as the load of some node is not known")
    for reason in plan.waits_for:
        print_text(f"waits: {reason}")


def print_obstacles(plan: BalanceView) -> None:
    """Which nodes take nothing, and what stays, and why."""
    for node in plan.without_room:
        print_text(f"node {node} takes nothing: too little of a disk is free (nameserver.room_percent_min)")
    for reason in plan.staying:
        print_text(f"stays: {reason}")


def _in_all(plan: BalanceView) -> str:
    """How much is copied, if all nodes tell."""
    sizes = [move.bytes for move in plan.moves if not move.preferred]
    known = [count for count in sizes if count is not None]
    return f", {size(sum(known))} in all" if len(known) == len(sizes) else ""


def _lasting(plan: BalanceView) -> str:
    """How long that takes at least: as long as the node that takes most, or gives most."""
    if not plan.bytes_per_second or not _in_all(plan):
        return ""
    busiest = Counter[tuple[str, int]]()
    for move in plan.moves:
        busiest["to", move.new] += move.bytes or 0
        busiest["from", move.old] += move.bytes or 0
    return f": {duration(max(busiest.values()) / plan.bytes_per_second)} at least"


def _carry_out(node: HttpNode) -> tuple[int, int, BalanceView]:
    """Have moves begin until none is left and none is under way; returns how many replicas and preferred leaders were
    begun with, and the last plan. Raises NodeUnreachable or RequestRefused, the latter also when nothing goes on."""
    moved = led = 0
    with StatusLine(None) as line:
        while True:
            plan = node.ask(PATH, RebalanceRequest(), BalanceView)
            moved, led = moved + plan.begun, led + plan.leaders_begun
            if not plan.begun and not plan.leaders_begun and not plan.under_way:
                if not plan.moves:
                    return moved, led, plan
                if plan.waits_for:
                    raise RequestRefused(
                        f"{counted(len(plan.moves), 'move')} cannot begin now: {plan.waits_for[0]}; give the command "
                        "again when that is mended"
                    )
            line.due(partial(on_the_way, plan, moved + led))
            time.sleep(LOOK_SECONDS)


def on_the_way(plan: BalanceView, begun: int, _seconds: float) -> str:
    """`begun`: the moves that the command has begun with so far."""
    waits = f"; waits: {plan.waits_for[0]}" if plan.waits_for else ""
    under_way = plan.begun + plan.under_way
    done = max(0, begun - under_way)
    drawn = bar(done, done + under_way + len(plan.moves))
    return f"{drawn} {counted(under_way, 'replica')} on the way, {len(plan.moves)} to go{waits}"
