"""Fetch: batches of partitions, waiting for them when there are not enough yet.

`begin` has the kernel scan the request into a plan of reads (or uses the plan of its session), and the store settle
what it can from memory. If that is enough, as for readers that are behind by little, the kernel writes the response
within the dispatch, no larger than the reader has shown to take. If there is not enough yet, the store says when there
is more, and another round begins. If memory does not have everything, a task goes on, and the store reads the disks. No
code here runs per partition, except for readers that ask where their history left the queue's.

A consumer that names its rack is sent to a replica there, and served at that replica's node (`nearer_replicas.py`). The
kernel settles such partitions with the others: `plan.nearer` and `plan.from_followers` say what it goes by.

Readers of committed data get batches before the last stable offset, and a list of the aborted transactions among them;
the others get all, and no list.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from mainstem.broker.broker import Broker
from mainstem.broker.errors import ERROR_OF_OUTCOME, UnanswerableRequest, UnreadableRequest
from mainstem.broker.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, FetchSession
from mainstem.broker.redirects import redirected
from mainstem.broker.request_context import RequestContext
from mainstem.broker.started import EncodedFrame, Later, Waiting
from mainstem.errors import MainstemError
from mainstem.kernel import (
    EpochCheck,
    FetchPlan,
    FetchScan,
    MalformedFetch,
    PlannedTopic,
    Verdict,
    scan_fetch,
    scan_more,
)
from mainstem.model import AbortedRange, Buffer, Outcome
from mainstem.ports import OWN_FRAME_BYTES_MIN
from mainstem.protocol import codec
from mainstem.protocol.encoded_array import EncodedArray
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.headers import response_frame
from mainstem.protocol.messages.fetch import READ_COMMITTED, FetchResponse
from mainstem.security.acls.acl import Operation, ResourceKind

API_KEY = 1
TOPIC_IDS_FROM = 13

REDIRECTED_FROM = 12
_LED_BY_OTHERS = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})

_ERROR_OF_REFUSAL = {
    Verdict.OK: ErrorCode.NONE,
    Verdict.UNKNOWN_TOPIC: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    Verdict.UNKNOWN_TOPIC_ID: ErrorCode.UNKNOWN_TOPIC_ID,
    Verdict.UNKNOWN_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    Verdict.NOT_AUTHORIZED: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Verdict.OFFSET_NOT_AVAILABLE: ErrorCode.OFFSET_NOT_AVAILABLE,
}


def _code_of(verdict: int) -> int:
    if verdict in _ERROR_OF_REFUSAL:
        return _ERROR_OF_REFUSAL[Verdict(verdict)]
    outcomes = [outcome for outcome in Outcome if Verdict.__members__.get(outcome.name) == verdict]
    return ERROR_OF_OUTCOME[outcomes[0]] if outcomes else ErrorCode.UNKNOWN_SERVER_ERROR


CODES = tuple(int(_code_of(verdict)) for verdict in range(max(Verdict) + 1))
"""Kafka's error code of each verdict on a read, indexed by its number."""


ROWS_AT_ONCE = 20_000
"""Partitions checked within the dispatch of their request: a millisecond for each of four passes. With more
of them each pass is a turn of the event loop; there are no more than 125,000 in a plan."""

PART_ENTRIES = 50_000
"""Topics and partitions of a plan where a request has more than one plan holds: each pass over it takes three
milliseconds."""

EPOCHS_PER_TURN = 200
"""Epochs compared within one turn of the event loop: a millisecond."""

TOPICS_PER_TURN = 2_000
"""Partitions looked up within one turn of the event loop: a millisecond."""

_HELD_PER_BYTE = 11
"""A partition is 16 bytes in a request, and 168 in the plan of its reads."""

_PLAN_BYTES_MAX = 32 * 1024 * 1024
"""A plan of 125,000 entries, half of them topics with names of their own."""

SESSIONS_FROM = 7

FOLLOWED_WAIT_SECONDS_MAX = 1.0
"""After so long a reader of replicas that other nodes lead looks whether this node still follows them: nothing wakes it
when the node loses sight of a leader."""

_FAILED_TOPIC = PlannedTopic(0, 0, Verdict.UNKNOWN_TOPIC)
_FAILED_CODES = (int(ErrorCode.UNKNOWN_SERVER_ERROR),) * len(CODES)

Step = EncodedFrame | Waiting[EncodedFrame] | Later[EncodedFrame]
"""The next step of a request: an answer, a wait, or a task."""


def held_bytes(size_bytes: int) -> int:
    """The memory that a Fetch request of so many bytes takes: its plan; of more partitions than one plan holds, the
    request and one plan after the other."""
    return min(_HELD_PER_BYTE * size_bytes, size_bytes + _PLAN_BYTES_MAX)


class _Overtaken(Exception):
    """A later request of the same session has taken over its plan."""


def begin(broker: Broker, frame: memoryview, position: int, call: RequestContext) -> Step:
    """Answer a Fetch request whose body stands at `position` at once, or return its next step. Raises
    MalformedFetch."""
    scan = scan_fetch(frame, position, call.version)
    try:
        if scan.rest is not None:
            return _begin_in_parts(broker, scan, frame[position:], call)
        if len(scan.plan) > ROWS_AT_ONCE or scan.plan.topics_named > TOPICS_PER_TURN:
            return partial(_begin_later, broker, scan, call)
        return _begun(broker, scan, call)
    except Exception as error:
        return _failed(broker, scan, call, error)


async def _begin_later(broker: Broker, scan: FetchScan, call: RequestContext) -> EncodedFrame:
    """Begin a request that takes a turn of the event loop for each pass over all of its partitions."""
    try:
        await broker.turns.take()
        opened = _resolved(broker, scan, call)
        return _refused(opened, call) if isinstance(opened, ErrorCode) else await opened.go_in_turns()
    except Exception as error:
        return _failed(broker, scan, call, error)


def _begin_in_parts(broker: Broker, scan: FetchScan, body: memoryview, call: RequestContext) -> Step:
    """Begin a request of more partitions than one plan holds, which no session follows either."""
    if scan.session_id != NO_SESSION:
        broker.fetch_sessions.close(scan.session_id)
    if scan.session_epoch not in (FINAL_EPOCH, INITIAL_EPOCH):
        return _refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, call)
    return _FetchInParts(broker, call, body if len(body) > OWN_FRAME_BYTES_MIN else bytes(body)).go


def _begun(broker: Broker, scan: FetchScan, call: RequestContext) -> Step:
    fetch = _resolved(broker, scan, call)
    if isinstance(fetch, ErrorCode):
        return _refused(fetch, call)
    return fetch.go_in_turns if fetch.is_long else fetch.go()


def _resolved(broker: Broker, scan: FetchScan, call: RequestContext) -> _Fetch | ErrorCode:
    if scan.session_epoch == FINAL_EPOCH and scan.session_id == NO_SESSION:
        return _Fetch(broker, call, scan, scan.plan, None, incremental=False)
    return _open(broker, scan, call)


def _failed(broker: Broker, scan: FetchScan, call: RequestContext, error: Exception) -> EncodedFrame:
    """The answer to a request that failed: an error for the request, or, where that cannot be said, for each
    partition."""
    broker.faults.report(logging.ERROR, f"Fetch v{call.version} failed unexpectedly", error)
    if call.version >= SESSIONS_FROM:
        return _refused(ErrorCode.UNKNOWN_SERVER_ERROR, call)
    plan = scan.plan
    plan.begin(lambda key: _FAILED_TOPIC, 0)
    buffers = plan.response(call.version, call.correlation_id, _FAILED_CODES)
    return EncodedFrame(buffers, {ErrorCode.UNKNOWN_SERVER_ERROR: len(plan)})


# sessions


def _open(broker: Broker, scan: FetchScan, call: RequestContext) -> _Fetch | ErrorCode:
    """Resolve a request to the partitions it follows, and move its session on."""
    sessions = broker.fetch_sessions
    by_id = call.version >= TOPIC_IDS_FROM
    now_ms = broker.clock.now_ms()
    if scan.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        if scan.session_id != NO_SESSION:
            sessions.close(scan.session_id)
        session = None
        if scan.session_epoch == INITIAL_EPOCH:
            session = sessions.open(scan.plan, now_ms, by_id=by_id)
        return _Fetch(broker, call, scan, scan.plan, session, incremental=False)
    session = sessions.find(scan.session_id, now_ms)
    if session is None:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    if session.epoch != scan.session_epoch:
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH
    if session.by_id != by_id:
        return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    if not sessions.update(session, scan.plan, scan.forgotten):
        sessions.close(session.session_id)  # it would have to forget partitions the client relies on
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    session.advance()
    if not len(session.plan):
        sessions.close(session.session_id)
        return _Fetch(broker, call, scan, session.plan, None, incremental=False)
    return _Fetch(broker, call, scan, session.plan, session, incremental=True)


def _refused(error: ErrorCode, call: RequestContext) -> EncodedFrame:
    """The answer to a request that does not match its session."""
    response = FetchResponse(error_code=error, session_id=NO_SESSION, responses=())
    parts = codec.write_parts(response, call.version)
    return EncodedFrame(response_frame(call.correlation_id, API_KEY, call.version, parts), {error: 1})


# reading


def _bytes_max(broker: Broker, scan: FetchScan, call: RequestContext) -> int:
    """The most bytes of batches that a request is answered with."""
    bytes_max = min(scan.max_bytes, broker.config.fetch_bytes_max, broker.response_room.bytes_free())
    if broker.throttling is not None and broker.throttling.active:
        allowed = broker.throttling.fetch_bytes_max(call.session, call.client_id)
        bytes_max = bytes_max if allowed is None else min(bytes_max, allowed)
    return max(0, bytes_max)


def _charged(broker: Broker, call: RequestContext, size_bytes: int) -> int:
    """Charge the client for the batches of a response; for how many ms it is throttled."""
    throttling = broker.throttling
    if throttling is None or not throttling.active:
        return 0
    return throttling.fetched(call.session, call.client_id, size_bytes)


class _Fetch:
    """One request under way. `incremental`: the answer names only partitions with news."""

    __slots__ = (
        "_at_once_max", "_broker", "_bytes_max", "_bytes_min", "_call", "_deadline", "_found_before", "_held_bytes",
        "_incremental", "_plan", "_round", "_scan", "_session", "_store",
    )  # fmt: skip

    def __init__(
        self,
        broker: Broker,
        call: RequestContext,
        scan: FetchScan,
        plan: FetchPlan,
        session: FetchSession | None,
        *,
        incremental: bool,
        bytes_max: int | None = None,
        found_before: int = 0,
    ) -> None:
        """`bytes_max` is another bound than that of the request and of the memory for responses; other plans of the
        request have found `found_before` of it."""
        self._broker = broker
        self._store = broker.store_for(call.session)
        self._call = call
        self._scan = scan
        self._plan = plan
        self._session = session
        self._incremental = incremental
        self._found_before = found_before
        self._bytes_max = _bytes_max(broker, scan, call) if bytes_max is None else bytes_max
        # disks are read in pieces, and in step with other readers; what memory has is found and copied in one turn
        self._at_once_max = min(self._bytes_max, call.session.response_bytes_max())
        self._bytes_min = min(scan.min_bytes, self._bytes_max, plan.wanted_bytes)
        plan.read_committed = scan.isolation_level == READ_COMMITTED
        if bytes_max is None:  # the rack stands behind the last part of a request in parts
            plan.from_followers = broker.nearer_replicas.are_here(scan.rack)
            plan.nearer = broker.nearer_replicas.of(scan.rack, call.session.listener)
        self._held_bytes = 0
        self._deadline: float | None = None
        self._round = 0

    @property
    def is_long(self) -> bool:
        return len(self._plan) > ROWS_AT_ONCE or self._plan.topics_named > TOPICS_PER_TURN

    async def go_in_turns(self) -> EncodedFrame:
        """As `go`, with a turn of the event loop for each pass over all partitions."""
        try:
            await self._begin_in_turns()
        except _Overtaken:
            return _refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH, self._call)
        except Exception as error:
            return _failed(self._broker, self._scan, self._call, error)
        self._remaining()
        return await self._read_on()

    def go(self) -> Step:
        """Begin a round and take it as far as memory goes."""
        plan = self._plan
        self._begin()
        if not plan.asks_epochs:
            self._store.read_at_once(plan)
            if plan.settled:
                return self._decide()
        self._remaining()
        return self._read_on

    def _again(self) -> Step:
        try:
            if self._plan.round != self._round:
                return _refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH, self._call)
            return self.go_in_turns if self.is_long else self.go()
        except Exception as error:
            return _failed(self._broker, self._scan, self._call, error)

    async def _read_on(self) -> EncodedFrame:
        """Read from disk what memory does not have, and go on until there is an answer."""
        plan = self._plan
        try:
            while True:
                await self._read_rest()
                if self.is_long:
                    await self._turn()
                step: Step = self._decide()
                while isinstance(step, Waiting):
                    self._hold(0)
                    try:
                        await step.future
                    finally:
                        step.future.cancel()
                    self._check_round()
                    if self.is_long:
                        await self._begin_in_turns()
                        break
                    step = self.go()
                if isinstance(step, EncodedFrame):
                    return step
                if not isinstance(step, Waiting):
                    return await step()
        except _Overtaken:
            return _refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH, self._call)
        except Exception as error:
            return _failed(self._broker, self._scan, self._call, error)
        finally:
            if plan.round == self._round:
                plan.release()
            self._hold(0)

    async def read_part(self) -> tuple[int, list[Buffer]]:
        """Read the partitions of a plan that has only some of a request's. Returns how many topics of the response they
        make, and these."""
        try:
            await self._begin_in_turns()
            await self._read_rest()
            await self._turn()
            await self._tell_aborted(self._plan.stable_reads())
            read_committed = self._scan.isolation_level == READ_COMMITTED
            return self._plan.section(self._call.version, CODES, read_committed=read_committed)
        finally:
            self._plan.release()
            self._hold(0)

    async def _begin_in_turns(self) -> None:
        await self._broker.turns.take()
        topics: dict[str | bytes, PlannedTopic] = {}
        pace = self._broker.turns.pace(TOPICS_PER_TURN)
        before = self._plan.round
        resolve = self._resolver()
        for key in self._plan.topic_keys():
            topics[key] = resolve(key)
            await pace.step()
        if self._plan.round != before:
            raise _Overtaken
        self._plan.begin(topics.__getitem__, self._at_once_max, self._found_before)
        self._round = self._plan.round
        await self._turn()

    async def _turn(self) -> None:
        await self._broker.turns.take()
        self._check_round()

    def _begin(self) -> None:
        self._plan.begin(self._resolver(), self._at_once_max)
        self._round = self._plan.round

    def _resolver(self) -> Callable[[str | bytes], PlannedTopic]:
        """The topics as the client may see them. Each round asks anew: rules may have been revoked while the client
        waited."""
        broker = self._broker
        if broker.authorizer is None:
            return broker.fetch_topics.resolve
        may_read = broker.authorizer.of(self._call.session).question(Operation.READ, ResourceKind.TOPIC)
        return partial(broker.fetch_topics.resolve_for, may_read=may_read)

    def _decide(self) -> Step:
        """Answer with what was found, if it is `min_bytes`, or `max_wait_ms` are over, or waiting makes no
        sense."""
        plan = self._plan
        missing = self._bytes_min - plan.bytes
        if missing <= 0 or plan.final:
            return self._answered()
        if (remaining := self._remaining()) <= 0:
            if plan.from_followers:
                plan.give_up_ahead()
            return self._answered()
        if plan.from_followers:
            remaining = min(remaining, FOLLOWED_WAIT_SECONDS_MAX)
        plan.release()
        return Waiting(self._broker.store.wait(plan, missing, remaining), self._again)

    def _remaining(self) -> float:
        """Seconds for which it may still wait; its time begins with the first call."""
        broker = self._broker
        if self._deadline is None:
            wait_ms = max(0, min(self._scan.max_wait_ms, broker.config.fetch_wait_ms_max))
            self._deadline = broker.clock.monotonic() + wait_ms / 1000
            return wait_ms / 1000
        return self._deadline - broker.clock.monotonic()

    def _check_round(self) -> None:
        if self._plan.round != self._round:
            raise _Overtaken

    async def _read_rest(self) -> None:
        """Settle what is pending in this round."""
        plan = self._plan
        self._check_round()
        if plan.asks_epochs:
            await self._compare_epochs()
        self._store.read_at_once(plan)
        plan.widen(self._bytes_max)
        while not plan.settled:
            await self._read_disks(min(self._bytes_max, self._broker.config.fetch_disk_bytes_max))
            self._check_round()
            self._hold(plan.bytes - self._found_before)

    async def _read_disks(self, bytes_max: int) -> None:
        broker, session = self._broker, self._call.session
        store = broker.store_for(session)
        if broker.throttling is None or not broker.throttling.has_tenants:
            await store.read(self._plan, bytes_max)
            return
        async with broker.read_turns.of(session.tenant):
            self._check_round()
            await store.read(self._plan, bytes_max)

    def _hold(self, size_bytes: int) -> None:
        """Charge for the bytes found on disks so far while more is read; once the response is sent, its
        sender charges for them."""
        if size_bytes != self._held_bytes:
            self._broker.response_room.change(size_bytes - self._held_bytes)
            self._held_bytes = size_bytes

    async def _compare_epochs(self) -> None:
        """Find readers whose history is not the queue's. Readers that know another leader epoch than the
        node, and queues that are gone or led elsewhere, are left to the read."""
        plan = self._plan
        checks = plan.epoch_checks(most=EPOCHS_PER_TURN)
        while checks:
            await self._compare(checks)
            if len(checks) < EPOCHS_PER_TURN:
                break
            await self._turn()
            checks = plan.epoch_checks(checks[-1].row, EPOCHS_PER_TURN)

    async def _compare(self, checks: Sequence[EpochCheck]) -> None:
        plan, broker = self._plan, self._broker
        for check in checks:
            if not broker.leadership.serves_here(check.queue_id):
                continue
            (offsets,) = await broker.store.offsets([check.queue_id])
            if offsets is None or check.current_leader_epoch not in (-1, offsets.leader_epoch):
                continue
            try:
                end = await broker.queue_admin.epoch_end(check.queue_id, check.last_fetched_epoch)
            except (MainstemError, OSError):  # the storage has logged what and where
                self._check_round()
                plan.fail(check.row)
                continue
            self._check_round()
            if end is not None and (end[0] != check.last_fetched_epoch or end[1] < check.fetch_offset):
                plan.diverge(check.row, *end)

    def _answered(self) -> EncodedFrame | Later[EncodedFrame]:
        """The answer, or the task that makes it where files have to tell which transactions were aborted."""
        plan, committed = self._plan, self._broker.committed_reads
        if plan.read_committed and committed is not None:
            reads = plan.stable_reads()
            told = committed.aborted_at_once([read[1:] for read in reads])
            if told is None:
                return partial(self._answer_later, reads)
            self._note_aborted(reads, told)
        return self._answer()

    async def _answer_later(self, reads: Sequence[tuple[int, int, int, int]]) -> EncodedFrame:
        try:
            await self._tell_aborted(reads)
            return self._answer()
        except _Overtaken:
            return _refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH, self._call)
        except Exception as error:
            return _failed(self._broker, self._scan, self._call, error)
        finally:
            if self._plan.round == self._round:
                self._plan.release()

    async def _tell_aborted(self, reads: Sequence[tuple[int, int, int, int]]) -> None:
        """Have readers of committed data told of the aborted transactions of these reads: (row, queue id, first offset,
        offset behind the last)."""
        committed = self._broker.committed_reads
        if self._plan.read_committed and committed is not None:
            told: Sequence[Sequence[AbortedRange]] | None = None
            try:
                told = await committed.aborted([read[1:] for read in reads])
            except (MainstemError, OSError) as error:
                self._broker.faults.report(logging.WARNING, "readers cannot be told what was aborted", error)
            self._check_round()
            if told is not None:
                self._note_aborted(reads, told)
                return
            for row, *_ in reads:  # without the list they would take what was aborted for committed
                self._plan.fail(row)

    def _note_aborted(self, reads: Sequence[tuple[int, int, int, int]], told: Sequence[Sequence[AbortedRange]]) -> None:
        for (row, *_), aborted in zip(reads, told, strict=True):
            if aborted:
                self._plan.tell_aborted(row, [one[:2] for one in aborted])

    def _answer(self) -> EncodedFrame:
        """Write the round into a response; a session remembers what its client was told."""
        plan, call, session = self._plan, self._call, self._session
        errors = plan.errors(CODES)
        buffers = plan.response(
            call.version,
            call.correlation_id,
            CODES,
            session_id=NO_SESSION if session is None else session.session_id,
            read_committed=self._scan.isolation_level == READ_COMMITTED,
            incremental=self._incremental,
            throttle_ms=_charged(self._broker, call, plan.bytes),
        )
        if errors and call.version >= REDIRECTED_FROM and not _LED_BY_OTHERS.isdisjoint(errors):
            named = redirected(self._broker, FetchResponse, call.version, buffers, len(plan), call.session.listener)
            return EncodedFrame(named or buffers, errors)
        return EncodedFrame(buffers, errors)


class _FetchInParts:
    """A request of more partitions than one plan holds: each part has a plan while it is read, and leaves its topics of
    the response. Such a request is looked at twice, at once and when its time is over, since to watch a million queues
    costs more than to look at them again."""

    def __init__(self, broker: Broker, call: RequestContext, body: memoryview | bytes) -> None:
        self._broker = broker
        self._call = call
        self._body = memoryview(body)
        self._scan = scan_fetch(self._body, 0, call.version, 1)
        """For the fields of the request; its plan has nothing but the first entry."""
        self._bytes_max = _bytes_max(broker, self._scan, call)
        self._made = _Parts()
        self._held_bytes = 0

    async def go(self) -> EncodedFrame:
        wait_ms = max(0, min(self._scan.max_wait_ms, self._broker.config.fetch_wait_ms_max))
        deadline = self._broker.clock.monotonic() + wait_ms / 1000
        try:
            await self._look()
            remaining = deadline - self._broker.clock.monotonic()
            if self._made.found < self._bytes_min and not self._made.final and remaining > 0:
                self._start_over()
                over = self._broker.store.wait({}, 1, remaining)  # or when all readers are told to look again
                try:
                    await over
                finally:
                    over.cancel()
                await self._look()
            return self._answer()
        except MalformedFetch as error:
            raise UnreadableRequest(f"Fetch v{self._call.version} is malformed: {error}") from None
        except Exception as error:
            if self._call.version < SESSIONS_FROM:  # which has no error of its own
                self._broker.faults.report(logging.ERROR, "Fetch failed unexpectedly", error)
                raise UnanswerableRequest("Fetch failed, and its response has no room for an error") from error
            return _failed(self._broker, self._scan, self._call, error)
        finally:
            self._hold(0)

    @property
    def _bytes_min(self) -> int:
        return min(self._scan.min_bytes, self._bytes_max, self._made.wanted)

    async def _look(self) -> None:
        """Read all parts, each from what is left of the response's bytes."""
        broker, version, made = self._broker, self._call.version, self._made
        before: FetchScan | None = None
        at = 0
        while before is None or before.rest is not None:
            await broker.turns.take()
            if before is None:
                part = scan_fetch(self._body, 0, version, PART_ENTRIES)
            else:
                part = scan_more(self._body, at, version, before, PART_ENTRIES)
            before, at = part, 0 if part.rest is None else part.rest.position
            # what needs a disk beyond its bound would be asked for one by one
            bytes_max = self._bytes_max if made.found < broker.config.fetch_disk_bytes_max else made.found
            fetch = _Fetch(
                broker, self._call, part, part.plan, None,
                incremental=False, bytes_max=bytes_max, found_before=made.found,
            )  # fmt: skip
            made.add(part.plan, *await fetch.read_part())
            self._hold(made.bytes)

    def _start_over(self) -> None:
        self._made = _Parts()
        self._hold(0)

    def _answer(self) -> EncodedFrame:
        made, call = self._made, self._call
        topics = cast("tuple[Any, ...]", EncodedArray(made.topics, made.buffers))
        throttle_ms = _charged(self._broker, call, made.found)
        response = FetchResponse(throttle_time_ms=throttle_ms, error_code=0, session_id=NO_SESSION, responses=topics)
        parts = codec.write_parts(response, call.version)
        return EncodedFrame(response_frame(call.correlation_id, API_KEY, call.version, parts), made.errors)

    def _hold(self, size_bytes: int) -> None:
        """Charge for the parts of the response made so far, until its sender does."""
        self._broker.response_room.change(size_bytes - self._held_bytes)
        self._held_bytes = size_bytes


class _Parts:
    """The part of a response that the reads so far have made."""

    def __init__(self) -> None:
        self.topics = 0
        self.buffers: list[Buffer] = []
        self.bytes = 0
        """Of the buffers."""
        self.found = 0
        """Bytes of batches."""
        self.wanted = 0
        """Most bytes that the partitions' own limits let through."""
        self.final = False
        """Waiting cannot make the answer better."""
        self.errors: Counter[int] = Counter()

    def add(self, plan: FetchPlan, topics: int, buffers: list[Buffer]) -> None:
        self.topics += topics
        self.buffers += buffers
        self.bytes += sum(map(len, buffers))
        self.found = plan.bytes
        self.wanted += plan.wanted_bytes
        self.final = self.final or (plan.final and len(plan) > 0)
        self.errors.update(plan.errors(CODES))
