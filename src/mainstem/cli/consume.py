"""`mainstem consume`: read a topic's messages, alone or as a member of a group.

Alone, every partition (or those named) is read from one position, nothing is committed. In a group the
coordinator shares the partitions out, reading goes on where the group stands, and offsets are committed after
the messages they cover were written out: at least once. Without `--follow` it ends at the end of each partition.

A node that goes away is waited for: with `--follow` until it is back, else for `LOST_SECONDS_MAX`.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import click

from mainstem.cli import message_format, options, position
from mainstem.cli.connection_news import LOST_SECONDS_MAX, ConnectionNews
from mainstem.cli.errors import NodeUnreachable, RequestRefused

_POLL_SECONDS = 0.2
"""How long a quiet topic keeps us from seeing Ctrl-C."""

_DEFAULT_FORMAT = "%s\\n"


@click.command("consume")
@click.argument("topic")
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Repeatable.")
@click.option(
    "--from", "start", type=position.PositionType(), default="beginning", show_default=True, help=position.HELP
)
@click.option("-g", "--group", help="Read as a member of this group; --from is for groups that have no offset.")
@click.option("-n", "--max-messages", type=click.IntRange(min=1), help="End after so many.")
@click.option("--batch-size", type=click.IntRange(1, 10_000), default=500, show_default=True,
              help="Messages taken and committed at once.")
@click.option("-F", "--format", "form", default=_DEFAULT_FORMAT, show_default=True, help=message_format.HELP)
@click.option("-f", "--follow", is_flag=True, help="Go on at the end, until Ctrl-C.")
@options.kafka_only
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def command(
    topic: str,
    partitions: tuple[int, ...],
    start: position.Position,
    group: str | None,
    max_messages: int | None,
    batch_size: int,
    form: str,
    follow: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Read the messages of a topic."""
    from mainstem.cli import kafka_node

    if group is not None and partitions:
        raise click.UsageError("--partition and --group exclude each other: the group shares the partitions out")
    if group is not None and start.anchor not in (position.Anchor.BEGINNING, position.Anchor.END):
        raise click.UsageError("with --group, --from takes beginning or end; see `mainstem group reset-offsets`")
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
            "enable.partition.eof": not follow,
            "auto.offset.reset": "latest" if start.anchor is position.Anchor.END else "earliest",
        },
    )
    reading = Reading(topic, written, news, commits=group is not None, batch_size=batch_size, follows=follow)
    consumer = reading.begin(settings)
    try:
        if group is None:
            queues = [(topic, partition) for partition in partitions or known]
            offsets = position.resolved(admin, position.bounds(admin, queues), start)
            reading.assign(offsets)
        else:
            reading.join()
        reading.run(max_messages)
    finally:
        consumer.close()


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
        follows: bool,
    ) -> None:
        self._consumer: Any = None
        self._topic = topic
        self._written = written
        self._news = news
        self._commits = commits
        self._batch_size = batch_size
        self._follows = follows
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

    def assign(self, offsets: dict[tuple[str, int], int]) -> None:
        from confluent_kafka import TopicPartition

        queues = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        self._consumer.assign(queues)
        self._open = {queue.partition for queue in queues}

    def join(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked)

    def run(self, messages_max: int | None) -> None:
        """Read to the end of every partition, to `messages_max`, or until SIGINT or SIGTERM."""
        previous = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            left = sys.maxsize if messages_max is None else messages_max
            while left > 0 and not self._stopped and (self._open is None or self._open):
                left -= self._read_batch(min(left, self._batch_size))
            self._commit_rest()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _read_batch(self, size: int) -> int:
        taken = self._consumer.consume(size, _POLL_SECONDS)
        self._raise_commit_failure()
        messages = [message for message in taken if not self._is_end(message)]
        if messages:
            self._news.is_back()
        elif not self._follows and self._news.lost_for() > LOST_SECONDS_MAX:
            raise NodeUnreachable(f"the node did not come back within {LOST_SECONDS_MAX:.0f} s")
        for message in messages:
            sys.stdout.buffer.write(self._written(message))
        sys.stdout.buffer.flush()
        if self._commits:
            self._uncommitted |= {message.partition(): message.offset() + 1 for message in messages}
            if not self._committing:
                self._commit()
        return len(messages)

    def _commit(self) -> None:
        """Send what is uncommitted; `_committed` hears what came of it. Waiting for the answer here would make us
        deaf while the node is away, to Ctrl-C as well."""
        from confluent_kafka import TopicPartition

        if self._uncommitted:
            offsets = [TopicPartition(self._topic, *place) for place in self._uncommitted.items()]
            self._consumer.commit(offsets=offsets, asynchronous=True)
            self._committing = True

    def _committed(self, error: Any, queues: list[Any]) -> None:
        """The client's `on_commit`. What failed stays uncommitted, and goes with the next commit."""
        from mainstem.cli import kafka_node

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

        from mainstem.cli import kafka_node

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
        raise RequestRefused(f"reading failed: {error.str()} ({error.name()})")

    def _assigned(self, consumer: Any, queues: list[Any]) -> None:
        self._open = {queue.partition for queue in queues}

    def _revoked(self, consumer: Any, queues: list[Any]) -> None:
        """Who owns them next begins at the last commit; what was written out since comes twice."""
        self._commit()
        self._open = None
        self._uncommitted.clear()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True
