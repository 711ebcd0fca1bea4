"""`mainstem topic describe`: a topic as a tree, down to the files on disk 2."""

from __future__ import annotations

import click
from rich.tree import Tree

from mainstem.cli import options
from mainstem.cli.http_node import HttpNode
from mainstem.cli.output import print_json, size, stdout
from mainstem.console.views import PartitionView, TopicView

_FILES_DRAWN_MAX = 8
"""Files drawn under one partition, the newest; `--json` has them all."""


@click.command("describe")
@click.argument("topic")
@options.http
@options.as_json
def command(topic: str, http: str, as_json: bool) -> None:
    """Draw a topic: partitions, offsets, bytes on each disk, files."""
    view = HttpNode(http).get(f"/v1/topics/{topic}", TopicView)
    if as_json:
        print_json(view)
    else:
        stdout().print(_drawn(view))


def _drawn(view: TopicView) -> Tree:
    records = sum(partition.high_watermark - partition.log_start for partition in view.partitions)
    unsplit = sum(partition.unsplit_bytes for partition in view.partitions)
    stored = sum(partition.stored_bytes for partition in view.partitions)
    tree = Tree(
        f"{view.name}  {len(view.partitions)} partitions, {records} offsets, "
        f"{size(unsplit)} in the journal, {size(stored)} in the queue store"
    )
    tree.add(f"id {view.topic_id}{', internal' if view.internal else ''}")
    configs = ", ".join(f"{key}={value}" for key, value in sorted(view.configs.items()))
    tree.add(f"configs {configs or '(defaults)'}")
    for partition in view.partitions:
        _draw_partition(tree, partition)
    return tree


def _draw_partition(tree: Tree, view: PartitionView) -> None:
    branch = tree.add(
        f"partition {view.partition}  offsets {view.log_start}..{view.high_watermark}, leader {view.leader}, "
        f"write group {view.write_group}"
    )
    unsplit_from = max(view.log_start, view.split_end)
    branch.add(f"disk 1  journal      offsets {unsplit_from}..{view.end}, {size(view.unsplit_bytes)}")
    store = branch.add(
        f"disk 2  queue store  offsets {view.log_start}..{unsplit_from}, {size(view.stored_bytes)}, "
        f"{len(view.files)} files"
    )
    hidden = len(view.files) - _FILES_DRAWN_MAX
    if hidden > 0:
        store.add(f"… {hidden} older files")
    for file in view.files[max(hidden, 0) :]:
        share = f"{size(file.queue_bytes)} of {size(file.file_bytes)}"
        store.add(f"{file.kind} {file.name}  offsets {file.first_offset}..{file.last_offset}, {share}")
