"""`mainstem topic describe`: a topic down to the files that hold it on either disk, and their indexes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.errors import RequestRefused
from mainstem.cli.parameters import names, options
from mainstem.cli.terminal.output import counted, print_fields, print_json, print_table, print_text, size
from mainstem.console.views.of_topics import TopicView

if TYPE_CHECKING:
    from mainstem.cli.topic.view import PartitionTree, TopicTree

_FILES_SHOWN_MAX = 24
"""Files told without being asked for; `--partition` and `--json` have them all."""


@click.command("describe")
@click.argument("topic", type=names.TOPIC)
@options.partitions("Show only this partition, with all its files; repeatable.")
@options.both
@options.as_json
def command(topic: str, partitions: tuple[int, ...], bootstrap: str, http: str, as_json: bool) -> None:
    """Show a topic's partitions, offsets and, where HTTP answers, its bytes and files on each disk.

    REPLICAS are the nodes that keep a partition, IN SYNC those of them that keep up with its leader. START is a
    partition's first offset and END the offset after its last one, as its leader tells them; a partition without a
    leader has neither. The queue store on disk 2 has the offsets below
    SPLIT, or the remote tier has; the journal on disk 1 has those from there on, and may still have some below.
    Files are segments of the journal, and files of the queue store and the remote tier; INDEX counts the entries that
    their index has for the partition.
    """
    from mainstem.cli.clients import kafka_node
    from mainstem.cli.topic import view

    tree = view.tree(kafka_node.admin(bootstrap), topic)
    node = HttpNode(http)
    seen = node.get_or_tell(f"/v1/topics/{topic}", TopicView, "bytes and files are left out")
    if seen is not None:
        if seen.topic_id == tree.topic_id:
            tree = view.with_files(tree, seen)
        else:
            node.tell("has another topic of this name: another cluster?", "bytes and files are left out")
    if partitions:
        if unknown := set(partitions) - {one.partition for one in tree.partitions}:
            raise RequestRefused(f"topic {topic} has no partition {min(unknown)}; it has {len(tree.partitions)}")
        tree = view.only(tree, partitions)
    if as_json:
        print_json(tree)
    else:
        print_topic(tree, all_files=bool(partitions))


def print_topic(topic: TopicTree, *, all_files: bool) -> None:
    """The topic as text for people; what is None is left out."""
    offsets = sum((one.high_watermark or 0) - (one.log_start or 0) for one in topic.partitions if _answers(one))
    leaderless = sum(one.leader < 0 for one in topic.partitions)
    print_text(
        f"{topic.name}: {counted(len(topic.partitions), 'partition')}, {counted(offsets, 'offset')}"
        + (f", {counted(leaderless, 'partition')} without a leader" if leaderless else "")
        + "\n"
    )
    configs = ", ".join(f"{key}={value}" for key, value in sorted(topic.configs.items()))
    fields = [
        ("id", topic.topic_id + (", internal" if topic.internal else "")),
        ("replication factor", str(topic.replication_factor)),
        ("configs", configs or "all defaults"),
    ]
    if any(one.unsplit_bytes is not None for one in topic.partitions):
        fields += [
            ("journal", size(sum(one.unsplit_bytes or 0 for one in topic.partitions))),
            ("store", size(sum(one.stored_bytes or 0 for one in topic.partitions))),
        ]
    print_fields(fields)
    print_text()
    _print_replicas(topic.partitions)
    known = [one for one in topic.partitions if one.files is not None]
    if not known:
        print_table(
            [">PARTITION", ">LEADER", ">EPOCH", ">START", ">END"],
            [
                (it.partition, _leader(it), *map(_or_dash, (it.leader_epoch, it.log_start, it.high_watermark)))
                for it in topic.partitions
            ],
            empty="no partitions",
        )
        return
    print_table(
        [">PARTITION", ">LEADER", ">GROUP", ">START", ">SPLIT", ">END", ">JOURNAL", ">STORE", ">FILES"],
        map(_partition_row, topic.partitions),
        empty="no partitions",
    )
    _print_stays(known)
    files = [row for one in known for row in _file_rows(one)]
    if not files:
        return
    print_text()
    if len(files) > _FILES_SHOWN_MAX and not all_files:
        print_text(f"{counted(len(files), 'entry', 'entries')} in files; --partition N shows those of a partition")
        return
    print_table([">PARTITION", "IN", "~FILE", ">START", ">END", ">BYTES", ">INDEX"], files, empty="no files")


def _print_replicas(partitions: Sequence[PartitionTree]) -> None:
    """The nodes that keep the partitions, a line for all with the same ones; nothing where one node keeps all."""
    together: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for one in partitions:
        together.setdefault((tuple(one.replicas), tuple(one.in_sync)), []).append(one.partition)
    if len({node_id for replicas, _ in together for node_id in replicas}) < 2:
        return
    rows = [(*map(_listed, nodes), _listed(numbers)) for nodes, numbers in sorted(together.items())]
    print_table(["REPLICAS", "IN SYNC", "~PARTITIONS"], rows, empty="no partitions")
    print_text()


def _print_stays(partitions: Sequence[PartitionTree]) -> None:
    """The write groups of partitions that have moved between them; nothing where none has."""
    rows = [(one.partition, it.write_group, it.first_offset) for one in partitions for it in one.stays]
    if rows:
        print_text()
        print_table([">PARTITION", ">WAS IN GROUP", ">FROM OFFSET"], rows, empty="no partitions")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _leader(one: PartitionTree) -> object:
    return one.leader if one.leader >= 0 else "none"


def _answers(one: PartitionTree) -> bool:
    """Whether its leader has told its offsets."""
    return one.log_start is not None and one.high_watermark is not None


def _or_dash(figure: int | None) -> object:
    return "-" if figure is None else figure


def _partition_row(one: PartitionTree) -> Sequence[object]:
    """A partition that the node does not know yet has only what Kafka says."""
    if one.split_end is None or one.files is None:
        start, end = map(_or_dash, (one.log_start, one.high_watermark))
        return one.partition, _leader(one), "-", start, "-", end, "-", "-", "-"
    return (
        one.partition, _leader(one), one.write_group, _or_dash(one.log_start), max(one.log_start or 0, one.split_end),
        _or_dash(one.high_watermark), size(one.unsplit_bytes), size(one.stored_bytes),
        len(one.files) + len(one.segments or ()),
    )  # fmt: skip


def _file_rows(one: PartitionTree) -> Iterator[Sequence[object]]:
    for file in one.files or ():
        bytes_of = size(file.queue_bytes)
        yield (
            one.partition,
            file.place,
            file.name,
            file.first_offset,
            file.last_offset + 1,
            bytes_of,
            file.index_rows,
        )
    for segment in one.segments or ():
        yield (
            one.partition, "journal", segment.name, segment.first_offset, segment.last_offset + 1,
            size(segment.queue_bytes), segment.index_rows,
        )  # fmt: skip
