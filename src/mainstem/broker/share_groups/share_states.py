"""How far share groups are with partitions, for those who look after them: the state of a partition lies with the
node that serves the partition, so that each node is asked about its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from mainstem.broker.errors import CoordinatorRefusal, error_of_failed_read
from mainstem.broker.machines.serving_node import ServingNode
from mainstem.broker.share_groups.records import SharedPartition, WindowKey
from mainstem.broker.share_groups.served_states import ServedStates
from mainstem.broker.share_groups.state_machine import WindowState, WrittenState
from mainstem.broker.share_groups.window_events import (
    Delete,
    Initialize,
    Read,
    ReadToLead,
    WindowEvent,
    Write,
)
from mainstem.errors import MainstemError
from mainstem.model import QueueOffsets
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_group_state import UNINITIALIZED

T = TypeVar("T")

UNKNOWN_OFFSET = -1

LOAD_SECONDS_MAX = 1.0
"""Logs of state that take longer to be loaded are worth the back-off of a client."""

NO_SUCH_PARTITION = -2
"""In place of the node that serves a partition; -1 would be that of one without a leader."""

PARTITIONS_PER_CALL = 1_000
"""Partitions of one call to another node: each takes a record there, or a look-up."""


COME_AGAIN = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
"""Errors of partitions whose leader changes. Clients know none of these leaders: they ask the group's coordinator, and
do so again when it is not available."""


class ShareStanding(NamedTuple):
    """How far a share group is with a partition, and how far it could be."""

    partition: SharedPartition
    error: ErrorCode = ErrorCode.NONE
    start: int = UNINITIALIZED
    """The first offset that is not done; -1: the group has yet to begin here."""
    done: int = 0
    """Offsets behind that which nobody gets any more."""
    leader_epoch: int = 0
    log_start: int = UNKNOWN_OFFSET
    end: int = UNKNOWN_OFFSET

    @property
    def lag(self) -> int:
        """Offsets that somebody is yet to get; -1 while the group has not begun."""
        if self.start == UNINITIALIZED or self.end == UNKNOWN_OFFSET:
            return -1
        return max(self.end - max(self.start, self.log_start) - self.done, 0)


class NewStart(NamedTuple):
    """A group is to begin with a partition at an offset; `start` None: it is to know nothing of it any more."""

    partition: SharedPartition
    start: int | None


Codes = dict[SharedPartition, ErrorCode]


class OtherShareNodes(Protocol):
    """The share groups' state on other nodes. An answer of None: the node is not reached, or does not know."""

    def brokers(self) -> Iterable[int]:
        """The other nodes that may have state."""
        ...

    async def begun(self, node_id: int, group_id: str) -> list[SharedPartition] | None:
        """The partitions that a group has begun to read."""
        ...

    async def standings(
        self, node_id: int, group_id: str, partitions: Sequence[SharedPartition]
    ) -> list[ShareStanding] | None: ...

    async def begin(
        self, node_id: int, group_id: str, state_epoch: int, starts: Sequence[NewStart]
    ) -> list[ErrorCode] | None:
        """Have a group begin at other offsets."""
        ...

    async def forget(self, node_id: int, group_id: str) -> bool:
        """Whether the node has forgotten all of a group."""
        ...


class ShareStates:
    """Over the state that `served` serves; `others`: None where there are no other nodes. Methods that end in `_here`
    are about this node alone."""

    def __init__(self, node: ServingNode, served: ServedStates, others: OtherShareNodes | None = None) -> None:
        self._node_id = node.node_id
        self._served = served
        self._metadata = node.metadata
        self._routing = node.routing
        self._store = node.store
        self._others = others

    # --- the whole cluster ---------------------------------------------------------------------------

    async def begun(self, group_id: str) -> list[SharedPartition] | None:
        """The partitions that a share group has begun to read; None: not all nodes could be asked."""
        asked = [self.begun_here(group_id)]
        if self._others is not None:
            asked += [self._others.begun(node_id, group_id) for node_id in self._others.brokers()]
        found: set[SharedPartition] = set()
        for answer in await asyncio.gather(*asked):
            if answer is None:
                return None
            found.update(answer)
        return sorted(found)

    async def standings(
        self, group_id: str, partitions: Iterable[SharedPartition]
    ) -> dict[SharedPartition, ShareStanding]:
        """How far a share group is with each of these partitions."""
        found: dict[SharedPartition, ShareStanding] = {}
        for node_id, part in self._by_node(partitions, lambda partition: partition):
            told = None
            if node_id == NO_SUCH_PARTITION:
                told = [ShareStanding(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for partition in part]
            elif node_id == self._node_id:
                told = await self.standings_here(group_id, part)
            elif self._others is not None:
                told = await self._others.standings(node_id, group_id, part)
            if told is None or len(told) != len(part):
                told = [ShareStanding(partition, ErrorCode.COORDINATOR_NOT_AVAILABLE) for partition in part]
            found.update(zip(part, told, strict=True))
        return found

    async def begin(self, group_id: str, state_epoch: int, starts: Iterable[NewStart]) -> Codes:
        """Have a share group begin at other offsets with these partitions, or forget them."""
        codes: Codes = {}
        for node_id, part in self._by_node(starts, lambda start: start.partition):
            told = None
            if node_id == NO_SUCH_PARTITION:
                told = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * len(part)
            elif node_id == self._node_id:
                told = await self.begin_here(group_id, state_epoch, part)
            elif self._others is not None:
                told = await self._others.begin(node_id, group_id, state_epoch, part)
            if told is None or len(told) != len(part):
                told = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(part)
            codes.update(zip((start.partition for start in part), told, strict=True))
        return codes

    async def forget_group(self, group_id: str) -> bool:
        """Have all nodes forget a share group; returns whether they have."""
        asked = [self.forget_group_here(group_id)]
        if self._others is not None:
            asked += [self._others.forget(node_id, group_id) for node_id in self._others.brokers()]
        return all(await asyncio.gather(*asked))

    def _by_node(
        self, items: Iterable[T], partition_of: Callable[[T], SharedPartition]
    ) -> Iterable[tuple[int, list[T]]]:
        """Items with the node that serves their partition, in parts of one call."""
        nodes: dict[int, list[T]] = {}
        for item in items:
            queue_id = self.queue_id(partition_of(item))
            nodes.setdefault(NO_SUCH_PARTITION if queue_id is None else self._routing.broker_of(queue_id), []).append(
                item
            )
        for node_id, part in nodes.items():
            for first in range(0, len(part), PARTITIONS_PER_CALL):
                yield node_id, part[first : first + PARTITIONS_PER_CALL]

    # --- this node -----------------------------------------------------------------------------------

    def queue_id(self, partition: SharedPartition) -> int | None:
        """None: there is no such partition."""
        topic = self._metadata.topic_by_id(partition.topic_id)
        if topic is None or not 0 <= partition.partition < topic.partitions:
            return None
        return topic.queue_id(partition.partition)

    async def begun_here(self, group_id: str) -> list[SharedPartition] | None:
        self._served.look()
        found: set[SharedPartition] = set()
        for served in list(self._served.partitions.values()):
            try:
                keys = await served.runtime.submit(lambda machine, ticket, now: machine.keys_of(ticket, group_id, now))
            except CoordinatorRefusal as refusal:
                if refusal.code is ErrorCode.NOT_COORDINATOR:  # another node's, which is asked as well
                    continue
                return None
            found.update(SharedPartition(key.topic_id, key.partition) for key in keys)
        return list(found)

    async def standings_here(self, group_id: str, partitions: Sequence[SharedPartition]) -> list[ShareStanding]:
        await self._served.all_loaded(LOAD_SECONDS_MAX)
        offsets = await self._offsets(partitions)
        found = []
        for partition in partitions:
            try:
                state = await self.state_here(group_id, partition)
            except CoordinatorRefusal as refusal:
                found.append(ShareStanding(partition, refusal.code))
                continue
            known = offsets.get(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if isinstance(known, ErrorCode):
                found.append(ShareStanding(partition, known))
                continue
            standing = ShareStanding(partition, log_start=known.log_start, end=known.high_watermark)
            if state is not None:
                standing = standing._replace(start=state.start, done=state.done, leader_epoch=known.leader_epoch)
            found.append(standing)
        return found

    async def _offsets(
        self, partitions: Sequence[SharedPartition]
    ) -> Mapping[SharedPartition, QueueOffsets | ErrorCode]:
        queues = {partition: queue_id for partition in partitions if (queue_id := self.queue_id(partition)) is not None}
        try:
            found = await self._store.offsets(list(queues.values()))
        except MainstemError as failure:
            return dict.fromkeys(queues, error_of_failed_read(failure))
        return {partition: offsets for partition, offsets in zip(queues, found, strict=True) if offsets is not None}

    async def begin_here(self, group_id: str, state_epoch: int, starts: Sequence[NewStart]) -> list[ErrorCode]:
        await self._served.all_loaded(LOAD_SECONDS_MAX)
        codes = []
        for partition, start in starts:
            try:
                if start is None:
                    codes.append(await self.delete_here(group_id, partition))
                else:
                    codes.append(await self.initialize_here(group_id, partition, state_epoch, start))
            except CoordinatorRefusal as refusal:
                codes.append(refusal.code)
        return codes

    async def forget_group_here(self, group_id: str) -> bool:
        """Whether that is committed."""
        self._served.look()
        for served in list(self._served.partitions.values()):
            try:
                await served.runtime.submit(lambda machine, ticket, now: machine.forget(ticket, group_id, now))
            except CoordinatorRefusal as refusal:
                if refusal.code is not ErrorCode.NOT_COORDINATOR:  # another node's, which is asked as well
                    return False
        return True

    # --- one partition that this node serves: these raise `CoordinatorRefusal` -----------------------

    async def state_here(self, group_id: str, partition: SharedPartition) -> WindowState | None:
        answer: Sequence[WindowState | None] = await self._submit(group_id, partition, Read())
        return answer[0]

    async def state_to_lead_here(
        self, group_id: str, partition: SharedPartition, leader_epoch: int
    ) -> WindowState | ErrorCode:
        answer: WindowState | ErrorCode = await self._submit(group_id, partition, ReadToLead(leader_epoch))
        return answer

    async def initialize_here(
        self, group_id: str, partition: SharedPartition, state_epoch: int, start: int
    ) -> ErrorCode:
        code: ErrorCode = await self._submit(group_id, partition, Initialize(state_epoch, start))
        return code

    async def write_here(self, group_id: str, partition: SharedPartition, written: WrittenState) -> ErrorCode:
        code: ErrorCode = await self._submit(group_id, partition, Write(written))
        return code

    async def delete_here(self, group_id: str, partition: SharedPartition) -> ErrorCode:
        code: ErrorCode = await self._submit(group_id, partition, Delete())
        return code

    async def _submit(self, group_id: str, partition: SharedPartition, event: WindowEvent) -> Any:
        queue_id = self.queue_id(partition)
        if queue_id is None:
            raise CoordinatorRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return await self._served.submit(queue_id, WindowKey(group_id, *partition), event)
