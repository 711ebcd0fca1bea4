"""`mainstem bench latency`: the time from when a record is due to when a reader has it, and to when the node has
acknowledged it.

An open loop: every record is due at the time that the rate gives it, and counts from then. One record per
partition goes from end to end before the clock starts, so that connections and first fetches are not what is
measured.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import click
from confluent_kafka.admin import AdminClient, OffsetSpec

from mainstem.cli.bench.arrivals import STAMP_BYTES
from mainstem.cli.bench.bench_topic import BenchTopic, bench_topic, topic_options
from mainstem.cli.bench.ending import (
    LINGER_MS_MAX,
    RATE_MAX,
    SECONDS_DEFAULT,
    SECONDS_MAX,
    Interruption,
    Positive,
    failure_of,
)
from mainstem.cli.bench.live_line import LiveLine, progress_option
from mainstem.cli.bench.round_trip import RoundTrip
from mainstem.cli.bench.sender import BUFFER_BYTES, RECORD_BYTES_MAX, client_settings
from mainstem.cli.bench.summary import (
    errors_text,
    histogram_rows,
    milliseconds,
    per_second,
    percentiles_ms,
    percentiles_text,
    print_histogram,
    progress_text,
    quick_percentiles_text,
)
from mainstem.cli.bench.tally import Tally
from mainstem.cli.clients import kafka_node
from mainstem.cli.errors import CommandFailed
from mainstem.cli.parameters import options, position
from mainstem.cli.terminal.connection_news import LOST_SECONDS_MAX, ConnectionNews
from mainstem.cli.terminal.output import counted, print_fields, print_json, size

RECORDS_MAX = 100_000_000
"""A bit of memory each; a day at more than 1,000 per second."""
PARTITIONS_DEFAULT = 1


@click.command("latency")
@topic_options(partitions_default=PARTITIONS_DEFAULT)
@click.option(
    "-s",
    "--record-bytes",
    type=options.SizeType(STAMP_BYTES, RECORD_BYTES_MAX),
    default=128,
    show_default=True,
    help="Size of a record, such as 1024 or 16kB.",
)
@click.option(
    "--rate",
    type=Positive(RATE_MAX),
    default=1000,
    show_default=True,
    help="How many records are sent per second.",
)
@click.option(
    "--seconds",
    type=Positive(SECONDS_MAX),
    default=SECONDS_DEFAULT,
    show_default=True,
    help="How long records are sent.",
)
@options.acks("record", "is acknowledged")
@click.option(
    "--linger-ms",
    type=click.FloatRange(0, LINGER_MS_MAX),
    metavar="NUMBER",
    default=0,
    show_default=True,
    help="How long the client waits for more records of a batch.",
)
@progress_option
@options.kafka_only
@options.as_json
def command(
    topic: str,
    partitions: int | None,
    keep: bool | None,
    record_bytes: int,
    rate: float,
    seconds: float,
    acks: str,
    linger_ms: float,
    progress: bool | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Time records from being due to being acknowledged, and to being read.

    Ctrl-C ends the run and prints the summary so far."""
    records = int(rate * seconds)
    if not 0 < records <= RECORDS_MAX:
        raise click.UsageError(f"--rate × --seconds makes {records:,} records; it takes 1 to {RECORDS_MAX:,}")
    admin = kafka_node.admin(bootstrap)
    news = ConnectionNews(bootstrap)
    tally = Tally(news)
    producing = kafka_node.settings(
        bootstrap,
        **client_settings(record_bytes, BUFFER_BYTES, 1),
        **{"acks": acks, "linger.ms": linger_ms, "error_cb": news.on_error},
    )
    consuming = kafka_node.settings(
        bootstrap,
        **{
            # A consumer must name a group even when it assigns itself; this one never joins nor commits.
            "group.id": "mainstem-bench-unused",
            "enable.auto.commit": False,
            "socket.nagle.disable": True,
        },
    )
    with bench_topic(admin, topic, partitions=partitions, partitions_default=PARTITIONS_DEFAULT, keep=keep) as target:
        offsets = _ends(admin, target)
        with Interruption() as interruption, LiveLine(progress) as line:
            trip = RoundTrip(
                target,
                producing,
                consuming,
                offsets,
                interruption,
                record_bytes=record_bytes,
                records_max=records,
                tally=tally,
            )
            with contextlib.closing(trip):
                probes = Tally(news)
                if not trip.probe(probes) and not interruption.came:
                    raise CommandFailed(
                        trip.arrivals.failure
                        or failure_of(probes, interruption, admin, topic)
                        or f"what was sent to {topic} could not be read within {LOST_SECONDS_MAX:.0f} s"
                    )
                cpu_seconds = time.process_time()
                took = trip.measure(records, rate, lambda: line.offer(*_progress(trip, record_bytes)))
                cpu_seconds = time.process_time() - cpu_seconds
        if as_json:
            print_json(_data(target, trip, record_bytes, rate, took, cpu_seconds, interruption.came))
        else:
            _print_summary(target, trip, record_bytes, rate, took, cpu_seconds)
        failure = trip.arrivals.failure or failure_of(tally, interruption, admin, topic)
        if failure is None and trip.missing and not interruption.came_twice:
            failure = f"{trip.missing} of {tally.acknowledged} acknowledged records did not arrive"
        if failure is not None:
            raise CommandFailed(failure)


def _ends(admin: AdminClient, topic: BenchTopic) -> dict[int, int]:
    """Partition -> its end. Raises RequestRefused."""
    if topic.created:
        # Not asked for: this client was told a moment ago that there is no such topic, and remembers.
        return dict.fromkeys(range(topic.partitions), 0)
    queues = [(topic.name, partition) for partition in range(topic.partitions)]
    ends = position.listed(admin, queues, OffsetSpec.latest())
    return {partition: offset for (_, partition), offset in ends.items()}


def _progress(trip: RoundTrip, record_bytes: int) -> tuple[int, int, Callable[[], str]]:
    received = trip.arrivals.received
    return (
        received,
        received * record_bytes,
        lambda: f"end to end {quick_percentiles_text(trip.arrivals.latency)}; acknowledged {progress_text(trip.tally)}",
    )


def _data(
    target: BenchTopic,
    trip: RoundTrip,
    record_bytes: int,
    rate: float,
    took: float,
    cpu_seconds: float,
    interrupted: bool,
) -> dict[str, object]:
    return {
        "topic": target.name,
        "partitions": target.partitions,
        "record_bytes": record_bytes,
        "rate": rate,
        "records": trip.tally.acknowledged,
        "failed": trip.tally.failed,
        "unanswered": trip.tally.in_flight,
        "received": trip.arrivals.received,
        "missing": trip.missing,
        "repeated": trip.arrivals.repeated,
        "seconds": round(took, 3),
        "records_per_second": per_second(trip.tally.acknowledged, took),
        "end_to_end_ms": percentiles_ms(trip.arrivals.latency),
        "acknowledged_ms": percentiles_ms(trip.tally.latency),
        "histogram": [
            {"up_to_ms": milliseconds(end), "records": count} for end, count in histogram_rows(trip.arrivals.latency)
        ],
        "errors": dict(trip.tally.errors),
        "client_cpu_seconds": round(cpu_seconds, 3),
        "interrupted": interrupted,
    }


def _print_summary(
    target: BenchTopic, trip: RoundTrip, record_bytes: int, rate: float, took: float, cpu_seconds: float
) -> None:
    what = f"{trip.tally.acknowledged:,} records of {size(record_bytes)} to {target.name}"
    arrived = f"{trip.arrivals.received:,} received, {trip.missing:,} missing, {trip.arrivals.repeated:,} repeated"
    print_fields(
        {
            "sent": f"{what}, {counted(target.partitions, 'partition')}, in {took:.3f} s",
            "rate": f"{rate:,g} records/s wanted, {per_second(trip.tally.acknowledged, took) or 0:,.1f} reached",
            "arrived": arrived,
            "end to end": percentiles_text(trip.arrivals.latency),
            "acknowledged": percentiles_text(trip.tally.latency),
            "errors": errors_text(trip.tally),
            "client CPU": f"{cpu_seconds:.3f} s",
        }.items()
    )
    print_histogram(trip.arrivals.latency)
