"""`mainstem store export`"""

from __future__ import annotations

import time
from pathlib import Path

import click

from mainstem.cli.errors import CommandFailed, RequestRefused
from mainstem.cli.parameters import names, options
from mainstem.cli.terminal.output import counted, duration, print_json, print_table, print_text, size
from mainstem.cli.terminal.progress_line import ProgressLine, progress_option

SEGMENT_BYTES = 1 << 30
"""Kafka's default for `segment.bytes`."""
SEGMENT_BYTES_MIN = 1 << 10


@click.command("export")
@click.argument("topic", type=names.TOPIC)
@click.option(
    "--to",
    "root",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write a directory for each partition below this one.",
)
@options.partitions("Write only this partition; repeatable.")
@click.option(
    "--segment-bytes",
    type=options.SizeType(SEGMENT_BYTES_MIN, (1 << 31) - 1),
    metavar="SIZE",
    help="Begin a new file at this size. Default: the topic's segment.bytes.",
)
@progress_option
@options.kafka_only
@options.as_json
def command(
    topic: str,
    root: Path,
    partitions: tuple[int, ...],
    segment_bytes: int | None,
    progress: bool | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Write a topic as the files in which Kafka keeps it, for Kafka's own tools.

    DIR gets a directory TOPIC-N for each partition, with segments (.log), their indexes (.index, .timeindex) and
    leader-epoch-checkpoint. Batches are those of the cluster byte by byte, with their offsets, from the first one to
    the end of the partition when its turn comes; they are fetched as any consumer would. Nothing is written over. A
    directory has its name when it is whole; one that ends in .partial is not.
    """
    from mainstem.cli.clients.kafka_node import admin, topic_config
    from mainstem.cli.store.exporting.queue_copy import (
        TopicSource,
        Written,
        directory_of,
        export_partition,
        refuse_existing,
    )

    source = TopicSource(bootstrap, topic)
    try:
        there = list(source.places.leaders)
        if unknown := set(partitions) - set(there):
            raise RequestRefused(f"topic {topic} has no partition {min(unknown)}; it has {len(there)}")
        chosen = sorted(set(partitions)) or there
        for partition in chosen:
            refuse_existing(directory_of(root, topic, partition))
        if segment_bytes is None:
            segment_bytes = int(topic_config(admin(bootstrap), topic, "segment.bytes") or SEGMENT_BYTES)
        root.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        done: list[Written] = []
        written = 0
        with ProgressLine(progress) as line:

            def told(count: int) -> None:
                nonlocal written
                written += count
                line.offer(
                    written, lambda: f"{size(written)}, {len(done):,} of {counted(len(chosen), 'partition')} done"
                )

            for partition in chosen:
                done.append(export_partition(source, partition, root, segment_bytes, told))
    except OSError as error:
        raise CommandFailed(f"{error.filename or root}: {error.strerror or error}") from error
    finally:
        source.close()
    seconds = time.monotonic() - started
    if as_json:
        partitions_done = [partition._asdict() for partition in done]
        print_json({"topic": topic, "seconds": round(seconds, 3), "partitions": partitions_done})
        return
    print_table(
        ["~DIRECTORY", ">START", ">END", ">SEGMENTS", ">BATCHES", ">SIZE"],
        [(it.directory, it.first_offset, it.end_offset, it.segments, f"{it.batches:,}", size(it.bytes)) for it in done],
        empty=f"topic {topic} has no partitions",
    )
    print_text(f"exported {size(written)} in {duration(seconds)}")
