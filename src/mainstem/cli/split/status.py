"""`mainstem split status`"""

from __future__ import annotations

import click

from mainstem.cli import options
from mainstem.cli.http_node import HttpNode
from mainstem.cli.output import duration, print_json, print_table, size, stdout
from mainstem.console.views import SplitView


@click.command("status")
@options.http_only
@options.as_json
def command(http: str, as_json: bool) -> None:
    """Show committed, split and pruned positions, lag and the last progress.

    Positions are block indexes of a write group's log: what is committed is being split, what is split is in
    the queue store, what is pruned has left the journal. Runs of this node's queue store that are damaged or
    missing are named until they are mended from another replica, or restored.
    """
    view = HttpNode(http).get("/v1/split", SplitView)
    if as_json:
        print_json(view)
        return
    print_table(
        [">GROUP", ">COMMITTED", ">SPLIT", ">PRUNED", ">LAG", ">AGE", ">FILES"],
        [
            (
                number, group.committed, group.split, group.pruned, size(group.lag_bytes),
                duration(group.lag_seconds), group.files,
            )
            for number, group in sorted(view.groups.items(), key=lambda item: int(item[0]))
        ],
        empty="no write groups",
    )
    console = stdout()
    console.print(f"\nsplitter       {view.splitter}")
    if view.lease is None:
        console.print("lease          nobody holds it")
    else:
        left = duration(view.lease.expires_in_seconds)
        console.print(f"lease          {view.lease.holder}, fence {view.lease.fence}, {left} left")
    for waiting in view.damaged_blocks:
        console.print(
            f"waits          write group {waiting.group} at block {waiting.block}, for {duration(waiting.seconds)}: "
            f"{waiting.fault}"
        )
    console.print(f"last error     {view.last_error or 'none'}")
    for number, group in sorted(view.groups.items(), key=lambda item: int(item[0])):
        if group.waits_for:
            console.print(f"waiting        write group {number}: {group.waits_for}")
    for run in view.damaged_runs:
        console.print(f"damaged run    {run.name}: {run.reason}")
    if view.last_progress is None:
        console.print("last progress  none yet")
    for key, value in (view.last_progress or {}).items():
        console.print(f"last progress  {key} = {value}")
