"""`mainstem bench consume`: read a topic as fast as it goes.

Each consumer has a thread. Alone, the consumers share the partitions out between them; with `--group` the node
does. The end is that of each partition as of the start, so that a reading ends while others write; `--follow` has
none.
"""

from __future__ import annotations

import time
from typing import Any

import click

from mainstem.cli.bench.bench_topic import DEFAULT
from mainstem.cli.bench.ending import SECONDS_MAX, Interruption, Positive
from mainstem.cli.bench.live_line import LiveLine, progress_option
from mainstem.cli.bench.reading import BenchReading
from mainstem.cli.bench.summary import per_second, speeds
from mainstem.cli.clients import kafka_node
from mainstem.cli.errors import CommandFailed
from mainstem.cli.parameters import options, position
from mainstem.cli.terminal.connection_news import ConnectionNews
from mainstem.cli.terminal.output import counted, print_fields, print_json

_TURN_SECONDS = 0.1
"""How often the progress is looked at, and by how much `--seconds` and Ctrl-C may be late."""


@click.command("consume")
@click.option("-t", "--topic", default=DEFAULT, show_default=True, help="The topic to read.")
@click.option(
    "--from",
    "start",
    type=click.Choice(["beginning", "end"]),
    default="beginning",
    show_default=True,
    help="Where to begin. From the end on, the command reads what comes, until another limit or Ctrl-C.",
)
@click.option("-n", "--records", type=click.IntRange(min=1), metavar="N", help="End after this many records…")
@click.option("--seconds", type=Positive(SECONDS_MAX), help="…or this many seconds, whichever comes first.")
@click.option("-f", "--follow", is_flag=True, help="Wait for new records at the end, until another limit or Ctrl-C.")
@click.option(
    "--consumers",
    type=click.IntRange(1, 64),
    metavar="N",
    default=1,
    show_default=True,
    help="How many clients read.",
)
@click.option(
    "-g",
    "--group",
    help="Read as members of this consumer group, which commits and reads on where it stands.",
)
@progress_option
@options.kafka_only
@options.as_json
def command(
    topic: str,
    start: str,
    records: int | None,
    seconds: float | None,
    follow: bool,
    consumers: int,
    group: str | None,
    progress: bool | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Read a topic to its end as of now, as fast as it goes.

    Ctrl-C ends the run and prints the summary so far.
    """
    admin = kafka_node.admin(bootstrap)
    partitions = position.partitions_of(admin, topic)
    bounds = position.bounds(admin, [(topic, partition) for partition in partitions])
    news = ConnectionNews(bootstrap)
    settings: dict[str, Any] = kafka_node.settings(
        bootstrap,
        **{
            # A consumer must name a group even when it assigns itself; this one never joins nor commits.
            "group.id": group or "mainstem-bench-unused",
            "enable.auto.commit": group is not None,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest" if start == "beginning" else "latest",
            "socket.nagle.disable": True,
        },
    )
    reading = BenchReading(
        topic,
        ends={partition: end for (_, partition), (_, end) in bounds.items()},
        follows=follow or start == "end",
        records_max=records,
        news=news,
    )
    cpu_seconds = time.process_time()
    with Interruption() as interruption, LiveLine(progress) as line:
        if group is None:
            offsets = position.resolved(admin, bounds, position.Position(position.Anchor(start)))
            reading.assign(settings, {partition: offset for (_, partition), offset in offsets.items()}, consumers)
        else:
            reading.join(settings, consumers)
        deadline = time.monotonic() + (seconds or SECONDS_MAX)
        while not reading.wait(_TURN_SECONDS) and not interruption.came and time.monotonic() < deadline:
            line.offer(reading.records, reading.bytes, lambda: f"{reading.records:,} records so far")
        reading.finish()
    cpu_seconds = time.process_time() - cpu_seconds
    if as_json:
        print_json(
            {
                "topic": topic,
                "partitions": len(partitions),
                "consumers": len(reading.members),
                "records": reading.records,
                "bytes": reading.bytes,
                "seconds": round(reading.seconds, 3),
                "mb_per_second": per_second(reading.bytes / 1e6, reading.seconds),
                "records_per_second": per_second(reading.records, reading.seconds),
                "client_cpu_seconds": round(cpu_seconds, 3),
                "interrupted": interruption.came,
                "error": reading.failure,
            }
        )
    else:
        source = f"{topic}, {counted(len(partitions), 'partition')}"
        print_fields(
            {
                "read": f"{reading.records:,} records of {source}, in {reading.seconds:.3f} s",
                "speed": speeds(reading.bytes, reading.records, reading.seconds),
                "client CPU": f"{cpu_seconds:.3f} s",
            }.items()
        )
    if reading.failure is not None:
        raise CommandFailed(reading.failure)
