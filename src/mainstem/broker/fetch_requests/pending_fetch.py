"""A Fetch request under way, round by round: what memory has is found at once, the rest is read from disks or waited
for, and what was found is answered. No code here runs per partition, except for readers that ask where their history
left the queue's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from mainstem.broker.broker import Broker
from mainstem.broker.fetch_requests import reader_histories
from mainstem.broker.fetch_requests.answers import CODES, Step, bytes_max_of, charged, failed, refused
from mainstem.broker.fetching.fetch_sessions import NO_SESSION, FetchSession
from mainstem.broker.redirects import redirected
from mainstem.broker.request_context import RequestContext
from mainstem.broker.started import EncodedFrame, Later, Waiting
from mainstem.errors import MainstemError
from mainstem.kernel import FetchPlan, FetchScan, FollowersRead, PlannedTopic
from mainstem.model import AbortedRange, Buffer
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.fetch import READ_COMMITTED, FetchResponse
from mainstem.security.acls.acl import Operation, ResourceKind

REDIRECTED_FROM = 12
_LED_BY_OTHERS = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})

ROWS_AT_ONCE = 20_000
"""Partitions checked within the dispatch of their request: a millisecond for each of four passes. With more
of them each pass is a turn of the event loop; there are no more than 125,000 in a plan."""

PART_ENTRIES = 50_000
"""Topics and partitions of a plan where a request has more than one plan holds: each pass over it takes three
milliseconds."""

TOPICS_PER_TURN = 2_000
"""Partitions looked up within one turn of the event loop: a millisecond."""

FOLLOWED_WAIT_SECONDS_MAX = 1.0
"""After so long a reader of replicas that other nodes lead looks whether this node still follows them: nothing wakes it
when the node loses sight of a leader."""


class Overtaken(Exception):
    """A later request of the same session has taken over its plan."""


class PendingFetch:
    """One request under way. `incremental`: the answer names only partitions with news."""

    __slots__ = (
        "_at_once_max", "_broker", "_bytes_max", "_bytes_min", "_call", "_deadline", "_found_before", "_held_bytes",
        "_incremental", "_plan", "_rack", "_round", "_scan", "_session", "_store",
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
        self._bytes_max = bytes_max_of(broker, scan.max_bytes, call) if bytes_max is None else bytes_max
        # disks are read in pieces, and in step with other readers; what memory has is found and copied in one turn
        self._at_once_max = min(self._bytes_max, call.session.response_bytes_max())
        self._bytes_min = min(scan.min_bytes, self._bytes_max, plan.wanted_bytes)
        plan.reader = call.session.connection_id
        plan.read_committed = scan.isolation_level == READ_COMMITTED
        self._rack = scan.rack if bytes_max is None else ""  # it stands behind the last part of a request in parts
        plan.nearer = broker.nearer_replicas.of(self._rack, call.session.listener)
        plan.for_history = broker.nearer_replicas.for_history(self._rack, call.session.listener, plan.reader)
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
        except Overtaken:
            return refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH, self._call)
        except Exception as error:
            return failed(self._broker, self._scan, self._call, error)
        self._remaining()
        return await self._read_on()

    def go(self) -> Step:
        """Begin a round and take it as far as memory goes."""
        plan = self._plan
        self._begin()
        if not plan.asks_epochs or reader_histories.go_on(self._broker, plan):
            self._store.read_at_once(plan)
            if plan.settled:
                return self._decide()
        self._remaining()
        return self._read_on

    def _again(self) -> Step:
        try:
            if self._plan.round != self._round:
                return refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH, self._call)
            return self.go_in_turns if self.is_long else self.go()
        except Exception as error:
            return failed(self._broker, self._scan, self._call, error)

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
        except Overtaken:
            return refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH, self._call)
        except Exception as error:
            return failed(self._broker, self._scan, self._call, error)
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
            raise Overtaken
        self._plan.begin(topics.__getitem__, self._at_once_max, self._found_before)
        self._begun()
        await self._turn()

    async def _turn(self) -> None:
        await self._broker.turns.take()
        self._check_round()

    def _begin(self) -> None:
        self._plan.begin(self._resolver(), self._at_once_max)
        self._begun()

    def _begun(self) -> None:
        """Take note of the round, and of where a consumer that names its rack may read."""
        plan, replicas, rack = self._plan, self._broker.nearer_replicas, self._rack
        self._round = plan.round
        plan.from_followers = replicas.are_here(rack, spread=plan.has_spread)
        plan.share, plan.share_to = None, -1
        if not rack:
            return
        listener = self._call.session.listener
        if (near := replicas.broker_near(rack, listener, plan.reader)) >= 0:
            plan.share_to, plan.from_followers = near, FollowersRead.SENT
        elif plan.has_spread:
            plan.share = replicas.share(rack, listener, plan.reader)
            plan.share_to = replicas.broker_for(rack, listener, plan.reader)

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
        followed = plan.from_followers and not self._broker.apart
        missing = self._bytes_min - plan.bytes
        if missing <= 0 or plan.final:
            return self._answered()
        if (remaining := self._remaining()) <= 0:
            if followed:
                plan.give_up_ahead()
            return self._answered()
        if followed:
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
            raise Overtaken

    async def _read_rest(self) -> None:
        """Settle what is pending in this round."""
        plan = self._plan
        self._check_round()
        if plan.asks_epochs:
            await reader_histories.compare(self._broker, plan, self._turn, self._check_round)
        self._store.read_at_once(plan)
        plan.widen(self._bytes_max)
        while not plan.settled:
            await self._read_disks(min(self._bytes_max, self._broker.config.fetch_disk_bytes_max))
            self._check_round()
            self._hold(plan.bytes - self._found_before)

    async def _read_disks(self, bytes_max: int) -> None:
        broker, session = self._broker, self._call.session
        store = broker.store_for(session)
        tenants = broker.throttling is not None and broker.throttling.has_tenants
        async with broker.read_turns.of(session.sharer, always=tenants):
            self._check_round()
            await store.read(self._plan, bytes_max)

    def _hold(self, size_bytes: int) -> None:
        """Charge for the bytes found on disks so far while more is read; once the response is sent, its
        sender charges for them."""
        if size_bytes != self._held_bytes:
            self._broker.response_room.change(size_bytes - self._held_bytes)
            self._held_bytes = size_bytes

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
        except Overtaken:
            return refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH, self._call)
        except Exception as error:
            return failed(self._broker, self._scan, self._call, error)
        finally:
            if self._plan.round == self._round:
                self._plan.release()

    async def _tell_aborted(self, reads: Sequence[tuple[int, int, int, int]]) -> None:
        """Have readers of committed data told of the aborted transactions of these reads: (row, queue id, first offset,
        offset behind the last)."""
        committed = self._broker.committed_reads
        if self._plan.read_committed and committed is not None:
            told = await committed.aborted([read[1:] for read in reads])
            self._check_round()
            self._note_aborted(reads, told)

    def _note_aborted(
        self,
        reads: Sequence[tuple[int, int, int, int]],
        told: Sequence[Sequence[AbortedRange] | MainstemError | OSError],
    ) -> None:
        for (row, *_), aborted in zip(reads, told, strict=True):
            if isinstance(aborted, MainstemError | OSError):
                self._broker.faults.report(logging.WARNING, "a reader cannot be told what was aborted", aborted)
                self._plan.fail(row)  # without the list it would take what was aborted for committed
            elif aborted:
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
            throttle_ms=charged(self._broker, call, plan.bytes),
        )
        if errors and call.version >= REDIRECTED_FROM and not _LED_BY_OTHERS.isdisjoint(errors):
            named = redirected(self._broker, FetchResponse, call.version, buffers, len(plan), call.session.listener)
            return EncodedFrame(named or buffers, errors)
        return EncodedFrame(buffers, errors)
