"""The group coordinator of one node: which partition a group belongs to, and who keeps the time.

The internal topic is made on first need. Each of its partitions that this node leads is driven by one task
(`partition`), and one more task advances the machines when their timers run out. Groups go to partitions as
in Kafka, so that public tools find them.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mainstem.broker.groups.config import GroupsConfig
from mainstem.broker.groups.errors import Refused
from mainstem.broker.groups.internal_topic import OFFSETS_TOPIC, make_topic, partition_of
from mainstem.broker.groups.log import GroupLog
from mainstem.broker.groups.partition import Event, GroupPartition
from mainstem.broker.groups.rebalance import refused_join, refused_sync
from mainstem.broker.groups.result import Caller
from mainstem.broker.groups.statistics import samples_of
from mainstem.model import HistogramSample, Sample, Topic
from mainstem.ports import Clock, MessageStore, Metadata, MetadataAdmin, QueueAdmin
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from mainstem.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from mainstem.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from mainstem.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from mainstem.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from mainstem.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from mainstem.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from mainstem.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from mainstem.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from mainstem.broker.broker import Call

logger = logging.getLogger(__name__)

NO_LEADER = -1


class GroupCoordinator:
    """Answers the group APIs of one node. `start` before use, `close` after."""

    def __init__(
        self,
        *,
        node_id: int,
        config: GroupsConfig,
        metadata: Metadata,
        metadata_admin: MetadataAdmin,
        store: MessageStore,
        queue_admin: QueueAdmin,
        clock: Clock,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._node_id = node_id
        self._config = config
        self._metadata = metadata
        self._metadata_admin = metadata_admin
        self._store = store
        self._queue_admin = queue_admin
        self._clock = clock
        self._new_id = new_id
        self._topic: Topic | None = None
        self._partitions: list[GroupPartition] = []
        self._first_load = FirstLoad(0)
        self._tasks: list[asyncio.Task[None]] = []
        self._opening = asyncio.Lock()
        self._rearm = asyncio.Event()
        self._running = False

    async def start(self) -> None:
        """Start to load what there is; until a partition is in, its requests are refused as such."""
        self._running = True
        self._own(self._keep_time(), "group coordinator: timers")
        if self._metadata.topic(OFFSETS_TOPIC) is not None:
            try:
                await self._open()
            except Refused as refusal:
                logger.warning("group coordinator: %s; the next request tries again", refusal)

    async def close(self) -> None:
        """Stop; requests that wait are refused, so that their clients look for another coordinator."""
        self._running = False
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def samples(self) -> Iterable[Sample | HistogramSample]:
        return samples_of(list(self._partitions))

    async def leader_of(self, group_id: str) -> int:
        """The node that coordinates a group; -1 when there is none now."""
        try:
            topic = await self._open()
        except Refused:
            return NO_LEADER
        return self._metadata.leader(topic.queue_id(partition_of(group_id, topic.partitions)))

    # --- membership ----------------------------------------------------------------------------------

    async def join_group(self, request: JoinGroupRequest, call: Call) -> JoinGroupResponse:
        caller = _caller(call)
        try:
            answer = await self._submit(
                request.group_id, lambda machine, ticket, now: machine.join(ticket, request, caller, now)
            )
        except Refused as refusal:
            return refused_join(request.member_id, refusal.code)
        assert isinstance(answer, JoinGroupResponse)
        return answer

    async def sync_group(self, request: SyncGroupRequest) -> SyncGroupResponse:
        try:
            answer = await self._submit(
                request.group_id, lambda machine, ticket, now: machine.sync(ticket, request, now)
            )
        except Refused as refusal:
            return refused_sync(refusal.code)
        assert isinstance(answer, SyncGroupResponse)
        return answer

    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        try:
            answer = await self._submit(
                request.group_id, lambda machine, ticket, now: machine.heartbeat(ticket, request, now)
            )
        except Refused as refusal:
            # While the log is loaded nobody's session runs: let members carry on.
            loading = refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return HeartbeatResponse(error_code=ErrorCode.NONE if loading else refusal.code)
        assert isinstance(answer, HeartbeatResponse)
        return answer

    async def leave_group(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """A request in the form of version 3 and later: `members` names who leaves."""
        try:
            answer = await self._submit(
                request.group_id, lambda machine, ticket, now: machine.leave(ticket, request, now)
            )
        except Refused as refusal:
            return LeaveGroupResponse(error_code=refusal.code)
        assert isinstance(answer, LeaveGroupResponse)
        return answer

    # --- offsets -------------------------------------------------------------------------------------

    async def commit_offsets(self, request: OffsetCommitRequest, call: Call) -> OffsetCommitResponse:
        """Topics by name, which the caller has found to exist. An empty group id is a group like any other,
        as old clients have it."""
        caller = _caller(call)
        try:
            answer = await self._submit(
                request.group_id,
                lambda machine, ticket, now: machine.commit(ticket, request, caller, now),
                nameless=True,
            )
        except Refused as refusal:
            return _refused_commit(request, refusal.code)
        assert isinstance(answer, OffsetCommitResponse)
        return answer

    async def fetch_offsets(self, request: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
        """Topics by name."""
        try:
            answer = await self._submit(
                request.group_id,
                lambda machine, ticket, now: machine.fetch(ticket, request, now),
                nameless=True,
            )
        except Refused as refusal:
            return OffsetFetchResponseGroup(
                group_id=request.group_id, topics=(), error_code=refusal.code
            )
        assert isinstance(answer, OffsetFetchResponseGroup)
        return answer

    async def delete_offsets(self, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        """Topics that the caller has found to exist."""
        try:
            answer = await self._submit(
                request.group_id, lambda machine, ticket, now: machine.delete_offsets(ticket, request, now)
            )
        except Refused as refusal:
            return OffsetDeleteResponse(error_code=refusal.code, topics=())
        assert isinstance(answer, OffsetDeleteResponse)
        return answer

    async def forget_topic(self, name: str) -> None:
        """A topic was deleted: forget its committed offsets. What cannot be forgotten now (a partition that
        is not loaded) goes when it expires."""
        for partition in list(self._partitions):
            try:
                await partition.submit(lambda machine, ticket, now: machine.forget_topic(ticket, name, now))
            except Refused:
                continue

    # --- groups --------------------------------------------------------------------------------------

    async def describe_groups(self, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        described: dict[str, DescribedGroup] = {}
        for partition, group_ids in await self._by_partition(request.groups):
            try:
                found = await _describe(partition, group_ids)
            except Refused as refusal:
                found = [_refused_description(group_id, refusal.code) for group_id in group_ids]
            described.update(zip(group_ids, found, strict=True))
        return DescribeGroupsResponse(groups=tuple(described[group_id] for group_id in request.groups))

    async def list_groups(self, request: ListGroupsRequest) -> ListGroupsResponse:
        """The groups of the partitions that this node leads, filtered as the request says."""
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        groups: list[ListedGroup] = []
        for partition in self._partitions:
            try:
                groups += await partition.submit(
                    lambda machine, ticket, now: machine.list_groups(ticket, now)
                )
            except Refused as refusal:
                if refusal.code is not ErrorCode.NOT_COORDINATOR:  # others answer for those
                    return ListGroupsResponse(error_code=refusal.code, groups=())
        chosen = [
            group
            for group in groups
            if (not states or group.group_state.lower() in states)
            and (not types or group.group_type.lower() in types)
        ]
        return ListGroupsResponse(error_code=ErrorCode.NONE, groups=tuple(chosen))

    async def delete_groups(self, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        deleted: dict[str, DeletableGroupResult] = {}
        for partition, group_ids in await self._by_partition(request.groups_names):
            try:
                results = await _delete(partition, group_ids)
            except Refused as refusal:
                results = [DeletableGroupResult(group_id=name, error_code=refusal.code) for name in group_ids]
            deleted.update(zip(group_ids, results, strict=True))
        return DeleteGroupsResponse(results=tuple(deleted.values()))

    # --- inside --------------------------------------------------------------------------------------

    async def _submit(self, group_id: str, event: Event, *, nameless: bool = False) -> Any:
        if not group_id and not nameless:
            raise Refused(ErrorCode.INVALID_GROUP_ID)
        topic = await self._open()
        return await self._partitions[partition_of(group_id, topic.partitions)].submit(event)

    async def _by_partition(
        self, group_ids: Iterable[str]
    ) -> list[tuple[GroupPartition | None, list[str]]]:
        """Group ids, each once, with the partition they belong to (None: there is none now)."""
        names = list(dict.fromkeys(group_ids))
        try:
            topic = await self._open()
        except Refused:
            return [(None, names)]
        found: dict[int, list[str]] = {}
        for name in names:
            found.setdefault(partition_of(name, topic.partitions), []).append(name)
        return [(self._partitions[index], members) for index, members in found.items()]

    async def _open(self) -> Topic:
        """The internal topic, made if need be, with its partitions being served. Raises `Refused`."""
        if self._topic is not None and self._running:
            return self._topic
        async with self._opening:
            if not self._running:
                raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if self._topic is None:
                topic = await make_topic(
                    self._config, self._metadata, self._metadata_admin, self._store, self._queue_admin
                )
                if not self._running:
                    raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                self._first_load = FirstLoad(topic.partitions)
                self._partitions = [self._partition(topic, index) for index in range(topic.partitions)]
                for partition in self._partitions:
                    self._own(partition.run(), f"group coordinator: {partition.name}")
                self._topic = topic
            return self._topic

    def _partition(self, topic: Topic, index: int) -> GroupPartition:
        queue_id = topic.queue_id(index)
        return GroupPartition(
            GroupLog(queue_id, self._config, self._store, self._queue_admin, self._clock),
            self._config,
            self._clock,
            name=f"{topic.name}-{index}",
            new_id=self._new_id,
            leads=lambda: self._metadata.leader(queue_id) == self._node_id,
            wake=self._rearm.set,
            loaded=self._first_load.add,
        )

    async def _keep_time(self) -> None:
        """Advance machines when their timers run out."""
        while True:
            self._rearm.clear()
            deadlines = [partition.wake_at_ms for partition in self._partitions]
            next_ms = min((deadline for deadline in deadlines if deadline is not None), default=None)
            wait_seconds = None
            if next_ms is not None:
                wait_seconds = max(next_ms / 1000 - self._clock.monotonic(), 0.001)
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._rearm.wait()
            except TimeoutError:
                pass
            for partition in self._partitions:
                partition.advance()

    def _own(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work, name=name))


class FirstLoad:
    """One log line for all partitions, once every one of them is loaded for the first time; later loads are told
    by the failure that made them necessary."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._left = partitions
        self._groups = 0
        self._records = 0

    def add(self, groups: int, records: int) -> None:
        if self._left == 0:
            return
        self._left -= 1
        self._groups += groups
        self._records += records
        if self._left == 0:
            logger.info(
                "consumer groups: %d, from %d records in %d partitions",
                self._groups, self._records, self._partitions,
            )


def _caller(call: Call) -> Caller:
    return Caller(call.version, call.client_id or "", f"/{call.peer.host}")


async def _describe(partition: GroupPartition | None, group_ids: Sequence[str]) -> list[DescribedGroup]:
    if partition is None:
        raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    found: list[DescribedGroup] = await partition.submit(
        lambda machine, ticket, now: machine.describe(ticket, group_ids, now)
    )
    return found


async def _delete(partition: GroupPartition | None, group_ids: Sequence[str]) -> list[DeletableGroupResult]:
    if partition is None:
        raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
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
