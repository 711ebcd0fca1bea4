"""The driver of one replicated machine: its log, its requests, its clock. It lives for one reign: from when this node
begins to serve the partition until it stops.

`run` owns the log and loads it into a new machine, then writes the machine's records, batch after batch, with one
append in flight: meanwhile records gather for the next. Four rules keep memory, log and clients together:

* An answer leaves when everything that the machine contained at its time is committed, its own records and all before
  them. So no client, not even one that only reads, is told what a restart could take back.
* When an append fails, memory has run ahead of the log by an unknown amount. Nothing is patched: every waiting request
  is refused, the machine is thrown away, and a new one is made from the log.
* No client waits for an append without end. After a while (`LogLimits.commit_seconds`) the driver tells those that wait
  to come again, and goes on with the append: whether what they asked for is in the log is open, as with a lost answer.
* Appends carry the owner epoch that the write group granted when the log was loaded. Once another has loaded it, the
  write group refuses them before anything of them lands.

If part of a log cannot be read, the driver tries again for a while: the log may be mended from another replica, and a
leader that cannot read its log hands over to one that can. Then the driver serves the rest. The machine knows what
that leaves in doubt (`Machine.lose`); nothing of the log is dropped meanwhile. The driver looks for the missing part
less and less often, and loads everything again once it is back.

If a reign ends in the middle of an append, the record may be committed under the next leader or be gone; the waiting
clients are only told to ask that leader.

The log stays short: when it has grown enough, the machine's content is written behind it, section by section as it is
at that moment, between the appends; the log before the first of these records is then dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from mainstem.broker.errors import CoordinatorRefusal, LogUnavailable, Unreadable
from mainstem.broker.machines.load_turns import LoadTurns
from mainstem.broker.machines.machine_log import Gap, MachineLog
from mainstem.broker.machines.result import Answer, Moment, Result, Ticket
from mainstem.ports import Clock
from mainstem.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)

RELOAD_PAUSE_SECONDS = 0.5
"""Wait before a failed log is read again; doubled with each failure in a row."""

RELOAD_PAUSE_SECONDS_MAX = 10.0
"""The longest such wait: a damaged log stays damaged, and need not be read and logged more often."""

UNREADABLE_LOADS_MAX = 6
"""Loads in a row that meet unreadable offsets before the log is served without them: 25 seconds. A damaged
run is usually mended, or the leadership handed over, within five."""

LOOK_AGAIN_SECONDS = 30.0
"""Wait before the next search for the missing part of a log; doubled with each search in vain…"""

LOOK_AGAIN_SECONDS_MAX = 600.0
"""…up to this: only a node that comes back, or an operator who restores a file, ends it."""

REPLAYED_AT_ONCE = 256
"""Records replayed before other work gets a turn: a few milliseconds."""

GAPS_TOLD = 5
"""Gaps named in one line of the log."""

LATE_SECONDS = 0.5
"""By so much longer than the log tries a busy storage requests wait for an append: where it fails for good, they hear
of that instead."""

RECORDS_AT_ONCE = 500
"""About how many records go into one append (an event is not divided): one turn of the event loop encodes
them in some milliseconds."""

DELIVERED_AT_ONCE = 100
"""Answers that leave in one turn of the event loop: each wakes up a handler, which encodes it and writes to its
connection, some fifty microseconds."""


class Machine(Protocol):
    """A deterministic state machine: no I/O, no clock. State that must survive a restart changes in `replay` alone."""

    def replay(self, record: Any) -> None:
        """Apply the next record of the log."""
        ...

    def lose(self) -> None:
        """The next part of the log cannot be read."""
        ...

    def recovered(self, now: Moment) -> Result:
        """The whole log has been replayed, and the machine is served from now on."""
        ...

    def advance(self, now: Moment) -> Result:
        """Fire the timers that have run out."""
        ...

    def sections(self) -> Sequence[Hashable]:
        """Names of all parts of the content, in the order in which a snapshot is written."""
        ...

    def snapshot(self, section: Any) -> Iterator[Any]:
        """The records that make a part as it is now; none of a part that is gone."""
        ...


M = TypeVar("M", bound=Machine)


class MachineKind(Protocol[M]):
    """Makes machines of one kind for one partition, and knows what becomes of them at the turns of a reign."""

    async def prepare(self) -> None:
        """A load begins: see to it that the log's queue exists, and that what machines depend on is known. Raises
        `LogUnavailable`."""
        ...

    def make(self) -> M:
        """An empty machine."""
        ...

    async def sort_out(self, machine: M) -> None:
        """The log is replayed, and nothing is served yet: compare the content with the world."""
        ...

    def accepts_loss(self, machine: M, gaps: Sequence[Gap], missing: str, *, new: bool) -> bool:
        """Part of the log cannot be read; `missing` says which. Tell the operator if that is `new`, and return whether
        the loss is to be taken for good."""
        ...

    def serve(self, machine: M, records: int) -> None:
        """The machine is served from now on; `records` were replayed."""
        ...

    def failed(self) -> None:
        """The log has failed, and the machine is made anew."""
        ...

    def answered(self, machine: M, answers: Sequence[Answer], now: Moment) -> None:
        """These answers have left."""
        ...

    def dropped(self, machine: M | None) -> None:
        """The machine is served no more, or its load has ended before it was served, or there was none yet; give back
        what it held."""
        ...


class _Entry(NamedTuple):
    """One event's records, and the answers that leave once they are committed."""

    records: list[Any]
    answers: list[Answer]


class _Snapshot:
    """A snapshot being written: where it starts in the log, and the sections still to be written."""

    def __init__(self, start: int, sections: Iterable[Hashable]) -> None:
        self.start = start
        self.sections = deque(sections)
        self.rest: Iterator[Any] | None = None
        """Records still to come of the section that is being written."""
        self.bytes_written = 0

    @property
    def written(self) -> bool:
        return self.rest is None and not self.sections

    def next_records(self, machine: Machine) -> list[Any]:
        """The next sections as they are now: the log up to here means the same, but is longer."""
        records: list[Any] = []
        while not self.written and len(records) < RECORDS_AT_ONCE:
            if self.rest is None:
                self.rest = machine.snapshot(self.sections.popleft())
            if (record := next(self.rest, None)) is not None:
                records.append(record)
            else:
                self.rest = None
        return records


class MachineRuntime(Generic[M]):
    """Drives the machine of one partition until `resign`. `name` is for messages; a snapshot is due when the log has
    grown by `snapshot_after_bytes`, and by as much as the last one took; `wake` is called when `wake_at_ms` may have
    moved closer, `loaded` after each load; `load_turns` are those of all partitions of the topic."""

    def __init__(
        self,
        kind: MachineKind[M],
        log: MachineLog[Any],
        clock: Clock,
        *,
        name: str,
        snapshot_after_bytes: int,
        wake: Callable[[], None],
        load_turns: LoadTurns | None = None,
        loaded: Callable[[], None] = lambda: None,
    ) -> None:
        self.wake_at_ms: int | None = None
        self.machine: M | None = None
        """None while nothing is loaded."""
        self._loading: M | None = None
        """The machine into which the log is being replayed."""
        self.gaps: list[Gap] = []
        """The gaps in the log that is served."""
        self._kind = kind
        self._log = log
        self._clock = clock
        self._name = name
        self._snapshot_after_bytes = snapshot_after_bytes
        self._wake = wake
        self._load_turns = load_turns or LoadTurns()
        self._loaded = loaded
        self._refusal = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._failure: Exception | None = None
        self._tickets: Ticket = 0
        self._waiting: dict[Ticket, asyncio.Future[Any]] = {}
        self._entries: deque[_Entry] = deque()
        self._undelivered: deque[Answer] = deque()
        """Of those that may leave, the ones for which there was no room in this turn of the event loop."""
        self._writing = False
        self._late: asyncio.TimerHandle
        """While an append is under way: when those that wait for it have waited for long enough."""
        self._work = asyncio.Event()
        self._grown_bytes = 0  # since the last snapshot, or since the log's start
        self._snapshot_bytes = 0  # the size of the last snapshot
        self._snapshot: _Snapshot | None = None
        self._rewrite = False
        """A snapshot is due, however little the log has grown."""
        self._unreadable_loads = 0
        """Loads in a row that met unreadable offsets."""
        self._look_again_seconds = LOOK_AGAIN_SECONDS
        self._look_again_at = 0.0

    # --- events --------------------------------------------------------------------------------------

    def submit(self, event: Callable[[M, Ticket, Moment], Result]) -> asyncio.Future[Any]:
        """Hand an event to the machine; the future gives its answer. Raises `CoordinatorRefusal`, and so may the
        future."""
        if self.machine is None or self._failure is not None:
            self._load_turns.prefer(self)
            raise CoordinatorRefusal(self._refusal)
        self._tickets += 1
        ticket = self._tickets
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = answer
        try:
            self.take(event(self.machine, ticket, self.now()))
        except Exception as error:
            logger.exception("%s: an event failed", self._name)
            self._waiting.pop(ticket, None)
            self._fail(error)
            raise CoordinatorRefusal(ErrorCode.UNKNOWN_SERVER_ERROR) from error
        return answer

    def asked_while_loading(self) -> bool:
        """Whether the log is being loaded. If so, the runtime loads it before logs that no request asks for."""
        if self.machine is not None or self._refusal is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return False
        self._load_turns.prefer(self)
        return True

    def rewrite(self) -> None:
        """Write the whole log anew: there is a better form for it."""
        self._rewrite = True
        self._work.set()

    def advance(self) -> None:
        """Fire the timers that have run out."""
        now = self.now()
        if self.machine is None or self._failure is not None:
            return
        if self.wake_at_ms is None or self.wake_at_ms > now.monotonic_ms:
            return
        try:
            self.take(self.machine.advance(now))
        except Exception as error:
            logger.exception("%s: a timer failed", self._name)
            self._fail(error)

    def resign(self) -> None:
        """This node stops serving the partition: refuse what waits at once, and serve nothing any more.
        Cancel `run` then."""
        self._failure = LogUnavailable("the reign is over", ErrorCode.NOT_COORDINATOR)
        self._refusal = ErrorCode.NOT_COORDINATOR
        self._abandon()

    def take(self, result: Result) -> None:
        """Have the effects of an event: its records are logged, then its answers leave."""
        earlier = self.wake_at_ms is None or (result.wake_at_ms is not None and result.wake_at_ms < self.wake_at_ms)
        self.wake_at_ms = result.wake_at_ms
        if earlier:
            self._wake()
        if not result.records and not self._entries and not self._writing:
            self._deliver(result.answers)
            return
        self._entries.append(_Entry(result.records, result.answers))
        self._work.set()

    def now(self) -> Moment:
        return Moment(self._clock.now_ms(), int(self._clock.monotonic() * 1000))

    def _deliver(self, answers: list[Answer]) -> None:
        """Answers are independent of each other: a few need not wait until very many have left."""
        if len(answers) <= DELIVERED_AT_ONCE:
            self._hand_over(answers)
            return
        if not self._undelivered:
            asyncio.get_running_loop().call_soon(self._deliver_more)
        self._undelivered.extend(answers)

    def _deliver_more(self) -> None:
        count = min(len(self._undelivered), DELIVERED_AT_ONCE)
        self._hand_over([self._undelivered.popleft() for _ in range(count)])
        if self._undelivered:
            asyncio.get_running_loop().call_soon(self._deliver_more)

    def _hand_over(self, answers: list[Answer]) -> None:
        for answer in answers:
            future = self._waiting.pop(answer.ticket)
            if not future.done():  # the connection may be gone
                future.set_result(answer.response)
        if answers and self.machine is not None:
            self._kind.answered(self.machine, answers, self.now())

    def _fail(self, error: Exception) -> None:
        """Stop serving; `run` starts over."""
        self._failure = self._failure or error
        unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._refusal = error.code if isinstance(error, LogUnavailable) else unavailable
        self.wake_at_ms = None
        self._work.set()

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
            except Unreadable as error:
                self._unreadable_loads += 1
                self._refusal = error.code
                self._kind.failed()
                logger.warning("%s: %s; it is tried again", self._name, error)
            except LogUnavailable as error:
                self._refusal = error.code
                self._kind.failed()
                logger.warning("%s: %s; it will be loaded again", self._name, error)
            except Exception:
                self._refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
                self._kind.failed()
                logger.exception("%s failed; it will be loaded again", self._name)
            finally:
                self._abandon()
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, RELOAD_PAUSE_SECONDS_MAX)

    async def _load(self) -> None:
        try:
            await self._load_in_turns()
        finally:
            self._load_turns.ended(self)

    async def _load_in_turns(self) -> None:
        await self._kind.prepare()
        machine = self._loading = self._kind.make()
        replayed = 0
        gaps: list[Gap] = []
        async for record in self._log.read(over_gaps=self._unreadable_loads >= UNREADABLE_LOADS_MAX):
            if isinstance(record, Gap):
                gaps.append(record)
                machine.lose()
                continue
            machine.replay(record)
            replayed += 1
            if replayed % REPLAYED_AT_ONCE == 0:
                await self._load_turns.take(self)
        await self._kind.sort_out(machine)
        self._take_stock(machine, gaps)
        self._grown_bytes = self._log.bytes_read
        self._snapshot_bytes = 0
        self._failure = None
        self._work.clear()
        self.machine, self._loading = machine, None
        self.take(machine.recovered(self.now()))
        self._kind.serve(machine, replayed)
        self._loaded()
        self._work.set()  # the log may be long enough for a snapshot already

    def _take_stock(self, machine: M, gaps: list[Gap]) -> None:
        """Decide whether to serve the log with its gaps."""
        if not gaps:
            if self.gaps:
                logger.warning("%s: what was missing is there again", self._name)
            self.gaps, self._unreadable_loads, self._look_again_seconds = [], 0, LOOK_AGAIN_SECONDS
            return
        missing = ", ".join(f"{gap.start} to {gap.end - 1} ({gap.why})" for gap in gaps[:GAPS_TOLD])
        more = f" and {len(gaps) - GAPS_TOLD} more" if len(gaps) > GAPS_TOLD else ""
        if self._kind.accepts_loss(machine, gaps, missing + more, new=gaps != self.gaps):
            self.gaps, self._rewrite = [], True
            return
        self.gaps = gaps
        self._look_again_at = self._clock.monotonic() + self._look_again_seconds
        self._look_again_seconds = min(2 * self._look_again_seconds, LOOK_AGAIN_SECONDS_MAX)

    async def _look_for_what_is_missing(self) -> None:
        """Raises `LogUnavailable` when part of it is there again: the log must be read anew."""
        if not self.gaps or self._clock.monotonic() < self._look_again_at:
            return
        for gap in self.gaps:
            if await self._log.readable(gap.start):
                what = f"offset {gap.start}, which was missing, can be read again"
                raise LogUnavailable(what, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        self._look_again_at = self._clock.monotonic() + self._look_again_seconds
        self._look_again_seconds = min(2 * self._look_again_seconds, LOOK_AGAIN_SECONDS_MAX)

    async def _write_next(self) -> None:
        """Wait for records, append them, answer; then go on with a snapshot."""
        if not self._entries and self._snapshot is None:
            try:
                async with asyncio.timeout(self._seconds_to_next_look()):
                    await self._work.wait()
            except TimeoutError:
                pass
        self._work.clear()
        self._raise_failure()
        await self._look_for_what_is_missing()
        assert self.machine is not None
        records, answers = self._next_records()
        due = self._rewrite or self._grown_bytes > max(self._snapshot_after_bytes, self._snapshot_bytes)
        if due and self._snapshot is None and not self.gaps and self._load_turns.may_rewrite(self, self._work.set):
            self._rewrite = False
            self._snapshot = _Snapshot(self._log.end, self.machine.sections())
        snapshot = self._snapshot
        if snapshot is not None:  # however much else there is to write: other logs wait for this one
            records += snapshot.next_records(self.machine)
        if records:
            self._writing = True
            size_bytes = await self._append(records, answers)
            self._writing = False
            self._grown_bytes += size_bytes
            if snapshot is not None:
                snapshot.bytes_written += size_bytes
            self._raise_failure()
        self._deliver(answers)
        if snapshot is not None and snapshot.written:
            await self._end_snapshot(snapshot)

    async def _append(self, records: list[Any], answers: list[Answer]) -> int:
        """Append. It may take long, on a disk that stands still or without a majority; clients do not wait for all of
        that, as `_refuse_late` tells them. The append goes on."""
        self._late = self._look_for_late(answers)
        try:
            return await self._log.append(records)
        finally:
            self._late.cancel()

    def _look_for_late(self, answers: list[Answer]) -> asyncio.TimerHandle:
        seconds = self._log.commit_seconds + LATE_SECONDS
        return asyncio.get_running_loop().call_later(seconds, self._refuse_late, answers)

    def _refuse_late(self, answers: list[Answer]) -> None:
        """Refuse the requests whose answers wait for the append that is under way, or for the next: they were taken,
        and may be committed yet. Clients come again, as they do when an answer is lost."""
        self._late = self._look_for_late(answers)  # for those that come meanwhile
        waiting = [answer.ticket for answer in answers]
        waiting += [answer.ticket for entry in self._entries for answer in entry.answers]
        for ticket in waiting:
            future = self._waiting.get(ticket)
            if future is not None and not future.done():
                future.set_exception(CoordinatorRefusal(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def _seconds_to_next_look(self) -> float | None:
        return max(0.0, self._look_again_at - self._clock.monotonic()) if self.gaps else None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _next_records(self) -> tuple[list[Any], list[Answer]]:
        """The entries of one append: all that wait, up to a bound."""
        records: list[Any] = []
        answers: list[Answer] = []
        while self._entries and len(records) < RECORDS_AT_ONCE:
            entry = self._entries.popleft()
            records += entry.records
            answers += entry.answers
        return records, answers

    async def _end_snapshot(self, snapshot: _Snapshot) -> None:
        self._snapshot = None
        self._grown_bytes = 0
        self._snapshot_bytes = snapshot.bytes_written
        self._load_turns.rewrite_ended(self)
        if not await self._log.drop_before(snapshot.start):
            logger.warning("%s: the log could not be cut at %d", self._name, snapshot.start)

    def _abandon(self) -> None:
        """Refuse all waiting requests and forget the machine, also one that is loaded in part."""
        machine, self.machine, self._loading = self.machine or self._loading, None, None
        self._kind.dropped(machine)
        self.wake_at_ms = None
        self._entries.clear()
        self._undelivered.clear()
        self._writing = False
        self._snapshot = None
        self._load_turns.rewrite_ended(self)
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(CoordinatorRefusal(self._refusal))


def heard(answer: asyncio.Future[Any]) -> None:
    """Marks a refusal as seen: no caller waits for this answer."""
    if not answer.cancelled():
        answer.exception()
