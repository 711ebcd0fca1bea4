"""`mainstem store usage`"""

from __future__ import annotations

from collections.abc import Iterator

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import counted, print_fields, print_json, print_table, size
from mainstem.console.views.of_store import StoreUsageView, TopicUsageView

TIMEOUT_SECONDS = 30.0
"""The node may look at the indexes of files for some seconds."""

BAR_WIDTH = 20


@click.command("usage")
@click.option("--topic", "-t", metavar="TOPIC", help="Show this topic alone.")
@options.http_only
@options.as_json
def command(topic: str | None, http: str, as_json: bool) -> None:
    """Show which topic takes how much of a node's disks and of the remote tier, and on which level.

    Sizes are those of batches, as they lie in files: what is deleted counts until its file goes or is merged, and what
    is split counts in the journal until that is pruned. A file that several topics share counts as a file for each; its
    bytes are told apart by its index. The topics with the most bytes come first.
    """
    path = "/v1/store/usage" if topic is None else f"/v1/store/usage/{topic}"
    view = HttpNode(http, timeout_seconds=TIMEOUT_SECONDS).get(path, StoreUsageView)
    if as_json:
        print_json(view)
        return
    shown = [*view.topics, *([view.others] if view.topics_left_out else [])]
    most = max(map(_total, shown), default=0)
    shared = view.shared_store is not None
    print_table(
        ["~TOPIC", ">FILES", ">SIZE", "SHARE"],
        [row for one in shown for row in _rows(one, view.topics_left_out, most, shared)],
        empty="no topic has anything anywhere",
    )
    click.echo()
    print_fields(_fields(view))


def _total(one: TopicUsageView) -> int:
    return one.journal_bytes + one.stored_bytes + one.remote_bytes


def _rows(one: TopicUsageView, others: int, most: int, shared: bool) -> Iterator[tuple[str, str, str, str]]:
    yield _name(one, others), "", size(_total(one)), _bar(_total(one), most)
    parts: list[tuple[str, str, int]] = []
    if one.journal_bytes:
        parts.append(("journal", "", one.journal_bytes))
    parts += [(f"level {it.level}, {it.kind}s", f"{it.files:,}", it.bytes) for it in one.levels]
    parts += [
        (f"level {it.level}, {it.kind}s" if shared else f"remote, {it.kind}s", f"{it.files:,}", it.bytes)
        for it in one.remote_levels
    ]
    for number, (where, files, count) in enumerate(parts, 1):
        branch = "└ " if number == len(parts) else "├ "
        yield branch + where, files, size(count), _bar(count, most)


def _name(one: TopicUsageView, others: int) -> str:
    if one.topic_number is None:
        return f"{counted(others, 'other topic')}"
    return one.name if one.name is not None else f"(deleted topic, number {one.topic_number})"


def _bar(count: int, most: int) -> str:
    return "#" * -(-BAR_WIDTH * count // most) if most else ""


def _fields(view: StoreUsageView) -> Iterator[tuple[str, str]]:
    objects = "shared store" if view.shared_store is not None else "remote tier"
    for name, levels in (("queue store", view.levels), (objects, view.remote_levels)):
        if levels:
            files, count, batches = (
                sum(column) for column in zip(*((it.files, it.bytes, it.batch_bytes) for it in levels), strict=True)
            )
            yield name, f"{counted(files, 'file')}, {size(count)}, of which {size(batches)} are batches"
    yield "journal", f"{size(view.journal_bytes)} of batches"
    for name, disk in (("disk 1", view.write_disk), ("disk 2", view.store_disk)):
        if disk is not None:
            yield (
                name,
                f"{size(disk.used_bytes)} used by Mainstem, {size(disk.free_bytes)} of {size(disk.total_bytes)} free",
            )
    if view.given_up_files:
        lost = f"{counted(view.given_up_files, 'file')} with {counted(view.given_up_records, 'record')}"
        yield "given up", f"{lost} that were lost; mainstem store status names them"
    if view.unread_files:
        yield (
            "left out",
            f"{counted(view.unread_files, 'file')} with {size(view.unread_bytes)} that topics share were not looked at "
            "yet, or cannot be read; ask again",
        )
