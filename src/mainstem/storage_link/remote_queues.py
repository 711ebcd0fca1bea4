"""Queues as a broker without storage changes them: all of it at the leaders of their write groups.

Takes the place of a node's own queues in `ClusterQueueAdmin`, which finds the leaders for what concerns many write
groups at once; this node leads none of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from mainstem.acted_for import acted_for
from mainstem.errors import MainstemError
from mainstem.model import QueueRange, QueueUsage, queue_id_of
from mainstem.rpc.messages.brokers import (
    EPOCH_END,
    OWN,
    TRUNCATE,
    USAGE,
    AskEpochEnd,
    AskOffsets,
    AskOwnership,
    AskTruncation,
    OwnershipRefused,
)
from mainstem.rpc.messages.forwarded import client_told
from mainstem.storage_link.errors import LinkError, NoLeader
from mainstem.storage_link.leader_calls import LeaderCalls
from mainstem.storage_link.remote_message_store import by_write_group

SAMPLED_PARTITIONS = 4096
"""A range of more partitions than this most likely has some in every write group."""


class RemoteQueueAdmin:
    def __init__(
        self,
        groups: int,
        group_of: Callable[[int], int],
        leaders: LeaderCalls,
        followed: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """`followed` returns once this node has applied an entry of the metadata, or has waited long enough; None:
        nothing is waited for."""
        self._groups = groups
        self._group_of = group_of
        self._leaders = leaders
        self._followed = followed

    def grow(self, groups: int) -> None:
        """From now on there are so many write groups."""
        self._groups = groups

    def groups_with(self, ranges: Sequence[QueueRange]) -> set[int]:
        """The write groups that have some of these partitions."""
        groups: set[int] = set()
        for wanted in ranges:
            first = queue_id_of(wanted.topic_number, wanted.first_partition)
            groups |= set(map(self._group_of, range(first, first + min(wanted.count, SAMPLED_PARTITIONS))))
            if len(groups) == self._groups:
                break
        return groups

    async def create_in(self, groups: Collection[int], ranges: Sequence[QueueRange]) -> None:
        raise NoLeader("this node has no storage")

    async def delete_in(self, groups: Collection[int], topic_numbers: Sequence[int]) -> None:
        raise NoLeader("this node has no storage")

    async def truncate(self, before: Mapping[int, int]) -> dict[int, int | MainstemError | None]:
        answers: dict[int, int | MainstemError | None] = {}
        for group, asked in by_write_group(list(before), self._group_of).items():
            request = AskTruncation({queue_id: before[queue_id] for queue_id in asked}, client_told(acted_for()))
            try:
                reply = await self._leaders.call(group, TRUNCATE, request)
            except LinkError as error:
                answers.update(dict.fromkeys(asked, error))
                continue
            answers.update(reply.message.starts)
            answers.update({queue_id: NoLeader(why) for queue_id, why in reply.message.failed.items()})
        return answers

    async def own(self, queue_id: int, *, held: int | None = None) -> int:
        try:
            reply = await self._leaders.call(self._group_of(queue_id), OWN, AskOwnership(queue_id, held))
        except OwnershipRefused as error:
            raise LinkError(str(error)) from error
        if held is not None and self._followed is not None:  # a coordinator must not tell of what is deleted by now
            await self._followed(reply.message.metadata_index)
        return reply.message.epoch

    async def epoch_end(self, queue_id: int, leader_epoch: int) -> tuple[int, int] | None:
        request = AskEpochEnd(queue_id, leader_epoch)
        return (await self._leaders.call(self._group_of(queue_id), EPOCH_END, request)).message.found

    async def usage(self, queue_ids: Sequence[int]) -> list[QueueUsage | None]:
        found: dict[int, QueueUsage | None] = {}
        for group, asked in by_write_group(queue_ids, self._group_of).items():
            reply = await self._leaders.call(group, USAGE, AskOffsets(asked))
            found.update(zip(asked, reply.message.usage, strict=True))
        return [found[queue_id] for queue_id in queue_ids]
