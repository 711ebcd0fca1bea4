"""`mainstem topic list`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json, print_table, size
from mainstem.console.views.of_topics import TopicSummary

if TYPE_CHECKING:
    from mainstem.cli.topic.view import TopicLine


@click.command("list")
@click.option("--internal", is_flag=True, help="Also list internal topics.")
@options.both
@options.as_json
def command(internal: bool, bootstrap: str, http: str, as_json: bool) -> None:
    """List the topics, their replicas and, where HTTP answers, the bytes they hold on each disk.

    REPLICAS says how many nodes keep each partition, OUT OF SYNC how many partitions have a replica that does not keep
    up with its leader.
    """
    from mainstem.cli.clients import kafka_node
    from mainstem.cli.topic import view

    topics = [topic for topic in view.lines(kafka_node.admin(bootstrap)) if internal or not topic.internal]
    if topics:
        node = HttpNode(http)
        seen = node.get_or_tell("/v1/topics", dict[str, list[TopicSummary]], "bytes are left out")
        if seen is not None:
            topics = view.with_bytes(topics, seen["topics"])
            if all(topic.unsplit_bytes is None for topic in topics):
                node.tell("knows none of these topics: another cluster?", "bytes are left out")
    if as_json:
        print_json({"topics": topics})
        return
    print_table(
        ["~TOPIC", ">PARTITIONS", ">REPLICAS", ">OUT OF SYNC", ">JOURNAL", ">QUEUE STORE"],
        map(_row, topics),
        empty="no topics",
    )


def _row(topic: TopicLine) -> Sequence[object]:
    return (
        topic.name, topic.partitions, topic.replication_factor, topic.under_replicated_partitions,
        size(topic.unsplit_bytes), size(topic.stored_bytes),
    )  # fmt: skip
