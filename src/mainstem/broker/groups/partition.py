"""The driver of one group machine: its log, its requests, its clock. It lives for one reign: from when this node begins
to serve the partition until it stops.

`run` loads the log into a new machine, then writes what the machine produces, batch after batch, with one
append in flight: while it is, records gather for the next. Two rules keep memory and log together:

* An answer leaves when everything that was in the machine at its time is committed, its own records and all
  before them. So nobody is told what a restart could take back, not even by a read.
* When an append fails, memory has run ahead of the log by an unknown amount. Nothing is patched: every
  waiting request is refused, the machine is thrown away, and a new one is made from the log.

So it is when the reign ends in the middle of an append: the record may be committed under the next leader or be gone,
and nobody is told anything but to ask that one.

The log stays short: when it has grown enough, the machine's content is written behind it, group by group as
it is at that moment, between the appends; what stands before the first of these records is then dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple
from uuid import UUID

from mainstem.broker.groups.config import GroupsConfig
from mainstem.broker.groups.errors import LogUnavailable, Refused
from mainstem.broker.groups.holdings import Holdings
from mainstem.broker.groups.log import GroupLog
from mainstem.broker.groups.machine import GroupMachine
from mainstem.broker.groups.offsets import TopicId, is_stale
from mainstem.broker.groups.result import Answer, LogRecord, Moment, Result, Ticket
from mainstem.broker.groups.step import Counts
from mainstem.errors import MainstemError
from mainstem.ports import Clock
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_offsets import OffsetCommitKey
from mainstem.protocol.schema import ZERO_UUID

logger = logging.getLogger(__name__)

RELOAD_PAUSE_SECONDS = 0.5
"""Before a log that failed is read again; doubled each time in a row that this fails."""

RELOAD_PAUSE_SECONDS_MAX = 10.0
"""A damaged log stays damaged: no need to read it and to complain more often."""

REPLAYED_AT_ONCE = 256
"""Records replayed before other work gets a turn: a few milliseconds."""

RECORDS_AT_ONCE = 1_000
"""About how many records go into one append (an event is not divided)."""

Event = Callable[[GroupMachine, Ticket, Moment], Result]


class TopicsNow(NamedTuple):
    """The topics, as far as offsets depend on them."""

    id_of: TopicId
    current: Callable[[], Awaitable[None]]
    """Returns once this node knows all that was deleted or made before the call. Raises `MainstemError`."""


class _Entry(NamedTuple):
    """One event's records, and what to say once they are committed."""

    records: list[LogRecord]
    answers: list[Answer]


class _Snapshot:
    """A snapshot being written: where it starts in the log, the groups it has yet to write, and the keys of records
    that this version does not know."""

    def __init__(self, start: int, groups: list[str], unknown: list[bytes]) -> None:
        self.start = start
        self.groups = deque(groups)
        self.rest: Iterator[LogRecord] | None = None
        """Of the group that is being written."""
        self.unknown = deque(unknown)
        self.bytes_written = 0

    @property
    def written(self) -> bool:
        return self.rest is None and not self.groups and not self.unknown


class GroupPartition:
    """One partition of the internal topic, served by this node until `resign`. `topics` says which topics there are;
    `make_queue` is called when its queue is not there, `wake` when `wake_at_ms` may have moved closer, `loaded` with
    the numbers of groups and records after each load; `counts` outlives it."""

    def __init__(
        self,
        log: GroupLog,
        config: GroupsConfig,
        clock: Clock,
        *,
        name: str,
        new_id: Callable[[], str],
        counts: Counts,
        holdings: Holdings,
        topics: TopicsNow,
        make_queue: Callable[[], Awaitable[None]],
        wake: Callable[[], None],
        loaded: Callable[[int, int], None] = lambda groups, records: None,
    ) -> None:
        self.name = name
        self.wake_at_ms: int | None = None
        self.machine: GroupMachine | None = None
        """None while there is nothing to serve from."""
        self._log = log
        self._config = config
        self._clock = clock
        self._new_id = new_id
        self._counts = counts
        self._held = Holdings(within=holdings)
        """By the members of this partition's groups."""
        self._topics = topics
        self._make_queue = make_queue
        self._wake = wake
        self._loaded = loaded
        self._refusal = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._failure: Exception | None = None
        self._tickets: Ticket = 0
        self._waiting: dict[Ticket, asyncio.Future[Any]] = {}
        self._entries: deque[_Entry] = deque()
        self._writing = False
        self._work = asyncio.Event()
        self._grown_bytes = 0  # since the last snapshot, or since the log's start
        self._snapshot_bytes = 0  # what the last snapshot took
        self._snapshot: _Snapshot | None = None
        self._rewrite = False
        """A snapshot is due, however little the log has grown."""
        self._deleted: dict[str, UUID] = {}
        """Topics that were deleted while the log is loaded: names and ids."""

    # --- events --------------------------------------------------------------------------------------

    def submit(self, event: Event) -> asyncio.Future[Any]:
        """Hand an event to the machine; the future is its answer. Raises `Refused`, and so may the future."""
        if self.machine is None or self._failure is not None:
            raise Refused(self._refusal)
        self._tickets += 1
        ticket = self._tickets
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = answer
        try:
            self._take(event(self.machine, ticket, self._now()))
        except Exception as error:
            logger.exception("group coordinator, %s: an event failed", self.name)
            self._waiting.pop(ticket, None)
            self._fail(error)
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR) from error
        return answer

    def topic_deleted(self, name: str, topic_id: UUID) -> asyncio.Future[Any] | None:
        """Forget what was committed in a topic; the future says when that is durable, None: once the log is loaded.
        Raises `Refused`."""
        if self.machine is None:
            self._deleted[name] = topic_id
            return None
        return self.submit(lambda machine, ticket, now: machine.forget_topic(ticket, name, topic_id, now))

    def rewrite(self) -> None:
        """Write all of it anew: there is a better form for it."""
        self._rewrite = True
        self._work.set()

    def advance(self) -> None:
        """Fire the timers that have run out."""
        now = self._now()
        if self.machine is None or self._failure is not None:
            return
        if self.wake_at_ms is None or self.wake_at_ms > now.monotonic_ms:
            return
        try:
            self._take(self.machine.advance(now))
        except Exception as error:
            logger.exception("group coordinator, %s: a timer failed", self.name)
            self._fail(error)

    def resign(self) -> None:
        """This node stops serving the partition: what waits is refused at once, and nothing is served any more. Cancel
        `run` then."""
        self._failure = LogUnavailable("the reign is over", ErrorCode.NOT_COORDINATOR)
        self._refusal = ErrorCode.NOT_COORDINATOR
        self._abandon()

    def _take(self, result: Result) -> None:
        earlier = self.wake_at_ms is None or (
            result.wake_at_ms is not None and result.wake_at_ms < self.wake_at_ms
        )
        self.wake_at_ms = result.wake_at_ms
        if earlier:
            self._wake()
        if not result.records and not self._entries and not self._writing:
            self._deliver(result.answers)
            return
        self._entries.append(_Entry(result.records, result.answers))
        self._work.set()

    def _deliver(self, answers: list[Answer]) -> None:
        for answer in answers:
            future = self._waiting.pop(answer.ticket)
            if not future.done():  # the connection may be gone
                future.set_result(answer.response)

    def _fail(self, error: Exception) -> None:
        """Stop serving; `run` starts over."""
        self._failure = self._failure or error
        unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._refusal = error.code if isinstance(error, LogUnavailable) else unavailable
        self.wake_at_ms = None
        self._work.set()

    def _now(self) -> Moment:
        return Moment(self._clock.now_ms(), int(self._clock.monotonic() * 1000))

    # --- the log -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Load and serve, again and again, until cancelled."""
        pause_seconds = RELOAD_PAUSE_SECONDS
        while True:
            try:
                self._refusal = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                await self._load()
                self._refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
                pause_seconds = RELOAD_PAUSE_SECONDS
                while True:
                    await self._write_next()
            except LogUnavailable as error:
                self._refusal = error.code
                self._counts.log_failures += 1
                logger.warning("group coordinator, %s: %s; it will be loaded again", self.name, error)
            except Exception:
                self._refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
                self._counts.log_failures += 1
                logger.exception("group coordinator, %s failed; it will be loaded again", self.name)
            finally:
                self._abandon()
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, RELOAD_PAUSE_SECONDS_MAX)

    async def _load(self) -> None:
        if not self._log.exists:
            await self._make_queue()
        self._deleted.clear()
        await self._know_topics()
        machine = GroupMachine(self._config, self._new_id, self._counts, self._topics.id_of, self._held)
        replayed = 0
        async for record in self._log.read():
            machine.replay(record)
            replayed += 1
            if replayed % REPLAYED_AT_ONCE == 0:
                await asyncio.sleep(0)
        stale = await self._sort_out(machine)
        self._grown_bytes = self._log.bytes_read
        self._snapshot_bytes = 0
        self._failure = None
        self._work.clear()
        self.machine = machine
        self._take(machine.recovered(self._now()))
        for first in range(0, len(stale), RECORDS_AT_ONCE):
            self._take(machine.forget_stale(stale[first : first + RECORDS_AT_ONCE], self._now()))
        for name, topic_id in self._deleted.items():
            if (forgotten := self.topic_deleted(name, topic_id)) is not None:
                forgotten.add_done_callback(heard)
        self._work.set()  # the log may be long enough for a snapshot already
        logger.debug(
            "group coordinator, %s: %d groups from %d records", self.name, len(machine.groups), replayed
        )
        self._loaded(len(machine.groups), replayed)

    async def _know_topics(self) -> None:
        """What was deleted before this node began to serve is known from here on; what is deleted later is heard of.
        Raises `LogUnavailable`."""
        try:
            await self._topics.current()
        except MainstemError as error:
            what = f"which topics there are is not known: {error}"
            raise LogUnavailable(what, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from error

    async def _sort_out(self, machine: GroupMachine) -> list[OffsetCommitKey]:
        """Of a machine that nobody uses yet: the offsets of topics that are gone. An offset that does not say whose it
        is, as older versions wrote it, is taken for one of the topic that has the name now."""
        stale: list[OffsetCommitKey] = []
        adopted = False
        for looked_at, (key, value) in enumerate(machine.offsets.all(), 1):
            current = self._topics.id_of(key.topic)
            if current is None or is_stale(value, current):
                stale.append(key)
            elif value.topic_id == ZERO_UUID != current and key.topic not in self._deleted:
                machine.offsets.adopt(key, current)
                adopted = True
            if looked_at % REPLAYED_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._rewrite = self._rewrite or (adopted and self._log.tells_topics)
        return stale

    async def _write_next(self) -> None:
        """Wait for records, append them, answer; and go on with a snapshot."""
        if not self._entries and self._snapshot is None:
            await self._work.wait()
        self._work.clear()
        self._raise_failure()
        assert self.machine is not None
        records, answers = self._next_records()
        if self._snapshot is None and (self._rewrite or self._grown_bytes > self._snapshot_after_bytes):
            self._rewrite = False
            self._snapshot = _Snapshot(self._log.end, list(self.machine.groups), list(self.machine.unknown))
        snapshot = self._snapshot
        if snapshot is not None and not self._entries:
            records += _next_of_snapshot(self.machine, snapshot)
        if records:
            self._writing = True
            size_bytes = await self._log.append(records)
            self._writing = False
            self._grown_bytes += size_bytes
            if snapshot is not None:
                snapshot.bytes_written += size_bytes
            self._raise_failure()
        self._deliver(answers)
        if snapshot is not None and snapshot.written:
            await self._end_snapshot(snapshot)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _next_records(self) -> tuple[list[LogRecord], list[Answer]]:
        """Entries for one append: all that wait, up to a bound."""
        records: list[LogRecord] = []
        answers: list[Answer] = []
        while self._entries and len(records) < RECORDS_AT_ONCE:
            entry = self._entries.popleft()
            records += entry.records
            answers += entry.answers
        return records, answers

    @property
    def _snapshot_after_bytes(self) -> int:
        return max(self._config.snapshot_after_bytes, self._snapshot_bytes)

    async def _end_snapshot(self, snapshot: _Snapshot) -> None:
        self._snapshot = None
        self._grown_bytes = 0
        self._snapshot_bytes = snapshot.bytes_written
        if not await self._log.drop_before(snapshot.start):
            logger.warning("group coordinator, %s: the log could not be cut at %d", self.name, snapshot.start)

    def _abandon(self) -> None:
        """Refuse everything that waits and forget the machine."""
        self.machine = None
        self._held.give_all_back()
        self.wake_at_ms = None
        self._entries.clear()
        self._writing = False
        self._snapshot = None
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(Refused(self._refusal))


def _next_of_snapshot(machine: GroupMachine, snapshot: _Snapshot) -> list[LogRecord]:
    """The next groups as they are now, then what is unknown: the log up to here says the same of them, only longer."""
    records: list[LogRecord] = []
    while (snapshot.rest is not None or snapshot.groups) and len(records) < RECORDS_AT_ONCE:
        if snapshot.rest is None:
            snapshot.rest = machine.snapshot(snapshot.groups.popleft())
        if (record := next(snapshot.rest, None)) is not None:
            records.append(record)
        else:
            snapshot.rest = None
    while snapshot.rest is None and not snapshot.groups and snapshot.unknown and len(records) < RECORDS_AT_ONCE:
        if (record := machine.unknown.get(snapshot.unknown.popleft())) is not None:
            records.append(record)
    return records


def heard(answer: asyncio.Future[Any]) -> None:
    """Nobody waits for it: a refusal is no news."""
    if not answer.cancelled():
        answer.exception()
