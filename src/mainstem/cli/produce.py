"""`mainstem produce`: lines of stdin or of files, JSON lines, or whole files, as messages of a topic."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import click

from mainstem.cli.errors import CommandFailed
from mainstem.cli.parameters import names, options
from mainstem.cli.terminal.connection_news import ConnectionNews
from mainstem.cli.terminal.output import counted, duration, print_json, size, stderr

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")

_FLUSH_SECONDS = 0.5
_LOCAL_WAIT_SECONDS = 1.0
"""How long a full send queue is waited for before trying again."""
_BATCH_BYTES_MAX = 1_000_000
"""The client's default."""
_REQUEST_BYTES_MAX = 100 * 1024 * 1024
"""The largest message the client lets through: the node's own limit is to decide."""


class Piece(NamedTuple):
    """One message to be, and the place it came from, for people."""

    key: bytes | None
    value: bytes | None
    place: str
    where: dict[str, Any] = {}  # noqa: RUF012 — read only
    """The parts of this message alone, as the client's `produce` takes it: headers, timestamp, partition."""
    wrong: str = ""
    """Why it cannot be sent."""

    @property
    def size(self) -> int:
        return len(self.value or b"") + len(self.key or b"")


@click.command("produce")
@click.argument("topic", type=names.TOPIC)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--whole", is_flag=True, help="Send each file as one message, instead of one message per line.")
@click.option(
    "--json-lines",
    is_flag=True,
    help="Read each line as a JSON object with key, value, headers and timestamp, as `mainstem consume --json` "
    "prints them.",
)
@click.option(
    "--keep-partitions",
    is_flag=True,
    help="With --json-lines, send each message to the partition that its object names.",
)
@click.option(
    "-K",
    "--key-separator",
    metavar="TEXT",
    help="Split each line into key and value at the first place where it has this text.",
)
@click.option("-k", "--key", help="Give every message this key.")
@click.option(
    "-H",
    "--header",
    "headers",
    metavar="KEY=VALUE",
    multiple=True,
    help="Give every message this header; repeatable.",
)
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(min=0),
    metavar="N",
    help="Send every message to this partition. Default: the hash of its key decides.",
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(COMPRESSIONS),
    default="none",
    show_default=True,
    help="Compress batches of messages like this.",
)
@options.acks("message", "counts as sent")
@click.option(
    "--idempotent",
    is_flag=True,
    help="Have the node drop repeated messages and keep their order when requests are sent again.",
)
@click.option("--progress/--no-progress", default=None, help="Show how far it is. Default: on a terminal, for files.")
@options.kafka_only
@options.as_json
def command(
    topic: str,
    files: tuple[Path, ...],
    whole: bool,
    json_lines: bool,
    keep_partitions: bool,
    key_separator: str | None,
    key: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str,
    acks: str,
    idempotent: bool,
    progress: bool | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Send the lines of stdin or of FILES to a topic.

    - is stdin. The command ends when the node has acknowledged or refused every message.
    """
    if json_lines and (whole or key is not None or key_separator is not None):
        raise click.UsageError("--json-lines excludes --whole, --key and --key-separator: the objects have the keys")
    if keep_partitions and (not json_lines or partition is not None):
        raise click.UsageError("--keep-partitions needs --json-lines and excludes --partition")
    if idempotent and acks != "all":
        raise click.UsageError("--idempotent needs --acks all")
    if key is not None and key_separator is not None:
        raise click.UsageError("--key and --key-separator exclude each other")
    if key_separator == "":
        raise click.UsageError("--key-separator is empty")
    sources = [path for path in files if str(path) != "-"]
    shown = progress if progress is not None else sys.stderr.isatty() and bool(sources)
    sender = Sender(
        bootstrap,
        topic,
        partition=partition,
        headers=[(key, os.fsencode(value)) for key, value in options.pairs(headers, "--header").items()],
        settings={
            "acks": acks,
            "compression.type": compression,
            "enable.idempotence": idempotent,
            "message.max.bytes": _REQUEST_BYTES_MAX,
            "linger.ms": 5,
            "batch.size": _batch_bytes(bootstrap, topic),
        },
    )
    pieces: Iterator[Piece]
    if json_lines:
        pieces = (_json_piece(line, place, keep_partitions) for line, place in _lines(files))
    else:
        pieces = _pieces(files, whole, key_separator, key)
    started = time.monotonic()
    try:
        if shown:
            _send_with_progress(sender, pieces, sum(path.stat().st_size for path in sources))
        else:
            for piece in pieces:
                sender.send(piece)
    finally:
        sender.finish()
    seconds = time.monotonic() - started
    if as_json:
        print_json(
            {
                "topic": topic,
                "acknowledged": sender.acknowledged,
                "failed": sender.failed,
                "bytes": sender.bytes_sent,
                "seconds": round(seconds, 3),
                "error": sender.first_error,
            }
        )
    else:
        sent = f"{counted(sender.acknowledged, 'message')}, {size(sender.bytes_sent)}"
        stderr().print(f"produced {sent} to {topic} in {duration(seconds)}")
    if sender.failed:
        total = sender.failed + sender.acknowledged
        raise CommandFailed(
            f"{sender.failed} of {counted(total, 'message')} {'was' if sender.failed == 1 else 'were'} "
            f"not acknowledged; the first: {sender.first_error}"
        )


class Sender:
    """A confluent-kafka producer that counts what came of each message, and keeps the place of the first that
    was refused."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        partition: int | None,
        headers: list[tuple[str, bytes]],
        settings: dict[str, object],
    ) -> None:
        from confluent_kafka import Producer

        from mainstem.cli.clients import kafka_node

        self._news = ConnectionNews(bootstrap)
        self._producer = Producer(kafka_node.settings(bootstrap, **settings, error_cb=self._news.on_error))
        self._topic = topic
        self._where: dict[str, Any] = {} if partition is None else {"partition": partition}
        self._headers = headers
        self.acknowledged = 0
        self.failed = 0
        self.bytes_sent = 0
        self.first_error: str | None = None

    def send(self, piece: Piece) -> None:
        """Queue one message; waits while the client's queue is full. A refused message is counted."""
        from confluent_kafka import KafkaException

        if piece.wrong:
            self._count_failure(piece.place, piece.wrong)
            return
        where = self._where | piece.where
        if headers := [*self._headers, *piece.where.get("headers", ())]:
            where["headers"] = headers
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    piece.value,
                    piece.key,
                    on_delivery=partial(self._delivered, piece.place),
                    **where,
                )
            except BufferError:
                self._producer.poll(_LOCAL_WAIT_SECONDS)
                continue
            except KafkaException as error:
                self._count_failure(f"{piece.place} ({size(piece.size)})", error.args[0].str())
            self._producer.poll(0)
            return

    def finish(self) -> None:
        """Wait until every message is acknowledged or given up (the client's delivery timeout)."""
        while self._producer.flush(_FLUSH_SECONDS):
            pass

    def _delivered(self, place: str, error: Any, message: Any) -> None:
        if error is None:
            self._news.is_back()
            self.acknowledged += 1
            self.bytes_sent += len(message)
        else:
            self._count_failure(f"{place} ({size(len(message))})", error.str())

    def _count_failure(self, place: str, reason: str) -> None:
        self.failed += 1
        self.first_error = self.first_error or f"{place}: {reason}"


def _batch_bytes(bootstrap: str, topic: str) -> int:
    """How much goes into one batch: no more than the topic takes, since a batch is refused as a whole and one long
    line would take its neighbours with it. A line that is longer goes alone."""
    from mainstem.cli.clients import kafka_node

    limit = kafka_node.topic_config(kafka_node.admin(bootstrap), topic, "max.message.bytes")
    if limit is None or not limit.isdecimal():
        return _BATCH_BYTES_MAX
    return min(max(int(limit), 1), _BATCH_BYTES_MAX)


def _send_with_progress(sender: Sender, pieces: Iterator[Piece], total: int) -> None:
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr(), transient=True) as progress:
        task = progress.add_task("", total=total)
        for piece in pieces:
            sender.send(piece)
            progress.advance(task, piece.size + 1)


def _pieces(files: tuple[Path, ...], whole: bool, key_separator: str | None, key: str | None) -> Iterator[Piece]:
    # Arguments come as text; the bytes they were typed as are what counts.
    separator = None if key_separator is None else os.fsencode(key_separator)
    common = None if key is None else os.fsencode(key)
    for content, place in _wholes(files) if whole else _lines(files):
        yield _piece(content, separator, common, place)


def _json_piece(line: bytes, place: str, keep_partition: bool) -> Piece:
    from mainstem.cli.terminal.json_lines import message_of

    try:
        message = message_of(line)
        if keep_partition and message.partition is None:
            raise ValueError("partition is missing, and --keep-partitions needs it")
    except ValueError as error:
        return Piece(None, None, place, wrong=str(error))
    where: dict[str, Any] = {"headers": message.headers}
    if message.timestamp_ms is not None:
        where["timestamp"] = message.timestamp_ms
    if keep_partition:
        where["partition"] = message.partition
    return Piece(message.key, message.value, place, where)


def _lines(files: tuple[Path, ...]) -> Iterator[tuple[bytes, str]]:
    """Every line of the files, and the place it stands at."""
    for stream, name in _streams(files):
        number = 0
        while line := stream.readline(_REQUEST_BYTES_MAX + 1):
            number += 1
            place = f"line {number} of {name}"
            yield _bounded(line.removesuffix(b"\n"), place), place


def _wholes(files: tuple[Path, ...]) -> Iterator[tuple[bytes, str]]:
    """The content of every file, and its name."""
    for stream, name in _streams(files):
        yield _bounded(stream.read(_REQUEST_BYTES_MAX + 1), name), name


def _streams(files: tuple[Path, ...]) -> Iterator[tuple[IO[bytes], str]]:
    for path in files or (Path("-"),):
        if str(path) == "-":
            yield sys.stdin.buffer, "stdin"
        else:
            with path.open("rb") as stream:
                yield stream, str(path)


def _bounded(content: bytes, place: str) -> bytes:
    if len(content) > _REQUEST_BYTES_MAX:
        raise CommandFailed(f"{place} is longer than {size(_REQUEST_BYTES_MAX)}, which no node takes; ended there")
    return content


def _piece(content: bytes, separator: bytes | None, key: bytes | None, place: str) -> Piece:
    """A line without the separator is a message without a key."""
    if separator is not None:
        before, found, after = content.partition(separator)
        return Piece(before, after, place) if found else Piece(None, content, place)
    return Piece(key, content, place)
