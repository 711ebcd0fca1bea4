"""`mainstem store retain`"""

from __future__ import annotations

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import counted, print_json, print_text, size
from mainstem.console.views.asked_changes import RetainRequest
from mainstem.console.views.of_store import RetainedView

TIMEOUT_SECONDS = 600.0
"""A round under way ends first, and the node reads the indexes of files that it has not looked at yet."""


@click.command("retain")
@options.http_only
@options.token
@options.as_json
def command(http: str, token: str | None, as_json: bool) -> None:
    """Apply the topics' retention now, in place of at the next round, and say which files went.

    Retention goes by itself (storage.retention_check_seconds): this is for who has just lowered retention.ms,
    retention.bytes or retention.records, or deleted a topic, and wants the room. The node moves the log starts of the
    partitions that it leads, and drops what it has on its disk 2 without a live record; ask each node of a cluster.
    Files that have some live records left stay: merges write them anew once half of them is dead.
    """
    view = HttpNode(http, token, timeout_seconds=TIMEOUT_SECONDS).ask("/v1/store/retain", RetainRequest(), RetainedView)
    if as_json:
        print_json(view)
        return
    print_text(f"{counted(view.files, 'file')} of disk 2 went, {size(view.bytes)}")
    if view.remote_files:
        print_text(f"{counted(view.remote_files, 'file')} of the object store went, {size(view.remote_bytes)}")
