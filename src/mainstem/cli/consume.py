"""`mainstem consume`: read a topic's messages, alone or as a member of a group.

Alone, the command reads every partition (or those named) from one position to another and commits nothing. In a group
the coordinator shares the partitions out, reading goes on where the group stands, and offsets are committed after the
messages they cover were written out: at least once. Without `--follow` it ends at the end of each partition. `--tail`
reads the last messages of each partition, keeps the youngest of all, and goes on behind them where it follows.

A node that goes away is waited for: with `--follow` until it is back, else for `LOST_SECONDS_MAX`.
"""

from __future__ import annotations

import heapq
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any

import click

from mainstem.cli.errors import NodeUnreachable, RequestRefused
from mainstem.cli.parameters import names, options, position
from mainstem.cli.terminal import message_format
from mainstem.cli.terminal.connection_news import LOST_SECONDS_MAX, ConnectionNews

_POLL_SECONDS = 0.2
"""How long a quiet topic keeps us from seeing Ctrl-C."""

FOLLOW_WAIT_MS_MAX, END_WAIT_MS_MAX = 500, 20
"""How long a node may wait for messages before it answers that there are none: the latter where that ends the run."""

_DEFAULT_FORMAT = "%s\\n"

TAIL_MAX = 100_000
"""Messages of `--tail`, all of which are held in memory at once."""

Queue = tuple[str, int]


@click.command("consume")
@click.argument("topic", type=names.TOPIC)
@options.partitions("Read only this partition; repeatable.")
@click.option(
    "--from",
    "start",
    type=position.PositionType(),
    default="beginning",
    show_default=True,
    help=f"Where to begin: {position.HELP}",
)
@click.option(
    "--until",
    type=position.PositionType(),
    help="Where to end, as --from has it: the first message that is not read. Default: the end.",
)
@click.option(
    "--tail",
    type=click.IntRange(1, TAIL_MAX),
    metavar="N",
    help="Read the N youngest messages of all partitions together, oldest first.",
)
@click.option(
    "-g",
    "--group",
    type=names.GROUP,
    help="Read as a member of this consumer group; --from counts where the group has no offset.",
)
@click.option("-n", "--max-messages", type=click.IntRange(min=1), metavar="N", help="End after this many messages.")
@click.option(
    "--batch-size",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=500,
    show_default=True,
    help="How many messages the command takes and commits at once.",
)
@click.option(
    "-F",
    "--format",
    "form",
    default=_DEFAULT_FORMAT,
    show_default=True,
    help=f"How a message is printed: {message_format.HELP}",
)
@click.option("-f", "--follow", is_flag=True, help="Wait for new messages at the end, until Ctrl-C.")
@options.kafka_only
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per line, as `mainstem produce --json-lines` reads them.",
)
def command(
    topic: str,
    partitions: tuple[int, ...],
    start: position.Position,
    until: position.Position | None,
    tail: int | None,
    group: str | None,
    max_messages: int | None,
    batch_size: int,
    form: str,
    follow: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Read the messages of a topic.

    Without --follow the command ends at the end of the topic. In a consumer group it commits what it has printed.
    """
    from mainstem.cli.clients import kafka_node

    _check_usage(
        partitions=partitions,
        start=start,
        until=until,
        tail=tail,
        group=group,
        limit=max_messages,
        follow=follow,
    )
    written = message_format.as_json_line if as_json else message_format.compiled(form)
    admin = kafka_node.admin(bootstrap)
    known = position.partitions_of(admin, topic)
    if unknown := set(partitions) - set(known):
        raise RequestRefused(f"topic {topic} has no partition {min(unknown)}; it has {len(known)}")
    news = ConnectionNews(bootstrap)
    settings = kafka_node.settings(
        bootstrap,
        **{
            # A consumer must name a group even when it assigns itself; this one never joins nor commits.
            "group.id": group or "mainstem-cli-unused",
            "enable.auto.commit": False,
            "error_cb": news.on_error,
            "enable.partition.eof": not follow or tail is not None,
            "fetch.wait.max.ms": FOLLOW_WAIT_MS_MAX if follow else END_WAIT_MS_MAX,
            "auto.offset.reset": "latest" if start.anchor is position.Anchor.END else "earliest",
        },
    )
    reading = Reading(topic, written, news, commits=group is not None, batch_size=batch_size)
    consumer = reading.begin(settings)
    try:
        if group is None:
            ranges = position.bounds(admin, [(topic, partition) for partition in partitions or known])
            if tail is not None:
                reading.assign(
                    position.resolved(admin, ranges, position.Position(position.Anchor.END, tail)),
                    {queue: end for queue, (_, end) in ranges.items()},
                )
                reading.run_tail(tail, follows=follow)
            else:
                _tell_of_other_offsets(topic, ranges, start)
                ends = None if until is None else position.resolved(admin, ranges, until)
                reading.assign(position.resolved(admin, ranges, start), ends)
                reading.run(max_messages, follows=follow)
        else:
            reading.join()
            reading.run(max_messages, follows=follow)
    finally:
        consumer.close()
    if not reading.count and not follow:
        where = f"consumer group {group} is at the end of {topic}" if group else f"{topic} has no messages there"
        click.echo(f"mainstem: nothing to read: {where}", err=True)


def _check_usage(
    *,
    partitions: tuple[int, ...],
    start: position.Position,
    until: position.Position | None,
    tail: int | None,
    group: str | None,
    limit: int | None,
    follow: bool,
) -> None:
    """Raises click.UsageError for options that contradict each other."""
    if group is not None and partitions:
        raise click.UsageError("--partition and --group exclude each other: the group shares the partitions out")
    if group is not None and start.anchor not in (position.Anchor.BEGINNING, position.Anchor.END):
        raise click.UsageError("with --group, expected --from beginning or end; see `mainstem group reset-offsets`")
    if group is not None and (until is not None or tail is not None):
        raise click.UsageError("--group excludes --until and --tail: a group reads on where it stands")
    if until is not None and follow:
        raise click.UsageError("--until and --follow exclude each other: --follow has no end")
    if tail is not None and (until is not None or limit is not None or start != (position.Anchor.BEGINNING, 0)):
        raise click.UsageError("--tail excludes --from, --until and --max-messages")


def _tell_of_other_offsets(topic: str, ranges: Mapping[Queue, tuple[int, int]], start: position.Position) -> None:
    """Say where partitions do not have the offset that --from names. Raises RequestRefused where none has."""
    if start.anchor is not position.Anchor.OFFSET:
        return
    past = [queue for queue, (_, end) in ranges.items() if start.value > end]
    if past and len(past) == len(ranges):
        longest = max(end for _, end in ranges.values())
        of = "all partitions" if len(ranges) > 1 else f"partition {past[0][1]}"
        raise RequestRefused(
            f"offset {start.value} is past the end of {of} of {topic}, which is {longest}; "
            "`--from end --follow` waits for new messages"
        )
    early = [queue for queue, (first, _) in ranges.items() if start.value < first]
    for queues, what in ((past, "end before"), (early, "begin behind")):
        if queues:
            named = ", ".join(str(partition) for _, partition in queues[:_TOLD_MAX])
            more = f" and {len(queues) - _TOLD_MAX} more" if len(queues) > _TOLD_MAX else ""
            click.echo(f"mainstem: these partitions {what} offset {start.value}: {named}{more}", err=True)


_TOLD_MAX = 10
"""Partitions named in one line."""


class Tail:
    """The youngest messages of those offered, by their timestamps."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[int, int, int, Any]] = []

    def offer(self, message: Any) -> None:
        entry = (message.timestamp()[1], message.partition(), message.offset(), message)
        (heapq.heappush if len(self._heap) < self._size else heapq.heappushpop)(self._heap, entry)

    def oldest_first(self) -> Iterable[Any]:
        return [entry[3] for entry in sorted(self._heap, key=lambda entry: entry[:3])]


class Reading:
    """One run of a consumer: takes batches, writes them out, commits, and knows when it is at the end."""

    def __init__(
        self,
        topic: str,
        written: Callable[[Any], bytes],
        news: ConnectionNews,
        *,
        commits: bool,
        batch_size: int,
        wanted: Callable[[Any], bool] = lambda message: True,
    ) -> None:
        """`wanted`: whether a message is written out."""
        self._consumer: Any = None
        self._topic = topic
        self._written = written
        self._news = news
        self._commits = commits
        self._batch_size = batch_size
        self._wanted = wanted
        self._follows = False
        self._ends: Mapping[Queue, int] = {}
        """The ends of partitions that are not read to their end."""
        self.count = 0
        """Messages written out."""
        self._open: set[int] | None = None
        """Partitions assigned that have not reached their end; None before the first assignment."""
        self._uncommitted: dict[int, int] = {}
        """Partition -> next offset, of messages written out."""
        self._committing = False
        """Whether a commit is on its way: one at a time, so that none overtakes another."""
        self._commit_failure: str | None = None
        self._stopped = False

    def begin(self, settings: dict[str, Any]) -> Any:
        """Make the consumer; the caller closes it."""
        from confluent_kafka import Consumer

        self._consumer = Consumer({**settings, "on_commit": self._committed})
        return self._consumer

    def assign(self, offsets: Mapping[Queue, int], ends: Mapping[Queue, int] | None = None) -> None:
        """Read from these offsets; to these ends, or else to the end of each partition."""
        from confluent_kafka import TopicPartition

        self._ends = ends or {}
        queues = [
            TopicPartition(*queue, offset)
            for queue, offset in offsets.items()
            if queue not in self._ends or offset < self._ends[queue]
        ]
        self._consumer.assign(queues)
        self._open = {queue.partition for queue in queues}

    def join(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked)

    def run(self, messages_max: int | None, *, follows: bool) -> None:
        """Write out messages to the end of every partition, to `messages_max`, or until SIGINT or SIGTERM. A run that
        `follows` does not end at the end of the partitions."""
        self._run(self._write, messages_max, follows=follows)

    def run_tail(self, size: int, *, follows: bool) -> None:
        """Write out the youngest `size` messages before the ends that were given to `assign`, then, if it `follows`,
        what comes behind those ends."""
        tail, ends = Tail(size), self._ends
        self._run(tail.offer, None, follows=False)
        for message in tail.oldest_first():
            self._write(message)
        sys.stdout.buffer.flush()
        if follows and not self._stopped:
            self.assign(ends)
            self._run(self._write, None, follows=True)

    def _run(self, take: Callable[[Any], None], messages_max: int | None, *, follows: bool) -> None:
        self._follows = follows
        previous = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            left = sys.maxsize if messages_max is None else messages_max
            while left > 0 and not self._stopped and (follows or self._open is None or self._open):
                left -= self._read_batch(take, min(left, self._batch_size))
            self._commit_rest()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _read_batch(self, take: Callable[[Any], None], size: int) -> int:
        taken = self._consumer.consume(size, _POLL_SECONDS)
        self._raise_commit_failure()
        messages = [message for message in taken if not self._is_end(message) and self._is_before_end(message)]
        if messages:
            self._news.is_back()
        elif not self._follows and self._news.lost_for() > LOST_SECONDS_MAX:
            raise NodeUnreachable(f"the node did not come back within {LOST_SECONDS_MAX:.0f} s")
        for message in filter(self._wanted, messages):
            take(message)
        sys.stdout.buffer.flush()
        if self._commits:
            self._uncommitted |= {message.partition(): message.offset() + 1 for message in messages}
            if not self._committing:
                self._commit()
        return len(messages)

    def _write(self, message: Any) -> None:
        sys.stdout.buffer.write(self._written(message))
        self.count += 1

    def _is_before_end(self, message: Any) -> bool:
        """Whether a message is to be read; a partition is done with the last one that is."""
        end = self._ends.get((message.topic(), message.partition()))
        if end is None:
            return True
        if message.offset() + 1 >= end and self._open is not None:
            self._open.discard(message.partition())
        return bool(message.offset() < end)

    def _commit(self) -> None:
        """Send what is uncommitted; `_committed` hears what came of it. Waiting for the answer here would make us
        deaf while the node is away, to Ctrl-C as well."""
        from confluent_kafka import TopicPartition

        if self._uncommitted:
            offsets = [TopicPartition(self._topic, *place) for place in self._uncommitted.items()]
            self._consumer.commit(offsets=offsets, asynchronous=True)
            self._committing = True

    def _committed(self, error: Any, queues: list[Any]) -> None:
        """The client's `on_commit`. Offsets whose commit failed stay uncommitted, and go with the next commit."""
        from mainstem.cli.clients import kafka_node

        self._committing = False
        failure = error or next((queue.error for queue in queues if queue.error), None)
        if failure is not None:
            if not kafka_node.is_passing(failure):
                self._commit_failure = failure.str()
            return
        for queue in queues:
            if self._uncommitted.get(queue.partition) == queue.offset:
                del self._uncommitted[queue.partition]

    def _commit_rest(self) -> None:
        """Commit what is left at the end. Raises RequestRefused."""
        deadline = time.monotonic() + LOST_SECONDS_MAX
        while self._uncommitted:
            if not self._committing:
                self._commit()
            # Serves the callback. What is taken here is not written out, and not committed.
            self._consumer.consume(1, _POLL_SECONDS)
            self._raise_commit_failure()
            if time.monotonic() > deadline:
                raise RequestRefused(f"offsets were not committed within {LOST_SECONDS_MAX:.0f} s")

    def _raise_commit_failure(self) -> None:
        if self._commit_failure is not None:
            raise RequestRefused(f"offsets were not committed: {self._commit_failure}")

    def _is_end(self, message: Any) -> bool:
        """Whether this is news about a partition instead of a message. Raises RequestRefused for an error."""
        from confluent_kafka import KafkaError

        from mainstem.cli.clients import kafka_node

        error = message.error()
        if error is None:
            return False
        if error.code() == KafkaError._PARTITION_EOF:
            self._news.is_back()
            if self._open is not None:
                self._open.discard(message.partition())
            return True
        if kafka_node.is_passing(error):
            return True
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and not self._commits:
            return True  # librdkafka looks for the coordinator of the group that is named and not used
        raise RequestRefused(f"reading failed: {error.str()} ({error.name()})")

    def _assigned(self, consumer: Any, queues: list[Any]) -> None:
        self._open = {queue.partition for queue in queues}

    def _revoked(self, consumer: Any, queues: list[Any]) -> None:
        """Their next owner begins at the last commit; records that were written out since come twice."""
        self._commit()
        self._open = None
        self._uncommitted.clear()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True
