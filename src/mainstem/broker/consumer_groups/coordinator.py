"""The consumer group coordinator of one node: answers the group APIs by the machines of the partitions that this node
serves (`served_partitions`).

Consumer groups go to partitions as in Kafka, so that public tools find them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from mainstem.broker.consumer_groups.machine import ConsumerGroupMachine
from mainstem.broker.consumer_groups.modern.described import not_described
from mainstem.broker.consumer_groups.modern.heartbeat import HeartbeatCaller, refused
from mainstem.broker.consumer_groups.partition import CoordinatorPartition, Event
from mainstem.broker.consumer_groups.rebalancing.rebalance import refused_join, refused_sync
from mainstem.broker.consumer_groups.served_partitions import ServedPartitions
from mainstem.broker.consumer_groups.shared.share_described import share_not_described
from mainstem.broker.consumer_groups.shared.share_heartbeat import refused_share
from mainstem.broker.consumer_groups.step import Caller
from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.machines.coordinator_topic import coordinator_partition_of
from mainstem.broker.machines.machine_log import Gap
from mainstem.broker.machines.result import Moment, Result, Ticket
from mainstem.broker.machines.runtime import heard
from mainstem.broker.machines.served_topic import NO_PARTITION
from mainstem.broker.request_context import RequestContext
from mainstem.model import Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)
from mainstem.protocol.messages.group_administration import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from mainstem.protocol.messages.group_membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
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
from mainstem.protocol.messages.share_groups import (
    DescribedShareGroup,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)


class MarkersSeen(NamedTuple):
    """A moment in the life of a machine: so many markers were applied."""

    machine: ConsumerGroupMachine
    markers: int


class ConsumerGroupCoordinator:
    """Answers the group APIs of one node by the partitions that `served` serves, which its owner starts and closes."""

    def __init__(self, served: ServedPartitions) -> None:
        self.served = served

    def topic_deleted(self, topic: Topic) -> None:
        """A topic was deleted, here or elsewhere: forget its committed offsets. Partitions that this node
        does not serve now drop them when they are loaded."""
        for partition in self.partitions.values():
            with suppress(CoordinatorRefusal):
                forgotten = partition.topic_deleted(topic.name, topic.topic_id)
                if forgotten is not None:
                    forgotten.add_done_callback(heard)

    def level_raised(self) -> None:
        """The feature level rose: rewrite the logs, so that old records take the newer form, too."""
        for partition in self.partitions.values():
            partition.runtime.rewrite()

    @property
    def partitions(self) -> Mapping[int, CoordinatorPartition]:
        """The partitions of the internal topic that this node serves, by number."""
        return self.served.partitions

    def missing(self, index: int) -> Sequence[Gap]:
        """The gaps in the log of a partition of the internal topic that this node serves."""
        partition = self.partitions.get(index)
        return () if partition is None else tuple(partition.gaps)

    async def leader_of(self, group_id: str) -> int:
        """The node that coordinates a consumer group; -1 when there is none now."""
        return await self.served.leader_of(group_id)

    # --- membership ----------------------------------------------------------------------------------

    async def join_group(self, request: JoinGroupRequest, call: RequestContext) -> JoinGroupResponse:
        caller = _caller(call)
        try:
            answer = await self._submit(
                request.group_id, lambda machine, ticket, now: machine.join(ticket, request, caller, now)
            )
        except CoordinatorRefusal as refusal:
            return refused_join(request.member_id, refusal.code)
        assert isinstance(answer, JoinGroupResponse)
        return answer

    async def sync_group(self, request: SyncGroupRequest) -> SyncGroupResponse:
        try:
            answer = await self._submit(
                request.group_id, lambda machine, ticket, now: machine.sync(ticket, request, now)
            )
        except CoordinatorRefusal as refusal:
            return refused_sync(refusal.code)
        assert isinstance(answer, SyncGroupResponse)
        return answer

    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        try:
            answer = await self._submit(
                request.group_id, lambda machine, ticket, now: machine.heartbeat(ticket, request, now)
            )
        except CoordinatorRefusal as refusal:
            # While the log is loaded no session runs: let members carry on.
            loading = refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return HeartbeatResponse(error_code=ErrorCode.NONE if loading else refusal.code)
        assert isinstance(answer, HeartbeatResponse)
        return answer

    async def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, call: RequestContext, may_describe: Callable[[str], bool]
    ) -> ConsumerGroupHeartbeatResponse:
        """The heartbeat of a member whose partitions the coordinator assigns. `may_describe`: which topics it sees."""
        sender = HeartbeatCaller(_caller(call), may_describe)
        try:
            answer = await self._submit(
                request.group_id, lambda machine, ticket, now: machine.consumer_heartbeat(ticket, request, sender, now)
            )
        except CoordinatorRefusal as refusal:
            return refused(refusal.code)
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        return answer

    async def share_heartbeat(
        self, request: ShareGroupHeartbeatRequest, call: RequestContext
    ) -> ShareGroupHeartbeatResponse:
        """The heartbeat of a member of a share group."""
        caller = _caller(call)
        try:
            answer = await self._submit(
                request.group_id, lambda machine, ticket, now: machine.share_heartbeat(ticket, request, caller, now)
            )
        except CoordinatorRefusal as refusal:
            return refused_share(refusal.code)
        assert isinstance(answer, ShareGroupHeartbeatResponse)
        return answer

    async def leave_group(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """A request in the form of version 3 and later: `members` names the members that leave."""
        try:
            answer = await self._submit(
                request.group_id, lambda machine, ticket, now: machine.leave(ticket, request, now)
            )
        except CoordinatorRefusal as refusal:
            return LeaveGroupResponse(error_code=refusal.code)
        assert isinstance(answer, LeaveGroupResponse)
        return answer

    # --- offsets -------------------------------------------------------------------------------------

    async def commit_offsets(self, request: OffsetCommitRequest, call: RequestContext) -> OffsetCommitResponse:
        """Topics by name; the caller has checked that they exist. An empty group id is a group id like any
        other, as old clients have it."""
        caller = _caller(call)
        try:
            answer = await self._submit(
                request.group_id,
                lambda machine, ticket, now: machine.commit(ticket, request, caller, now),
                nameless=True,
            )
        except CoordinatorRefusal as refusal:
            return _refused_commit(request, refusal.code)
        assert isinstance(answer, OffsetCommitResponse)
        return answer

    def applied_markers(self, group_id: str) -> MarkersSeen | None:
        """How many markers of transactions were applied to a group's partition of the log: to be taken before a
        producer's transaction is asked for. None: this node does not coordinate the group now."""
        partition = self.partitions.get(self.served.index_of(group_id))
        machine = None if partition is None else partition.machine
        return None if machine is None else MarkersSeen(machine, machine.pending.markers)

    async def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, seen: MarkersSeen | None
    ) -> TxnOffsetCommitResponse:
        """Topics by name; the caller has checked that they exist, and then, since `seen` was taken, that the
        transaction is open."""

        def event(machine: ConsumerGroupMachine, ticket: Ticket, now: Moment) -> Result:
            asked_at = seen.markers if seen is not None and seen.machine is machine else -1
            return machine.commit_in_transaction(ticket, request, asked_at, now)

        try:
            answer = await self._submit(request.group_id, event, nameless=True)
        except CoordinatorRefusal as refusal:
            return refused_in_transaction(request, refusal.code)
        assert isinstance(answer, TxnOffsetCommitResponse)
        return answer

    async def end_transaction(self, index: int, producer_id: int, epoch: int, *, commit: bool) -> ErrorCode:
        """Apply the marker of a producer's transaction to a partition of the log."""
        while True:
            try:
                await self.served.open()
                code = await self.served.led(index).submit(
                    lambda machine, ticket, now: machine.end_transaction(ticket, producer_id, epoch, commit, now)
                )
            except CoordinatorRefusal as refusal:
                return refusal.code
            assert isinstance(code, ErrorCode)
            if code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return code

    async def pending_producers(self, index: int) -> list[tuple[int, int, int]]:
        """The producers with open transactions that commit offsets into a partition of the log: ids, epochs, times of
        their last offsets. Raises `CoordinatorRefusal`."""
        await self.served.open()
        found: list[tuple[int, int, int]] = await self.served.led(index).submit(
            lambda machine, ticket, now: machine.pending_producers(ticket, now)
        )
        return found

    async def fetch_offsets(
        self, request: OffsetFetchRequestGroup, *, require_stable: bool = False
    ) -> OffsetFetchResponseGroup:
        """Topics by name. The answer is true as of when the request came in: a node that was cut off or stood
        still, and has not noticed that another node leads, answers nothing."""
        try:
            await self._confirm(request.group_id)
            answer = await self._submit(
                request.group_id,
                lambda machine, ticket, now: machine.fetch(ticket, request, now, require_stable=require_stable),
                nameless=True,
            )
        except CoordinatorRefusal as refusal:
            return OffsetFetchResponseGroup(group_id=request.group_id, topics=(), error_code=refusal.code)
        assert isinstance(answer, OffsetFetchResponseGroup)
        return answer

    async def name_committed(self, request: OffsetFetchRequestGroup) -> OffsetFetchRequestGroup:
        """Names the topics and partitions in a request for all offsets of a consumer group. A request that
        this node cannot answer comes back unchanged: `fetch_offsets` says why."""
        try:
            await self._confirm(request.group_id)
            committed = await self._submit(
                request.group_id,
                lambda machine, ticket, now: machine.committed(ticket, request.group_id, now),
                nameless=True,
            )
        except CoordinatorRefusal:
            return request
        topics = [OffsetFetchRequestTopics(name=name, partition_indexes=tuple(indexes)) for name, indexes in committed]
        return replace(request, topics=tuple(topics))

    async def delete_offsets(self, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        """Topics by name; the caller has checked that they exist."""
        try:
            answer = await self._submit(
                request.group_id, lambda machine, ticket, now: machine.delete_offsets(ticket, request, now)
            )
        except CoordinatorRefusal as refusal:
            return OffsetDeleteResponse(error_code=refusal.code, topics=())
        assert isinstance(answer, OffsetDeleteResponse)
        return answer

    async def forget_topic(self, topic: Topic) -> None:
        """As `topic_deleted`, and wait until it is durable."""
        for partition in list(self.partitions.values()):
            try:
                if (forgotten := partition.topic_deleted(topic.name, topic.topic_id)) is not None:
                    await forgotten
            except CoordinatorRefusal:
                continue

    # --- groups --------------------------------------------------------------------------------------

    async def describe_groups(self, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        described: dict[str, DescribedGroup] = {}
        for index, group_ids in await self._by_partition(request.groups):
            try:
                found = await _describe(self.served.led(index), group_ids)
            except CoordinatorRefusal as refusal:
                found = [_refused_description(group_id, refusal.code) for group_id in group_ids]
            described.update(zip(group_ids, found, strict=True))
        return DescribeGroupsResponse(groups=tuple(described[group_id] for group_id in request.groups))

    async def describe_consumer_groups(self, group_ids: Sequence[str]) -> list[DescribedConsumerGroup]:
        """The groups whose partitions the coordinator assigns, in the order asked for."""
        described: dict[str, DescribedConsumerGroup] = {}
        for index, names in await self._by_partition(group_ids):
            try:
                found = await _describe_modern(self.served.led(index), names)
            except CoordinatorRefusal as refusal:
                found = [not_described(name, refusal.code) for name in names]
            described.update(zip(names, found, strict=True))
        return [described[group_id] for group_id in group_ids]

    async def describe_share_groups(self, group_ids: Sequence[str]) -> list[DescribedShareGroup]:
        """The share groups, in the order asked for."""
        described: dict[str, DescribedShareGroup] = {}
        for index, names in await self._by_partition(group_ids):
            try:
                found = await _describe_shared(self.served.led(index), names)
            except CoordinatorRefusal as refusal:
                found = [share_not_described(name, refusal.code) for name in names]
            described.update(zip(names, found, strict=True))
        return [described[group_id] for group_id in group_ids]

    async def list_groups(self, request: ListGroupsRequest) -> ListGroupsResponse:
        """The consumer groups of the partitions that this node serves, filtered as the request says."""
        self.served.look()
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        groups: list[ListedGroup] = []
        for partition in list(self.partitions.values()):
            try:
                groups += await partition.submit(lambda machine, ticket, now: machine.list_groups(ticket, now))
            except CoordinatorRefusal as refusal:
                if refusal.code is not ErrorCode.NOT_COORDINATOR:  # other nodes answer for those
                    return ListGroupsResponse(error_code=refusal.code, groups=())
        chosen = [
            group
            for group in groups
            if (not states or group.group_state.lower() in states) and (not types or group.group_type.lower() in types)
        ]
        return ListGroupsResponse(error_code=ErrorCode.NONE, groups=tuple(chosen))

    async def delete_groups(self, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        deleted: dict[str, DeletableGroupResult] = {}
        for index, group_ids in await self._by_partition(request.groups_names):
            try:
                results = await _delete(self.served.led(index), group_ids)
            except CoordinatorRefusal as refusal:
                results = [DeletableGroupResult(group_id=name, error_code=refusal.code) for name in group_ids]
            deleted.update(zip(group_ids, results, strict=True))
        return DeleteGroupsResponse(results=tuple(deleted.values()))

    # --- internals -----------------------------------------------------------------------------------

    async def _submit(self, group_id: str, event: Event, *, nameless: bool = False) -> Any:
        if not group_id and not nameless:
            raise CoordinatorRefusal(ErrorCode.INVALID_GROUP_ID)
        return await (await self.served.led_for(group_id)).submit(event)

    async def _confirm(self, group_id: str) -> None:
        """Raises `CoordinatorRefusal` unless this node is beyond doubt the consumer group's coordinator."""
        topic = await self.served.open()
        await self.served.confirm(coordinator_partition_of(group_id, topic.partitions))

    async def _by_partition(self, group_ids: Iterable[str]) -> list[tuple[int, list[str]]]:
        """Group ids, each once, with the partition they belong to (-1: there is no topic now)."""
        names = list(dict.fromkeys(group_ids))
        try:
            topic = await self.served.open()
        except CoordinatorRefusal:
            return [(NO_PARTITION, names)]
        found: dict[int, list[str]] = {}
        for name in names:
            found.setdefault(coordinator_partition_of(name, topic.partitions), []).append(name)
        return list(found.items())


def _caller(call: RequestContext) -> Caller:
    return Caller(call.version, call.client_id or "", f"/{call.session.host}")


async def _describe(partition: CoordinatorPartition, group_ids: Sequence[str]) -> list[DescribedGroup]:
    found: list[DescribedGroup] = await partition.submit(
        lambda machine, ticket, now: machine.describe(ticket, group_ids, now)
    )
    return found


async def _describe_modern(partition: CoordinatorPartition, group_ids: Sequence[str]) -> list[DescribedConsumerGroup]:
    found: list[DescribedConsumerGroup] = await partition.submit(
        lambda machine, ticket, now: machine.describe_modern(ticket, group_ids, now)
    )
    return found


async def _describe_shared(partition: CoordinatorPartition, group_ids: Sequence[str]) -> list[DescribedShareGroup]:
    found: list[DescribedShareGroup] = await partition.submit(
        lambda machine, ticket, now: machine.describe_shared(ticket, group_ids, now)
    )
    return found


async def _delete(partition: CoordinatorPartition, group_ids: Sequence[str]) -> list[DeletableGroupResult]:
    results: list[DeletableGroupResult] = await partition.submit(
        lambda machine, ticket, now: machine.delete_groups(ticket, group_ids, now)
    )
    return results


def _refused_description(group_id: str, code: ErrorCode) -> DescribedGroup:
    return DescribedGroup(
        error_code=code, group_id=group_id, group_state="", protocol_type="", protocol_data="", members=()
    )


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
