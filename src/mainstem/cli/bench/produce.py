"""`mainstem bench produce`: records as fast as they go, or at a rate, and how long their acknowledgement took."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

import click

from mainstem.cli.bench.bench_topic import BenchTopic, bench_topic, topic_options
from mainstem.cli.bench.ending import (
    LINGER_MS_MAX,
    RATE_MAX,
    SECONDS_DEFAULT,
    SECONDS_MAX,
    Interruption,
    Positive,
    RunLimits,
    failure_of,
    limits,
)
from mainstem.cli.bench.live_line import LiveLine, progress_option
from mainstem.cli.bench.load import Load, random_texts
from mainstem.cli.bench.sender import BUFFER_BYTES, RECORD_BYTES_MAX, BenchSender, client_settings
from mainstem.cli.bench.summary import (
    errors_text,
    per_second,
    percentiles_ms,
    percentiles_text,
    progress_text,
    speeds,
)
from mainstem.cli.bench.tally import Tally
from mainstem.cli.clients import kafka_node
from mainstem.cli.errors import CommandFailed
from mainstem.cli.parameters import options
from mainstem.cli.produce import COMPRESSIONS
from mainstem.cli.terminal.connection_news import ConnectionNews
from mainstem.cli.terminal.output import counted, print_fields, print_json, size

PARTITIONS_DEFAULT = 16


@click.command("produce")
@topic_options(partitions_default=PARTITIONS_DEFAULT)
@click.option(
    "-s",
    "--record-bytes",
    type=options.SizeType(1, RECORD_BYTES_MAX),
    default=1024,
    show_default=True,
    help="Size of a record, such as 1024 or 16kB.",
)
@click.option("-n", "--records", type=click.IntRange(min=1), metavar="N", help="End after this many records…")
@click.option("--bytes", "total_bytes", type=options.SizeType(1, sys.maxsize), help="…or this many bytes, such as 2GB…")
@click.option(
    "--seconds",
    type=Positive(SECONDS_MAX),
    help=f"…or this many seconds, whichever comes first.  [default: {SECONDS_DEFAULT:.0f} where none is given]",
)
@click.option(
    "--rate",
    type=Positive(RATE_MAX),
    help="Records per second, each sent when it is due. Default: as fast as they go.",
)
@click.option(
    "--producers",
    type=click.IntRange(1, 64),
    metavar="N",
    default=1,
    show_default=True,
    help="How many clients send.",
)
@options.acks("record", "is acknowledged")
@click.option(
    "--idempotent/--no-idempotent",
    default=False,
    show_default=True,
    help="Have the node drop repeated records and keep their order.",
)
@click.option(
    "--linger-ms",
    type=click.FloatRange(0, LINGER_MS_MAX),
    metavar="NUMBER",
    default=5,
    show_default=True,
    help="How long a client waits for more records of a batch.",
)
@click.option(
    "--batch-bytes",
    type=options.SizeType(1, RECORD_BYTES_MAX),
    default=1_000_000,
    show_default=True,
    help="Size of the largest batch.",
)
@click.option(
    "--buffer-bytes",
    type=options.SizeType(1024, 1 << 30),
    default=BUFFER_BYTES,
    show_default=True,
    help="How much may be in flight, all clients together.",
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(COMPRESSIONS),
    default="none",
    show_default=True,
    help="Compress batches like this.",
)
@progress_option
@options.kafka_only
@options.as_json
def command(
    topic: str,
    partitions: int | None,
    keep: bool | None,
    record_bytes: int,
    records: int | None,
    total_bytes: int | None,
    seconds: float | None,
    rate: float | None,
    producers: int,
    acks: str,
    idempotent: bool,
    linger_ms: float,
    batch_bytes: int,
    buffer_bytes: int,
    compression: str,
    progress: bool | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Send records of random letters, as fast as they go or at a rate.

    The partitions get records in turn. Ctrl-C ends the run and prints the summary so far.
    """
    if idempotent and acks != "all":
        raise click.UsageError("--idempotent needs --acks all")
    admin = kafka_node.admin(bootstrap)
    news = ConnectionNews(bootstrap)
    settings = kafka_node.settings(
        bootstrap,
        **client_settings(record_bytes, buffer_bytes, producers),
        **{
            "acks": acks,
            "enable.idempotence": idempotent,
            "linger.ms": linger_ms,
            "batch.size": batch_bytes,
            "compression.type": compression,
            "error_cb": news.on_error,
        },
    )
    tally = Tally(news)
    ends = limits(records, total_bytes, seconds, record_bytes)
    with bench_topic(admin, topic, partitions=partitions, partitions_default=PARTITIONS_DEFAULT, keep=keep) as target:
        cpu_seconds = time.process_time()
        with Interruption() as interruption, LiveLine(progress) as line:
            took = _send(target, settings, tally, ends, interruption, line, record_bytes, producers, rate)
        cpu_seconds = time.process_time() - cpu_seconds
        if as_json:
            print_json(_data(target, tally, record_bytes, took, cpu_seconds, interruption.came))
        else:
            _print_summary(target, tally, record_bytes, took, cpu_seconds)
        failure = failure_of(tally, interruption, admin, topic)
        if failure is not None:
            raise CommandFailed(failure)


def _send(
    target: BenchTopic,
    settings: dict[str, Any],
    tally: Tally,
    ends: RunLimits,
    interruption: Interruption,
    line: LiveLine,
    record_bytes: int,
    producers: int,
    rate: float | None,
) -> float:
    """The run; the seconds it took."""
    texts = random_texts(record_bytes)
    sender = BenchSender(target.name, settings, producers=producers, threads=rate is not None)
    load = Load(
        sender,
        tally,
        # Every client sends to every partition, as many programs would.
        partition_of=lambda number: number // producers % target.partitions,
        value_of=lambda number, due_ns: texts[number % len(texts)],
        interruption=interruption,
        on_turn=lambda: line.offer(tally.acknowledged, tally.acknowledged * record_bytes, lambda: progress_text(tally)),
    )
    with contextlib.closing(sender):
        sender.connect()
        return load.run(ends, rate=rate)


def _data(
    target: BenchTopic, tally: Tally, record_bytes: int, took: float, cpu_seconds: float, interrupted: bool
) -> dict[str, object]:
    return {
        "topic": target.name,
        "partitions": target.partitions,
        "record_bytes": record_bytes,
        "records": tally.acknowledged,
        "failed": tally.failed,
        "unanswered": tally.in_flight,
        "bytes": tally.acknowledged * record_bytes,
        "seconds": round(took, 3),
        "mb_per_second": per_second(tally.acknowledged * record_bytes / 1e6, took),
        "records_per_second": per_second(tally.acknowledged, took),
        "latency_ms": percentiles_ms(tally.latency),
        "errors": dict(tally.errors),
        "client_cpu_seconds": round(cpu_seconds, 3),
        "interrupted": interrupted,
    }


def _print_summary(target: BenchTopic, tally: Tally, record_bytes: int, took: float, cpu_seconds: float) -> None:
    partitions = counted(target.partitions, "partition")
    sent = f"{tally.acknowledged:,} records of {size(record_bytes)} to {target.name}, {partitions}"
    speed = speeds(tally.acknowledged * record_bytes, tally.acknowledged, took)
    print_fields(
        {
            "produced": f"{sent}, in {took:.3f} s",
            "speed": speed,
            "latency": percentiles_text(tally.latency),
            "errors": errors_text(tally),
            "client CPU": f"{cpu_seconds:.3f} s",
        }.items()
    )
