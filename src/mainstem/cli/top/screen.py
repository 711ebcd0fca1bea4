"""A look as text, and the terminal that shows one after the other."""

from __future__ import annotations

import datetime
from contextlib import ExitStack
from typing import TYPE_CHECKING

from mainstem.cli.terminal.output import (
    counted,
    print_fields,
    print_table,
    print_text,
    printed,
    size,
    stdout,
)

if TYPE_CHECKING:
    from rich.live import Live

    from mainstem.cli.top.look import Look

GROUPS_SHOWN_MAX = 20
"""Consumer groups in the text, those with the most lag; `--json` has all that were asked for."""


def print_look(look: Look) -> None:
    """A look as text on stdout."""
    at = datetime.datetime.fromtimestamp(look.time_ms / 1000, datetime.UTC)
    contents = f"{counted(look.topics, 'topic')}, {counted(look.partitions, 'partition')}"
    print_text(f"cluster {look.cluster_id}: {contents}; {at:%H:%M:%S} UTC")
    led = f"{look.write_groups_led} of {counted(look.write_groups, 'write group')} led"
    received = sum(node.received_bytes_per_second or 0 for node in look.nodes)
    sent = sum(node.sent_bytes_per_second or 0 for node in look.nodes)
    requests = sum(node.requests_per_second or 0 for node in look.nodes)
    print_text(f"{size(round(received))}/s in, {size(round(sent))}/s out, {requests:,.0f} requests/s; {led}\n")
    store = ">DISK 2" if look.shared_store is None else ">STORE"
    print_table(
        [">NODE", "STATE", ">IN/S", ">OUT/S", ">REQ/S", ">CONN", ">UNSPLIT", ">DISK 1", store],
        [
            (
                node.node_id, node.state, _size(node.received_bytes_per_second), _size(node.sent_bytes_per_second),
                _count(node.requests_per_second), _count(node.connections), size(node.unsplit_bytes),
                size(node.journal_bytes), size(node.store_bytes),
            )
            for node in look.nodes
        ],
        empty="no nodes",
    )  # fmt: skip
    print_text()
    if look.groups:
        shown = look.groups[:GROUPS_SHOWN_MAX]
        print_table(
            ["~CONSUMER GROUP", "STATE", ">LAG"],
            [(group.group, group.state, _count(group.lag)) for group in shown],
            empty="no consumer groups",
        )
        if hidden := len(look.groups) - len(shown) + look.groups_left_out:
            print_text(f"and {counted(hidden, 'more consumer group')}; --group shows the ones you name")
        print_text()
    free = [
        (name, f"{disk.path}: {size(disk.free_bytes)} of {size(disk.total_bytes)} free")
        for name, disk in (("disk 1", look.write_disk), ("disk 2", look.store_disk))
        if disk is not None
    ]
    shared = [("shared store", look.shared_store)] if look.shared_store is not None else []
    print_fields([*free, *shared, *(("trouble", trouble) for trouble in look.troubles)])


def _size(amount: float | None) -> str:
    return size(None if amount is None else round(amount))


def _count(amount: float | None) -> str:
    return "-" if amount is None else f"{amount:,.0f}"


class Screen:
    """On a terminal every look takes the place of the one before, and what was there before comes back at the end."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown and stdout().is_terminal
        self._stack = ExitStack()
        self._live: Live | None = None

    def __enter__(self) -> Screen:
        if self._shown:
            from rich.live import Live

            self._live = self._stack.enter_context(Live("", console=stdout(), screen=True, auto_refresh=False))
            self._live.update("looking…", refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def show(self, look: Look) -> None:
        if self._live is None:
            print_look(look)
            print_text()
            return
        from rich.text import Text

        text = printed(lambda: print_look(look))
        self._live.update(Text.from_ansi(text), refresh=True)
