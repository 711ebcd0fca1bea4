"""Offsets of consumer groups: commits, alone or within a transaction, fetches and deletions. Topics go by name; the
caller has checked that they exist."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from mainstem.broker.consumer_groups.machine import ConsumerGroupMachine
from mainstem.broker.consumer_groups.requests.submission import Submission
from mainstem.broker.consumer_groups.step import Caller
from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.machines.result import Moment, Result, Ticket
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from mainstem.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from mainstem.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
)
from mainstem.protocol.messages.producer_transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)


class MarkersSeen(NamedTuple):
    """A moment in the life of a machine: so many markers were applied."""

    machine: ConsumerGroupMachine
    markers: int


class OffsetRequests:
    """To the coordinator of one node."""

    def __init__(self, submission: Submission) -> None:
        self._submission = submission
        self._served = submission.served

    async def commit_offsets(self, request: OffsetCommitRequest, call: RequestContext) -> OffsetCommitResponse:
        """An empty group id is a group id like any other, as old clients have it.

        A commit without a member waits for the log, as it may be the first request to this coordinator; members have
        met theirs before."""
        caller = Caller.of(call)
        member = request.generation_id_or_member_epoch >= 0
        answer = self._submission.answer if member else self._submission.patient_answer
        return await answer(
            request.group_id,
            lambda machine, ticket, now: machine.offsets.commit(ticket, request, caller, now),
            lambda code: _refused_commit(request, code),
            nameless=True,
        )

    async def fetch_offsets(
        self, request: OffsetFetchRequestGroup, *, require_stable: bool = False
    ) -> OffsetFetchResponseGroup:
        """The answer is true as of when the request came in: a node that was cut off or stood still, and has not
        noticed that another node leads, answers nothing."""
        return await self._submission.confirmed_answer(
            request.group_id,
            lambda machine, ticket, now: machine.offsets.fetch(ticket, request, now, require_stable=require_stable),
            lambda code: OffsetFetchResponseGroup(group_id=request.group_id, topics=(), error_code=code),
        )

    async def name_committed(self, request: OffsetFetchRequestGroup) -> OffsetFetchRequestGroup:
        """Names the topics and partitions in a request for all offsets of a consumer group. A request that
        this node cannot answer comes back unchanged: `fetch_offsets` says why."""
        committed: list[tuple[str, list[int]]] | None = await self._submission.confirmed_answer(
            request.group_id,
            lambda machine, ticket, now: machine.offsets.committed(ticket, request.group_id, now),
            lambda code: None,
        )
        if committed is None:
            return request
        topics = [OffsetFetchRequestTopics(name=name, partition_indexes=tuple(indexes)) for name, indexes in committed]
        return replace(request, topics=tuple(topics))

    async def delete_offsets(self, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        return await self._submission.answer(
            request.group_id,
            lambda machine, ticket, now: machine.offsets.delete_offsets(ticket, request, now),
            lambda code: OffsetDeleteResponse(error_code=code, topics=()),
        )

    # --- transactions --------------------------------------------------------------------------------

    def applied_markers(self, group_id: str) -> MarkersSeen | None:
        """How many markers of transactions were applied to a group's partition of the log: to be taken before a
        producer's transaction is asked for. None: this node does not coordinate the group now."""
        partition = self._served.partitions.get(self._served.index_of(group_id))
        machine = None if partition is None else partition.machine
        return None if machine is None else MarkersSeen(machine, machine.state.pending.markers)

    async def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, seen: MarkersSeen | None, coordinator_epoch: int
    ) -> TxnOffsetCommitResponse:
        """The caller has checked, since `seen` was taken, that the transaction is open. `coordinator_epoch`: of whoever
        said so."""

        def event(machine: ConsumerGroupMachine, ticket: Ticket, now: Moment) -> Result:
            asked_at = seen.markers if seen is not None and seen.machine is machine else -1
            return machine.offsets.commit_in_transaction(ticket, request, asked_at, coordinator_epoch, now)

        return await self._submission.answer(
            request.group_id, event, lambda code: refused_in_transaction(request, code), nameless=True
        )

    async def end_transaction(
        self, index: int, producer_id: int, epoch: int, coordinator_epoch: int, *, commit: bool
    ) -> ErrorCode:
        """Apply the marker of a producer's transaction to a partition of the log."""
        while True:
            try:
                await self._served.open()
                code = await self._served.led(index).submit(
                    lambda machine, ticket, now: machine.offsets.end_transaction(
                        ticket, producer_id, epoch, coordinator_epoch, commit, now
                    )
                )
            except CoordinatorRefusal as refusal:
                return refusal.code
            assert isinstance(code, ErrorCode)
            if code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return code

    async def pending_producers(self, index: int) -> list[tuple[int, int, int]]:
        """The producers with open transactions that commit offsets into a partition of the log: ids, epochs, times of
        their last offsets. Raises `CoordinatorRefusal`."""
        await self._served.open()
        found: list[tuple[int, int, int]] = await self._served.led(index).submit(
            lambda machine, ticket, now: machine.offsets.pending_producers(ticket, now)
        )
        return found


def _refused_commit(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    topics = []
    for topic in request.topics:
        partitions = tuple(
            OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
            for partition in topic.partitions
        )
        topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=partitions))
    return OffsetCommitResponse(topics=tuple(topics))


def refused_in_transaction(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    topics = []
    for topic in request.topics:
        partitions = tuple(
            TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
            for partition in topic.partitions
        )
        topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions))
    return TxnOffsetCommitResponse(topics=tuple(topics))
