"""Fetch: batches of partitions, waiting for them when there are not enough yet.

A request is first resolved to what it follows (`_open`: its session, if any), then read until there is enough
or its time is over, then answered. An incremental answer names only partitions with news. Batches go out as
the views the store gave: nothing is copied.

While there are no transactions the last stable offset is the high watermark, and no transaction was ever
aborted: readers of committed data get an empty list, the others null, as in Kafka.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from mainstem.broker.broker import Broker, Call
from mainstem.broker.errors import ERROR_OF_OUTCOME
from mainstem.broker.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    FollowedPartition,
    PartitionKey,
)
from mainstem.broker.partitions import find_partition
from mainstem.model import Buffer, Outcome, QueueRead, QueueSlice
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

TOPIC_IDS_FROM = 13

READ_COMMITTED = 1


class _Following(NamedTuple):
    """What one request reads. `incremental`: the answer names only partitions with news."""

    partitions: dict[PartitionKey, FollowedPartition]
    session: FetchSession | None
    incremental: bool


class _Round(NamedTuple):
    """One look at everything that is followed, partitions in the order of the request or session."""

    refused: dict[PartitionKey, ErrorCode]
    diverged: dict[PartitionKey, EpochEndOffset]
    slices: dict[PartitionKey, QueueSlice]

    @property
    def bytes(self) -> int:
        return sum(sum(map(len, found.batches)) for found in self.slices.values())

    @property
    def final(self) -> bool:
        """Waiting cannot make it better: something is wrong, or nothing is left to wait for."""
        if self.refused or self.diverged or not self.slices:
            return True
        return any(found.outcome is not Outcome.OK or _was_cut(found) for found in self.slices.values())


def _was_cut(found: QueueSlice) -> bool:
    """More is there than the limits let through: what comes while waiting would not get through either."""
    return found.next_offset < found.offsets.high_watermark


async def handle(broker: Broker, request: FetchRequest, call: Call) -> FetchResponse:
    following = _open(broker, request, call.version)
    if isinstance(following, ErrorCode):
        return FetchResponse(error_code=following, session_id=NO_SESSION, responses=())
    round_ = await _read_enough(broker, request, following)
    return _answer(request, following, round_)


# sessions


def _open(broker: Broker, request: FetchRequest, version: int) -> _Following | ErrorCode:
    """Resolve a request to what it follows, moving its session on."""
    sessions = broker.fetch_sessions
    by_id = version >= TOPIC_IDS_FROM
    asked = _asked(request, by_id)
    now_ms = broker.clock.now_ms()
    if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        if request.session_id != NO_SESSION:
            sessions.close(request.session_id)
        session = None
        if request.session_epoch == INITIAL_EPOCH:
            session = sessions.open(asked, now_ms, by_id=by_id)
        return _Following(asked, session, incremental=False)
    session = sessions.find(request.session_id, now_ms)
    if session is None:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    if session.epoch != request.session_epoch:
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH
    if session.by_id != by_id:
        return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    forgotten = [
        PartitionKey(topic.topic_id if by_id else topic.topic, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]
    if not sessions.update(session, asked, forgotten):
        sessions.close(session.session_id)  # it would have to forget something the client relies on
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    session.advance()
    if not session.partitions:
        sessions.close(session.session_id)
        return _Following({}, None, incremental=False)
    return _Following(dict(session.partitions), session, incremental=True)


def _asked(request: FetchRequest, by_id: bool) -> dict[PartitionKey, FollowedPartition]:
    return {
        PartitionKey(topic.topic_id if by_id else topic.topic, asked.partition): FollowedPartition(
            fetch_offset=asked.fetch_offset,
            partition_max_bytes=asked.partition_max_bytes,
            current_leader_epoch=asked.current_leader_epoch,
            last_fetched_epoch=asked.last_fetched_epoch,
        )
        for topic in request.topics
        for asked in topic.partitions
    }


# reading


async def _read_enough(broker: Broker, request: FetchRequest, following: _Following) -> _Round:
    """Read until there are `min_bytes`, or `max_wait_ms` are over, or waiting makes no sense."""
    bytes_max = max(0, min(request.max_bytes, broker.config.fetch_bytes_max))
    bytes_min = min(
        request.min_bytes,
        bytes_max,
        sum(max(0, asked.partition_max_bytes) for asked in following.partitions.values()),
    )
    wait_ms = max(0, min(request.max_wait_ms, broker.config.fetch_wait_ms_max))
    deadline = broker.clock.monotonic() + wait_ms / 1000
    while True:
        round_ = await _read(broker, following.partitions, bytes_max)
        missing = bytes_min - round_.bytes
        remaining = deadline - broker.clock.monotonic()
        if missing <= 0 or remaining <= 0 or round_.final:
            return round_
        ends = {found.queue_id: found.offsets.high_watermark for found in round_.slices.values()}
        await broker.store.wait(ends, missing, remaining)


async def _read(
    broker: Broker, partitions: dict[PartitionKey, FollowedPartition], bytes_max: int
) -> _Round:
    round_ = _Round({}, {}, {})
    reads: dict[PartitionKey, QueueRead] = {}
    for key, asked in partitions.items():
        found = find_partition(broker, key.topic, key.partition, asked.current_leader_epoch)
        if isinstance(found, ErrorCode):
            round_.refused[key] = found
            continue
        if asked.last_fetched_epoch >= 0:
            diverging = await _diverging_epoch(broker, found.queue_id, asked)
            if diverging is not None:
                round_.diverged[key] = diverging
                continue
        reads[key] = QueueRead(found.queue_id, asked.fetch_offset, max(0, asked.partition_max_bytes))
    if reads:
        slices = await broker.store.read(list(reads.values()), bytes_max)
        round_.slices.update(zip(reads, slices, strict=True))
    return round_


async def _diverging_epoch(broker: Broker, queue_id: int, asked: FollowedPartition) -> EpochEndOffset | None:
    """Where the reader's history leaves the queue's, if it does."""
    end = await broker.queue_admin.epoch_end(queue_id, asked.last_fetched_epoch)
    if end is None or (end[0] == asked.last_fetched_epoch and end[1] >= asked.fetch_offset):
        return None
    return EpochEndOffset(epoch=end[0], end_offset=end[1])


# answering


def _answer(request: FetchRequest, following: _Following, round_: _Round) -> FetchResponse:
    """Put the round into a response, and remember in the session what was told."""
    read_committed = request.isolation_level == READ_COMMITTED
    by_topic: dict[str | UUID, list[PartitionData]] = {}
    served: list[PartitionKey] = []
    for key, followed in following.partitions.items():
        data = _partition_data(key, round_, read_committed)
        if following.session is not None:
            news = _is_news(followed, data)
            followed.told_error = data.error_code != 0
            followed.told_high_watermark = data.high_watermark
            followed.told_log_start = data.log_start_offset
            if following.incremental and not news:
                continue
            if data.records:
                served.append(key)
        by_topic.setdefault(key.topic, []).append(data)
    session = following.session
    if session is not None:
        session.take_turn(served)
    return FetchResponse(
        session_id=NO_SESSION if session is None else session.session_id,
        responses=tuple(_topic_data(topic, partitions) for topic, partitions in by_topic.items()),
    )


def _is_news(followed: FollowedPartition, data: PartitionData) -> bool:
    return (
        bool(data.records)
        or data.error_code != 0
        or followed.told_error
        or data.high_watermark != followed.told_high_watermark
        or data.log_start_offset != followed.told_log_start
        or data.diverging_epoch.epoch >= 0
    )


def _topic_data(topic: str | UUID, partitions: list[PartitionData]) -> FetchableTopicResponse:
    if isinstance(topic, UUID):
        return FetchableTopicResponse(topic_id=topic, partitions=tuple(partitions))
    return FetchableTopicResponse(topic=topic, partitions=tuple(partitions))


def _partition_data(key: PartitionKey, round_: _Round, read_committed: bool) -> PartitionData:
    found = round_.slices.get(key)
    if found is None or found.outcome is not Outcome.OK:
        diverging = round_.diverged.get(key)
        error = ErrorCode.NONE
        if found is not None:
            error = ERROR_OF_OUTCOME[found.outcome]
        elif diverging is None:
            error = round_.refused[key]
        return PartitionData(
            partition_index=key.partition,
            error_code=error,
            high_watermark=-1,
            diverging_epoch=diverging or EpochEndOffset(),
            records=b"",
        )
    records: tuple[Buffer, ...] | bytes = tuple(found.batches) or b""
    return PartitionData(
        partition_index=key.partition,
        error_code=ErrorCode.NONE,
        high_watermark=found.offsets.high_watermark,
        last_stable_offset=found.offsets.high_watermark,
        log_start_offset=found.offsets.log_start,
        aborted_transactions=() if read_committed else None,
        records=records,
    )


def errors_in(response: FetchResponse) -> list[int]:
    """The error codes of a response and its partitions, for statistics."""
    errors = [
        partition.error_code
        for topic in response.responses
        for partition in topic.partitions
        if partition.error_code
    ]
    return [response.error_code, *errors] if response.error_code else errors
