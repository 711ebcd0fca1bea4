"""`mainstem topic describe`: a topic as a tree, down to the files on disk 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.tree import Tree

from mainstem.cli import options
from mainstem.cli.http_node import HttpNode
from mainstem.cli.output import print_json, size, stdout
from mainstem.console.views import TopicView

if TYPE_CHECKING:
    from mainstem.cli.topic.view import PartitionTree, TopicTree

_FILES_DRAWN_MAX = 8
"""Files drawn under one partition, the newest; `--json` has them all."""


@click.command("describe")
@click.argument("topic")
@options.both
@options.as_json
def command(topic: str, bootstrap: str, http: str, as_json: bool) -> None:
    """Draw a topic: partitions, offsets and, where HTTP answers, bytes on each disk and files."""
    from mainstem.cli import kafka_node
    from mainstem.cli.topic import view

    tree = view.tree(kafka_node.admin(bootstrap), topic)
    node = HttpNode(http)
    seen = node.get_or_tell(f"/v1/topics/{topic}", TopicView, "bytes and files are left out")
    if seen is not None:
        if seen.topic_id == tree.topic_id:
            tree = view.with_files(tree, seen)
        else:
            node.tell("has another topic of this name: another cluster?", "bytes and files are left out")
    if as_json:
        print_json(tree)
    else:
        stdout().print(drawn(tree))


def drawn(topic: TopicTree) -> Tree:
    """The topic as text for people; what is None is left out."""
    offsets = sum(partition.high_watermark - partition.log_start for partition in topic.partitions)
    title = f"{topic.name}  {len(topic.partitions)} partitions, {offsets} offsets"
    if any(partition.unsplit_bytes is not None for partition in topic.partitions):
        journal = sum(partition.unsplit_bytes or 0 for partition in topic.partitions)
        stored = sum(partition.stored_bytes or 0 for partition in topic.partitions)
        title += f", {size(journal)} in the journal, {size(stored)} in the queue store"
    tree = Tree(title)
    tree.add(f"id {topic.topic_id}{', internal' if topic.internal else ''}")
    configs = ", ".join(f"{key}={value}" for key, value in sorted(topic.configs.items()))
    tree.add(f"configs {configs or '(defaults)'}")
    for partition in topic.partitions:
        _draw_partition(tree, partition)
    return tree


def _draw_partition(tree: Tree, one: PartitionTree) -> None:
    offsets = f"offsets {one.log_start}..{one.high_watermark}"
    branch = tree.add(f"partition {one.partition}  {offsets}, leader {one.leader}")
    if one.split_end is None or one.end is None or one.files is None:
        return
    branch.label = f"{branch.label}, write group {one.write_group}"
    unsplit_from = max(one.log_start, one.split_end)
    unsplit = f"offsets {unsplit_from}..{one.end} unsplit" if unsplit_from < one.end else "nothing unsplit"
    branch.add(f"disk 1  journal      {size(one.unsplit_bytes)}, {unsplit}")
    held = f", offsets {one.log_start}..{unsplit_from} in {_files(len(one.files))}" if one.files else ""
    store = branch.add(f"disk 2  queue store  {size(one.stored_bytes)}{held}")
    hidden = len(one.files) - _FILES_DRAWN_MAX
    if hidden > 0:
        store.add(f"… {_files(hidden)} that are older")
    for file in one.files[max(hidden, 0) :]:
        share = f"{size(file.queue_bytes)} of {size(file.file_bytes)}"
        store.add(f"{file.kind} {file.name}  offsets {file.first_offset}..{file.last_offset}, {share}")


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"
