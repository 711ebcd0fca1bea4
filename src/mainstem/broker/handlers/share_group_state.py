"""InitializeShareGroupState, ReadShareGroupState, WriteShareGroupState, DeleteShareGroupState and
ReadShareGroupStateSummary: the state of share groups over partitions that this node serves, for brokers of the cluster.

FindCoordinator names the node that keeps a partition's state: it is the partition's leader, which gives the records out
itself. So brokers of Mainstem need none of this among themselves; the requests work on the state that members see.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from mainstem.broker.broker import Broker
from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.request_context import RequestContext
from mainstem.broker.share_groups.records import SharedPartition
from mainstem.broker.share_groups.state_machine import WindowState, WrittenState
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_group_state import (
    ANY_EPOCH,
    UNINITIALIZED,
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializedPartition,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    StateOfPartition,
    StateOfTopic,
    StatePartitionResult,
    StateReadPartition,
    StateTopicResult,
    SummaryOfPartition,
    SummaryOfTopic,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WrittenPartition,
)

PARTITIONS_PER_TURN = 100
"""Partitions looked at within one turn of the event loop: about a millisecond."""

Row = TypeVar("Row")


class _TopicRows(NamedTuple):
    topic_id: UUID
    rows: tuple[Any, ...]


async def initialize(
    broker: Broker, request: InitializeShareGroupStateRequest, call: RequestContext
) -> InitializeShareGroupStateResponse:
    async def begin(at: SharedPartition, asked: InitializedPartition) -> ErrorCode:
        return await broker.shares.states.initialize_here(request.group_id, at, asked.state_epoch, asked.start_offset)

    return InitializeShareGroupStateResponse(results=await _changed(broker, request, begin))


async def write(
    broker: Broker, request: WriteShareGroupStateRequest, call: RequestContext
) -> WriteShareGroupStateResponse:
    async def note(at: SharedPartition, asked: WrittenPartition) -> ErrorCode:
        written = WrittenState(asked.state_epoch, asked.leader_epoch, asked.start_offset, asked.state_batches)
        return await broker.shares.states.write_here(request.group_id, at, written)

    return WriteShareGroupStateResponse(results=await _changed(broker, request, note))


async def delete(
    broker: Broker, request: DeleteShareGroupStateRequest, call: RequestContext
) -> DeleteShareGroupStateResponse:
    async def forget(at: SharedPartition, asked: Any) -> ErrorCode:
        return await broker.shares.states.delete_here(request.group_id, at)

    return DeleteShareGroupStateResponse(results=await _changed(broker, request, forget))


async def read(
    broker: Broker, request: ReadShareGroupStateRequest, call: RequestContext
) -> ReadShareGroupStateResponse:
    async def state(at: SharedPartition, asked: StateReadPartition) -> WindowState | ErrorCode:
        return await broker.shares.states.state_to_lead_here(request.group_id, at, asked.leader_epoch)

    def row(index: int, found: WindowState | ErrorCode) -> StateOfPartition:
        if isinstance(found, ErrorCode):
            return StateOfPartition(
                partition=index,
                error_code=found,
                error_message=found.message,
                state_epoch=0,
                start_offset=0,
                state_batches=(),
            )
        return StateOfPartition(
            partition=index,
            error_code=ErrorCode.NONE,
            state_epoch=found.state_epoch,
            start_offset=found.start,
            state_batches=tuple(found.batches),
        )

    found = await _each(broker, request.group_id, request.topics, state, row)
    return ReadShareGroupStateResponse(
        results=tuple(StateOfTopic(topic_id=topic_id, partitions=rows) for topic_id, rows in found)
    )


async def read_summary(
    broker: Broker, request: ReadShareGroupStateSummaryRequest, call: RequestContext
) -> ReadShareGroupStateSummaryResponse:
    async def state(at: SharedPartition, asked: StateReadPartition) -> WindowState | ErrorCode:
        found = await broker.shares.states.state_here(request.group_id, at)
        return _NOT_BEGUN if found is None else found

    def row(index: int, found: WindowState | ErrorCode) -> SummaryOfPartition:
        state = _NOT_BEGUN if isinstance(found, ErrorCode) else found
        code = found if isinstance(found, ErrorCode) else ErrorCode.NONE
        return SummaryOfPartition(
            partition=index,
            error_code=code,
            error_message=None if code is ErrorCode.NONE else code.message,
            state_epoch=state.state_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=state.start,
            delivery_complete_count=state.done,
        )

    found = await _each(broker, request.group_id, request.topics, state, row)
    return ReadShareGroupStateSummaryResponse(
        results=tuple(SummaryOfTopic(topic_id=topic_id, partitions=rows) for topic_id, rows in found)
    )


_NOT_BEGUN = WindowState(state_epoch=0, leader_epoch=0, start=UNINITIALIZED, batches=(), done=ANY_EPOCH)


async def _changed(
    broker: Broker, request: Any, change: Callable[[SharedPartition, Any], Awaitable[ErrorCode]]
) -> tuple[StateTopicResult, ...]:
    def row(index: int, code: ErrorCode) -> StatePartitionResult:
        message = None if code is ErrorCode.NONE else code.message
        return StatePartitionResult(partition=index, error_code=code, error_message=message)

    found = await _each(broker, request.group_id, request.topics, change, row)
    return tuple(StateTopicResult(topic_id=topic_id, partitions=rows) for topic_id, rows in found)


async def _each(
    broker: Broker,
    group_id: str,
    topics: Sequence[Any],
    ask: Callable[[SharedPartition, Any], Awaitable[Any]],
    row: Callable[[int, Any], Any],
) -> list[_TopicRows]:
    """A row for each partition of a request."""
    pace = broker.turns.pace(PARTITIONS_PER_TURN)
    found = []
    for topic in topics:
        rows = []
        for asked in topic.partitions:
            await pace.step()
            at = SharedPartition(topic.topic_id, asked.partition)
            try:
                answer = await ask(at, asked) if group_id and at.partition >= 0 else ErrorCode.INVALID_REQUEST
            except CoordinatorRefusal as refusal:
                answer = refusal.code
            rows.append(row(at.partition, answer))
        found.append(_TopicRows(topic.topic_id, tuple(rows)))
    return found
