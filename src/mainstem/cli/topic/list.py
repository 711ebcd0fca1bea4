"""`mainstem topic list`"""

from __future__ import annotations

import click

from mainstem.cli import options
from mainstem.cli.http_node import HttpNode
from mainstem.cli.output import print_json, print_table, size
from mainstem.console.views import TopicSummary


@click.command("list")
@click.option("--internal", is_flag=True, help="Also list internal topics.")
@options.http
@options.as_json
def command(internal: bool, http: str, as_json: bool) -> None:
    """List the topics and the bytes they hold on each disk."""
    answer = HttpNode(http).get("/v1/topics", dict[str, list[TopicSummary]])
    topics = [topic for topic in answer["topics"] if internal or not topic.internal]
    if as_json:
        print_json({"topics": topics})
        return
    print_table(
        ["TOPIC", ">PARTITIONS", ">JOURNAL", ">QUEUE STORE"],
        [(topic.name, topic.partitions, size(topic.unsplit_bytes), size(topic.stored_bytes)) for topic in topics],
        empty="no topics",
    )
