"""`mainstem split status`"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import counted, duration, print_fields, print_json, print_table, size
from mainstem.console.views.of_split import SplitView


@click.command("status")
@options.http_only
@options.as_json
def command(http: str, as_json: bool) -> None:
    """Show committed, split and pruned positions, lag and the last progress.

    Positions are block indexes of a write group's log. The splitter reads committed blocks; split blocks are in the
    queue store; pruned blocks have left the journal. The command names damaged or missing runs of this node's queue
    store until another replica has mended them or an operator has restored them.
    """
    view = HttpNode(http).get("/v1/split", SplitView)
    if as_json:
        print_json(view)
        return
    groups = sorted(view.groups.items(), key=lambda item: int(item[0]))
    print_table(
        [">GROUP", ">COMMITTED", ">SPLIT", ">PRUNED", ">LAG", ">AGE", ">FILES"],
        [
            (
                number, group.committed, group.split, group.pruned, size(group.lag_bytes),
                duration(group.lag_seconds), group.files,
            )
            for number, group in groups
        ],
        empty="no write groups",
    )  # fmt: skip
    click.echo()
    print_fields(_fields(view))


def _fields(view: SplitView) -> Iterator[tuple[str, str]]:
    yield "splitter", view.splitter
    if view.lease is None:
        yield "lease", "no splitter holds it"
    else:
        left = duration(view.lease.expires_in_seconds)
        yield "lease", f"{view.lease.holder}, fence {view.lease.fence}, {left} left"
    for waiting in view.damaged_blocks:
        since = duration(waiting.seconds)
        yield "waits", f"write group {waiting.group} at block {waiting.block}, for {since}: {waiting.fault}"
    for page in view.damaged_producers:
        state = f"{page.lost} are lost" if page.lost else f"replicas are asked, for {duration(page.seconds)}"
        yield "producers", f"write group {page.group}: {state}: {page.fault}"
    yield "last error", view.last_error or "none"
    for number, group in sorted(view.groups.items(), key=lambda item: int(item[0])):
        if group.waits_for:
            yield "waiting", f"write group {number}: {group.waits_for}"
    for file in view.damaged_files:
        yield "damaged file", f"{file.name}: {file.reason}"
    if view.last_progress is None:
        yield "last progress", "none yet"
    else:
        yield from _progress(view.last_progress)


def _progress(figures: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The figures of the last trigger. Those that this version does not know follow by their own names."""
    left = dict(figures)
    batch, started = left.pop("batch_id", None), left.pop("timestamp", None)
    yield "last progress", f"trigger {batch}" + (f", started {started}" if started else "")
    split = [
        counted(count, noun, plural)
        for key, noun, plural in (("slices", "slice", ""), ("batches", "batch", "batches"))
        if isinstance(count := left.pop(key, None), int)
    ]
    if isinstance(amount := left.pop("bytes", None), int):
        split.append(size(amount))
    if split:
        yield "", ", ".join(split)
    if dropped := left.pop("dropped_batches", None):
        yield "", f"{dropped} batches dropped, of topics that no longer exist"
    if isinstance(total := left.pop("split_bytes_total", None), int):
        yield "", f"{size(total)} since the splitter started"
    phases = left.pop("duration_ms", None)
    if isinstance(phases, Mapping) and phases:
        yield "", "took " + ", ".join(f"{name} {duration(ms / 1000)}" for name, ms in phases.items())
    if spark := left.pop("spark", None):
        yield "", f"on {spark}"
    for key, value in left.items():
        yield "", f"{key}: {value}"
