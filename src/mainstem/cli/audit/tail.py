"""`mainstem audit tail`: the youngest records of the audit's topic, of all partitions together, oldest first.

Clients choose names and client ids: what is not printable in them is escaped, so that no record writes to the terminal
anything but a line.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from mainstem.cli.consume import END_WAIT_MS_MAX, FOLLOW_WAIT_MS_MAX, TAIL_MAX, Reading
from mainstem.cli.errors import RequestRefused
from mainstem.cli.parameters import options, position
from mainstem.cli.terminal.connection_news import ConnectionNews
from mainstem.security.audit.audit_log import AUDIT_TOPIC, DROPPED
from mainstem.security.audit.config import EVENTS

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

COLUMNS = (
    ("TIME", 23), ("EVENT", 14), ("WHO", 20), ("FROM", 15), ("OPERATION", 24), ("RESOURCE", 24), ("OUTCOME", 7)
)  # fmt: skip
"""Names and least widths. A longer text moves the rest of its line to the right: nothing is cut."""

BATCH = 500


class SinceType(position.PositionType):
    """An age, a time, or `beginning`: partitions have offsets of their own."""

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> position.Position:
        found = super().convert(value, param, context)
        if found.anchor not in (position.Anchor.BEGINNING, position.Anchor.TIME):
            self.fail(f"{value!r} is no time; expected an age such as 1h, a time, or beginning", param, context)
        return found


@click.command("tail")
@click.option(
    "--since", type=SinceType(), default="1h", show_default=True, help="An age, a time, or beginning.", metavar="WHEN"
)
@click.option("--user", "users", multiple=True, metavar="NAME", help="Only of this user or principal; repeatable.")
@click.option(
    "--event", "events", multiple=True, type=click.Choice([*EVENTS, DROPPED]), help="Only of this kind; repeatable."
)
@click.option(
    "-n",
    "--last",
    type=click.IntRange(1, TAIL_MAX),
    default=1000,
    show_default=True,
    metavar="N",
    help="The N youngest records at most.",
)
@click.option("-f", "--follow", is_flag=True, help="Wait for new records at the end, until Ctrl-C.")
@options.kafka_only
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def command(
    since: position.Position,
    users: tuple[str, ...],
    events: tuple[str, ...],
    last: int,
    follow: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Show the youngest audit records, oldest first.

    It takes READ and DESCRIBE on the topic __audit.
    """
    from mainstem.cli.clients import kafka_node

    admin = kafka_node.admin(bootstrap)
    partitions = _partitions_of_audit(admin)
    news = ConnectionNews(bootstrap)
    settings = kafka_node.settings(
        bootstrap,
        **{
            # A consumer must name a group even when it assigns itself; this one never joins nor commits.
            "group.id": "mainstem-cli-unused",
            "enable.auto.commit": False,
            "error_cb": news.on_error,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": FOLLOW_WAIT_MS_MAX if follow else END_WAIT_MS_MAX,
            "auto.offset.reset": "earliest",
        },
    )
    principals = frozenset(name if ":" in name else f"User:{name}" for name in users)
    reading = Reading(
        AUDIT_TOPIC,
        _as_line if as_json else _as_row,
        news,
        commits=False,
        batch_size=BATCH,
        wanted=_wanted(principals, frozenset(events)),
    )
    consumer = reading.begin(settings)
    try:
        ranges = position.bounds(admin, [(AUDIT_TOPIC, partition) for partition in partitions])
        if not as_json:
            click.echo("  ".join(name.ljust(width) for name, width in COLUMNS).rstrip())
        starts = position.resolved(admin, ranges, since)
        reading.assign(starts, {queue: end for queue, (_, end) in ranges.items()})
        reading.run_tail(last, follows=follow)
    finally:
        consumer.close()
    if not reading.count and not follow:
        click.echo("mainstem: no such records", err=True)


def _partitions_of_audit(admin: AdminClient) -> list[int]:
    """Raises RequestRefused, with what to switch on where there is no audit."""
    try:
        return position.partitions_of(admin, AUDIT_TOPIC)
    except RequestRefused as error:
        if "UNKNOWN_TOPIC_OR_PART" not in str(error):
            raise
    raise RequestRefused(
        f"there is no audit to read: nodes write the topic {AUDIT_TOPIC} with audit.enabled = true, unless "
        "audit.topic is false"
    )


def record_of(message: Any) -> Mapping[str, Any]:
    """The record that a message of the topic holds; one that is no record, of a later version perhaps, holds its
    text."""
    try:
        found = json.loads(message.value() or b"null")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"detail": repr(message.value())}


def _wanted(principals: frozenset[str], events: frozenset[str]) -> Callable[[Any], bool]:
    """Whether a message is asked for; nothing named is all."""

    def wanted(message: Any) -> bool:
        record = record_of(message)
        return (not principals or record.get("principal") in principals) and (
            not events or record.get("event") in events
        )

    return wanted


def _as_line(message: Any) -> bytes:
    return json.dumps(record_of(message)).encode() + b"\n"


def _as_row(message: Any) -> bytes:
    return (row_of(record_of(message), message.timestamp()[1]) + "\n").encode()


def row_of(record: Mapping[str, Any], timestamp_ms: int) -> str:
    """A record as a line; `timestamp_ms` is when it was written, for one that does not say."""
    at_ms = record.get("time_ms")
    moment = datetime.datetime.fromtimestamp((at_ms if isinstance(at_ms, int) else timestamp_ms) / 1000)
    cells = [
        moment.isoformat(" ", "milliseconds"),
        *(record.get(name) or "-" for name in ("event", "principal", "host", "operation", "resource", "outcome")),
    ]
    line = "  ".join(_printable(cell).ljust(width) for cell, (_, width) in zip(cells, COLUMNS, strict=True))
    more = [
        f"{name}: {record[name]}" for name in ("detail", "client_id", "repeated", "of", "count") if record.get(name)
    ]
    return f"{line}  {_printable(', '.join(more))}".rstrip()


def _printable(value: object) -> str:
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in str(value))
