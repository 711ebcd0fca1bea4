"""`mainstem store status`"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import counted, duration, print_fields, print_json, print_table, size
from mainstem.console.views.of_store import (
    CompactionsView,
    GivenUpFileView,
    LevelView,
    MergesView,
    MergeView,
    RemoteView,
    RemoteWriteGroupView,
    StoreView,
    StoreWriteGroupView,
)

TIMEOUT_SECONDS = 30.0
"""The node may look at the indexes of files for some seconds."""


@click.command("status")
@options.http_only
@options.as_json
def command(http: str, as_json: bool) -> None:
    """Show what lies on which level of a node's queue store, what waits to be merged or moved, and what is damaged.

    A run may have messages of several write groups: it is counted for each of them, and once among all. Merges count
    from the node's start.
    """
    view = HttpNode(http, timeout_seconds=TIMEOUT_SECONDS).get("/v1/store", StoreView)
    if as_json:
        print_json(view)
        return
    remote = view.remote
    if view.shared_store is not None and remote is not None:
        shown = _of_groups(remote.groups, remote.levels)
    else:
        shown = [*_of_groups(view.groups, view.levels), ("remote", remote.levels if remote is not None else ())]
    print_table(
        [">GROUP", ">LEVEL", "KIND", ">FILES", ">SIZE", ">BATCHES"],
        [
            (name, level.level, level.kind, level.files, size(level.bytes), size(level.batch_bytes))
            for name, levels in shown
            for level in levels
        ],
        empty="the queue store has no files",
    )
    click.echo()
    print_fields(_fields(view))


def _of_groups(
    groups: Mapping[str, StoreWriteGroupView | RemoteWriteGroupView], levels: Sequence[LevelView]
) -> list[tuple[str, Sequence[LevelView]]]:
    """The levels of each write group, by its name, and those of all together."""
    ordered = sorted(groups.items(), key=lambda item: int(item[0]))
    return [*((name, group.levels) for name, group in ordered), ("all", levels)]


def _fields(view: StoreView) -> Iterator[tuple[str, str]]:
    if (disk := view.store_disk) is not None:
        free = f"{size(disk.free_bytes)} of {size(disk.total_bytes)} free"
        yield "disk 2", f"{size(disk.used_bytes)} of store files, {free}"
    if view.shared_store is not None:
        fault = view.remote.fault if view.remote is not None else ""
        yield "shared store", view.shared_store + (f": {fault}" if fault else "")
    yield from _merges(view.merges)
    yield from _compactions(view.compactions)
    if view.remote is not None:
        if view.shared_store is None:
            yield from _moves(view.remote)
        yield from _objects(view.remote)
    for file in view.damaged_files:
        yield "damaged file", f"{file.name}: {file.reason}"
    yield from _given_up(view.given_up, view.given_up_count)


def _merges(merges: MergesView) -> Iterator[tuple[str, str]]:
    if not merges.allowed:
        yield "merges", "not yet: the cluster's feature level must be 3 (mainstem cluster feature-level --raise)"
        return
    yield "merges", "on" if merges.enabled else "off (pipeline.merge): mainstem store merge does them"
    for merge in merges.under_way:
        yield "under way", f"{_told(merge)}, for {duration(merge.seconds)}"
    waits = f"{size(merges.waiting_bytes)} are worth merging" if merges.waiting_bytes else "nothing is worth merging"
    yield "waiting", waits + ("; some files were not looked at yet" if merges.unfinished else "")
    last = merges.last
    yield "last merge", "none yet" if last is None else f"{_told(last)}, {duration(last.seconds)} ago"
    if merges.merged_files:
        yield "", f"{counted(merges.merged_files, 'file')} into {size(merges.merged_bytes)} since the node started"


def _compactions(compactions: CompactionsView) -> Iterator[tuple[str, str]]:
    for one in compactions.under_way:
        yield (
            "compacting",
            f"write group {one.group}: {counted(one.inputs, 'file')}, {size(one.bytes)}, for {duration(one.seconds)}",
        )
    last = compactions.last
    if last is None:
        return
    yield (
        "last compaction",
        f"write group {last.group}: {counted(last.inputs, 'file')} of {size(last.bytes)} into {last.outputs} of "
        f"{size(last.bytes_left or 0)}, {duration(last.seconds)} ago",
    )
    yield (
        "",
        f"{counted(compactions.passes, 'compaction')} removed {size(compactions.removed_bytes)} since the node started",
    )


def _moves(remote: RemoteView) -> Iterator[tuple[str, str]]:
    if remote.url is None:
        yield "remote tier", "out of this node's reach: it has no remote_dir"
    else:
        yield "remote tier", remote.url + (f": {remote.fault}" if remote.fault else "")
    files, count = remote.waiting_files, remote.waiting_bytes
    yield "to move there", f"{counted(files, 'file')}, {size(count)}" if files else "nothing"
    ago = remote.last_upload_seconds
    if ago is not None:
        yield "", f"{counted(remote.uploaded_files, 'file')} moved since the node started, the last {duration(ago)} ago"
    if remote.upload_failures:
        yield (
            "failed moves",
            f"{remote.upload_failures:,} since the node started, the last: {remote.last_upload_failure}",
        )


def _objects(remote: RemoteView) -> Iterator[tuple[str, str]]:
    if leaving := sum(group.leaving_files for group in remote.groups.values()):
        yield "to be deleted", counted(leaving, "file")
    for file in remote.damaged_files:
        yield "damaged object", f"{file.name}: {file.reason}"
    yield from _given_up(remote.given_up, remote.given_up_count)


def _given_up(files: Sequence[GivenUpFileView], count: int) -> Iterator[tuple[str, str]]:
    for one in files:
        records = counted(one.record_count, "record")
        yield "given up", f"{one.name}, {records}, by {one.by} at {_utc(one.at_ms)}: {one.fault}"
    if more := count - len(files):
        yield "", f"and {counted(more, 'earlier file')}"


def _utc(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def _told(merge: MergeView) -> str:
    into = f" into {merge.outputs}" if merge.outputs is not None else ""
    return (
        f"write group {merge.group}: {counted(merge.inputs, 'file')}{into}, {size(merge.bytes)}, to level {merge.level}"
    )
