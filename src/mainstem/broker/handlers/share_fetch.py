"""ShareFetch: acquires records of the partitions that a member of a share group follows, and waits for them when there
are none; acknowledges others first.

A partition is read and its records are acquired in two steps, between which others may get them: then there is nothing
this time. Batches go out whole, as producers sent them; the answer says which of their offsets are acquired.
"""

from __future__ import annotations

import asyncio

from mainstem.broker.broker import Broker
from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.fetch_requests.answers import bytes_max_of, charged
from mainstem.broker.partitions import find_partition
from mainstem.broker.redirects import Leaders
from mainstem.broker.request_context import RequestContext
from mainstem.broker.share_groups.config import READ_COMMITTED
from mainstem.broker.share_groups.records import SharedPartition
from mainstem.broker.share_groups.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    ShareMember,
    ShareSession,
)
from mainstem.broker.share_groups.share_partition import Acquired, BatchSpan
from mainstem.broker.share_groups.state_machine import ReadBatches, WantedRecords
from mainstem.broker.share_serving.share_reading import read_shared, readable
from mainstem.broker.share_serving.share_requests import (
    PARTITIONS_PER_TURN,
    ShareRow,
    ShareRows,
    acknowledge,
    asked,
    end_session,
    endpoints,
    leader_of,
    may_read,
    member_of,
    window_of,
)
from mainstem.model import Buffer
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_fetch import (
    BATCH_OPTIMIZED,
    RECORD_LIMIT,
    AcquiredRecords,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    SharePartitionData,
)
from mainstem.security.acls.acl import Operation, ResourceKind

READ_BYTES_MAX = 1 << 20
"""Read of one partition at a time: as much as consumers take of one by default."""

RECORDS_MAX = 100_000
"""Offsets that one request acquires at most, whatever it asks for."""

LOADING_LOOK_SECONDS = 0.1
"""How often a request looks again at a partition whose state is being loaded, whose first records have just gone,
or that has a long stretch of records of aborted transactions."""

ELSEWHERE_LOOK_SECONDS = 0.5
"""How often a request looks again at a window that another node serves: nobody tells this one what was given back."""

HIDDEN_READS_MAX = 8
"""Reads in a row of one partition that bring nothing but records of aborted transactions."""


async def handle(broker: Broker, request: ShareFetchRequest, call: RequestContext) -> ShareFetchResponse:
    member = member_of(request)
    if isinstance(member, ErrorCode):
        return _refused(member)
    epoch = request.share_session_epoch
    acknowledges = any(each.batches for each in asked(request))
    if request.share_acquire_mode not in (BATCH_OPTIMIZED, RECORD_LIMIT) or (acknowledges and epoch == INITIAL_EPOCH):
        return _refused(ErrorCode.INVALID_REQUEST)
    if request.is_renew_ack and (limits := _limits_of(request)):
        return _refused(
            ErrorCode.INVALID_REQUEST, f"a request that renews locks fetches nothing: set {', '.join(limits)} to 0"
        )
    session = broker.shares.sessions.enter(member, epoch, broker.clock.now_ms(), call.session.connection_id)
    if isinstance(session, ErrorCode):
        return _refused(session)
    rows = ShareRows()
    await acknowledge(broker, call, member, asked(request), rows, renews=request.is_renew_ack)
    if epoch == FINAL_EPOCH:
        await end_session(broker, member, session)
        return _answer(broker, call, member.group_id, rows)
    if not _follow(broker, session, request):
        broker.shares.sessions.close(member)
        return _refused(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
    if not request.is_renew_ack:
        fetch = _ShareFetch(broker, request, call, member, session, rows)
        await fetch.run(at_once=bool(rows.by_topic))
        if fetch.refused:
            return _refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if session.over and not broker.shares.sessions.has(member):  # it was acquired for nobody
            await end_session(broker, member, session)
    return _answer(broker, call, member.group_id, rows)


def _limits_of(request: ShareFetchRequest) -> list[str]:
    """Those of its limits that say it wants records. Kafka's clients leave them at 0 where they renew."""
    limits = {
        "MaxBytes": request.max_bytes,
        "MinBytes": request.min_bytes,
        "MaxRecords": request.max_records,
        "MaxWaitMs": request.max_wait_ms,
    }
    return [name for name, limit in limits.items() if limit != 0]


def _follow(broker: Broker, session: ShareSession, request: ShareFetchRequest) -> bool:
    """Apply what a request changes of its session; False: the session has no room for it."""
    for topic in request.forgotten_topics_data:
        for index in topic.partitions:
            session.followed.pop(SharedPartition(topic.topic_id, index), None)
    return all(broker.shares.sessions.follow(session, each.partition) for each in asked(request))


class _ShareFetch:
    """One request on its way."""

    def __init__(
        self,
        broker: Broker,
        request: ShareFetchRequest,
        call: RequestContext,
        member: ShareMember,
        session: ShareSession,
        rows: ShareRows,
    ) -> None:
        self._broker = broker
        self._request = request
        self._call = call
        self._member = member
        self._session = session
        self._rows = rows
        self._bytes_left = bytes_max_of(broker, request.max_bytes, call)
        self._records_left = min(request.max_records, RECORDS_MAX)
        self.refused = False
        """Whether the client may not read the group any more, which it might when it asked."""
        self._has_news = False
        self._has_records = False
        self._comes_again = False
        self._has_elsewhere = False
        """Whether another node serves one of the windows."""
        self._ends: dict[int, int] = {}
        """Of the partitions that had nothing to give, by queue id."""

    async def run(self, *, at_once: bool) -> None:
        """Acquire what there is; if that is nothing, wait for more until the time of the request is over, unless the
        answer has something else to tell."""
        broker, wakeups = self._broker, self._broker.shares.wakeups
        wait_ms = max(0, min(self._request.max_wait_ms, broker.config.fetch_wait_ms_max))
        deadline = broker.clock.monotonic() + wait_ms / 1000
        more = asyncio.Event()
        keys = [window_of(self._member, partition) for partition in self._session.followed]
        wakeups.begin(keys, more)
        try:
            while True:
                more.clear()
                await self._look()
                remaining = deadline - broker.clock.monotonic()
                if self._has_news or at_once or remaining <= 0 or not keys or self._records_left <= 0:
                    return
                if self._session.over:
                    return
                if self._comes_again:
                    remaining = min(remaining, LOADING_LOOK_SECONDS)
                elif self._has_elsewhere:
                    remaining = min(remaining, ELSEWHERE_LOOK_SECONDS)
                await self._wait(more, remaining)
                if not self._may_read_group():
                    self.refused = True
                    return
        finally:
            wakeups.end(keys, more)

    def _may_read_group(self) -> bool:
        """Whether the rules allow the group still: they may have been revoked while the client waited."""
        verdicts = self._broker.verdicts(self._call.session)
        return verdicts.allows(Operation.READ, ResourceKind.GROUP, self._member.group_id)

    async def _wait(self, more: asyncio.Event, seconds: float) -> None:
        appended = self._broker.store.wait(self._ends, 1, seconds) if self._ends else None
        if appended is not None:
            appended.add_done_callback(lambda _: more.set())
        try:
            async with asyncio.timeout(seconds):
                await more.wait()
        except TimeoutError:
            pass
        finally:
            if appended is not None:
                appended.cancel()

    async def _look(self) -> None:
        self._ends.clear()
        self._comes_again = False
        pace = self._broker.turns.pace(PARTITIONS_PER_TURN)
        for partition in list(self._session.followed):
            await pace.step()
            if self._records_left <= 0 or self._bytes_left <= 0 or self._session.over:
                return
            code = may_read(self._broker, self._call, partition.topic_id)
            if code is ErrorCode.NONE:
                code = await self._acquire(partition)
            if code is not ErrorCode.NONE:
                self._rows.of(partition).error = code
                self._has_news = True

    async def _acquire(self, partition: SharedPartition) -> ErrorCode:
        """Acquire records of one partition, as far as the request has room for more. One that the group comes to by
        this request gives none to it once another has: as in Kafka, which answers as soon as the first is ready."""
        broker, key = self._broker, window_of(self._member, partition)
        found = await find_partition(broker, partition.topic_id, partition.partition)
        if isinstance(found, ErrorCode):
            return found
        committed = broker.shares.config_of(key.group_id).isolation_level == READ_COMMITTED
        bounds = readable(found, committed=committed)
        begins_late = self._has_records and not broker.shares.has_begun(found.queue_id, key)
        for _ in range(HIDDEN_READS_MAX):
            try:
                start = await broker.shares.begin(found.queue_id, key, bounds)
                self._has_elsewhere |= not start.here
                if start.offset is None or begins_late:
                    return ErrorCode.NONE
                if start.offset >= bounds.end:
                    break
                bytes_max = min(self._bytes_left, READ_BYTES_MAX)
                session = self._call.session
                read = await read_shared(broker, session, found, start.offset, bytes_max, committed=committed)
                if read is ErrorCode.OFFSET_OUT_OF_RANGE:  # the log's start has just moved past it
                    self._comes_again = True
                    return ErrorCode.NONE
                if isinstance(read, ErrorCode):
                    return read
                acquired = await broker.shares.acquire(
                    found.queue_id,
                    key,
                    self._member.member_id,
                    ReadBatches(start.offset, [span for span, _ in read.batches], read.end),
                    WantedRecords(self._records_left, self._request.share_acquire_mode),
                )
            except CoordinatorRefusal as refusal:
                if refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    self._comes_again = True
                    return ErrorCode.NONE
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            if acquired:
                self._take(partition, acquired, read.batches)
                return ErrorCode.NONE
            if read.batches or read.end <= start.offset:  # others got them, or there is nothing
                break
        else:
            self._comes_again = True
        self._ends[found.queue_id] = found.offsets.high_watermark
        return ErrorCode.NONE

    def _take(
        self, partition: SharedPartition, acquired: list[Acquired], batches: list[tuple[BatchSpan, Buffer]]
    ) -> None:
        row: ShareRow = self._rows.of(partition)
        row.acquired = acquired
        row.records = tuple(
            data for span, data in batches if any(run.first <= span.last and span.first <= run.last for run in acquired)
        )
        self._bytes_left -= sum(len(data) for data in row.records)
        self._records_left -= sum(run.last - run.first + 1 for run in acquired)
        self._session.rotate(partition)
        self._has_news = self._has_records = True


def _refused(code: ErrorCode, why: str = "") -> ShareFetchResponse:
    return ShareFetchResponse(error_code=code, error_message=why or code.message, responses=())


def _answer(broker: Broker, call: RequestContext, group_id: str, rows: ShareRows) -> ShareFetchResponse:
    leaders = Leaders(broker, call.session.listener)
    size_bytes = 0
    topics = []
    for topic_id, partitions in rows.by_topic.items():
        answers = []
        for index, row in partitions.items():
            size_bytes += sum(len(data) for data in row.records)
            answers.append(
                SharePartitionData(
                    partition_index=index,
                    error_code=row.error,
                    error_message=_message(row.error),
                    acknowledge_error_code=row.acknowledge_error,
                    acknowledge_error_message=_message(row.acknowledge_error),
                    current_leader=leader_of(leaders, broker, topic_id, index, row),
                    records=row.records,
                    acquired_records=tuple(
                        AcquiredRecords(first_offset=run.first, last_offset=run.last, delivery_count=run.deliveries)
                        for run in row.acquired
                    ),
                )
            )
        topics.append(ShareFetchableTopicResponse(topic_id=topic_id, partitions=tuple(answers)))
    return ShareFetchResponse(
        throttle_time_ms=charged(broker, call, size_bytes),
        error_code=ErrorCode.NONE,
        acquisition_lock_timeout_ms=broker.shares.config_of(group_id).lock_duration_ms,
        responses=tuple(topics),
        node_endpoints=endpoints(leaders),
    )


def _message(code: ErrorCode) -> str | None:
    return None if code is ErrorCode.NONE else code.message
