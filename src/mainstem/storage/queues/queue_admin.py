"""The local `QueueAdmin`: creating, deleting and trimming queues through the logs of their write groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from mainstem.errors import MainstemError
from mainstem.kernel import COMMITTED_END, LOG_START, NO_SLOT, QueueTable
from mainstem.model import QueueRange, QueueUsage, Topic, queue_id_of
from mainstem.storage.errors import ChangesFailed, NotTheLeader, StorageFailed, WriteGroupEnded
from mainstem.storage.queues.usage import Usage
from mainstem.storage.reading.offset_lookup import OffsetLookup
from mainstem.storage.write_groups import control
from mainstem.storage.write_groups.write_group import WriteGroup
from mainstem.storage.write_groups.write_loop import WriteLoop

SAMPLED_PARTITIONS = 4096
"""A range of more partitions than this most likely has some in every write group, so it is logged in all of them."""

MOVES_MAX = 500
"""Log starts in one command, some 10 KiB: it fits into the smallest segment there can be."""


COMMANDS_MAX = 500
"""Creations or deletions in one block, about as many bytes as with `MOVES_MAX`; applying them takes about a
millisecond."""

TOPICS_PER_TURN = 2_000
"""Queues looked up in one turn of the event loop: about a millisecond."""

RANGES_PER_TURN = 500
"""Topics checked in one turn of the event loop: about a millisecond."""


PARTITIONS_PER_TURN = 8_192
"""Partitions whose write groups are looked up in one turn of the event loop: some milliseconds."""


class LocalQueueAdmin:
    """`ports.QueueAdmin` over the write groups of this node."""

    def __init__(
        self,
        groups: Sequence[WriteGroup],
        group_of: Callable[[int], int],
        table: QueueTable,
        write_loop: WriteLoop,
        lookup: OffsetLookup,
        usage: Usage,
        is_shut: Callable[[int], bool] = lambda _queue_id: False,
    ) -> None:
        """`is_shut`: a queue is on its way to another write group."""
        self._groups = groups
        self._is_shut = is_shut
        self._group_of = group_of
        self._table = table
        self._write_loop = write_loop
        self._lookup = lookup
        self._usage = usage

    async def create(self, ranges: Sequence[QueueRange]) -> None:
        await self.create_in(range(len(self._groups)), [wanted for wanted in ranges if not self._exists(wanted)])

    async def create_in(self, groups: Collection[int], ranges: Sequence[QueueRange]) -> None:
        """Log the creation in those of these groups that have some of the partitions. Raises `NotTheLeader`."""
        commands: list[list[control.Command]] = [[] for _ in self._groups]
        partitions = 0
        for looked_at, wanted in enumerate(ranges, 1):
            for group in self._groups_with(wanted).intersection(groups):
                commands[group].append(control.QueuesCreated(*wanted))
            partitions += min(wanted.count, SAMPLED_PARTITIONS)
            if looked_at % RANGES_PER_TURN == 0 or partitions >= PARTITIONS_PER_TURN:
                partitions = 0
                await asyncio.sleep(0)
        await self._propose_in_blocks(commands)

    def groups_with(self, ranges: Sequence[QueueRange]) -> set[int]:
        """The write groups that have some of these partitions."""
        groups: set[int] = set()
        for wanted in ranges:
            groups |= self._groups_with(wanted)
            if len(groups) == len(self._groups):
                break
        return groups

    def _exists(self, wanted: QueueRange) -> bool:
        """Whether these partitions exist. They are created from the first to the last, so only the last is looked
        up."""
        first = queue_id_of(wanted.topic_number, wanted.first_partition)
        return self._table.find(first) != NO_SLOT and self._table.find(first + wanted.count - 1) != NO_SLOT

    def _groups_with(self, wanted: QueueRange) -> set[int]:
        first = queue_id_of(wanted.topic_number, wanted.first_partition)
        return set(map(self._group_of, range(first, first + min(wanted.count, SAMPLED_PARTITIONS))))

    async def delete(self, topic_numbers: Sequence[int]) -> None:
        there = [number for number in topic_numbers if self._table.ranges(number)]
        await self.delete_in(range(len(self._groups)), there)

    async def delete_in(self, groups: Collection[int], topic_numbers: Sequence[int]) -> None:
        """Log the deletion in these groups. Raises `NotTheLeader`."""
        deleted: list[control.Command] = [control.QueuesDeleted(number) for number in topic_numbers]
        await self._propose_in_blocks([deleted if group in groups else [] for group in range(len(self._groups))])

    async def settle(self, group: int, topics: Iterable[Topic], was_deleted: Callable[[int], bool]) -> None:
        """Bring a write group's queues in line with the metadata when this node begins to lead it: create those that no
        earlier leader created, and delete those of topics that are gone. Raises `NotTheLeader`."""
        missing: list[QueueRange] = []
        for looked_at, topic in enumerate(topics, 1):
            wanted = QueueRange(topic.number, 0, topic.partitions)
            if not self._exists(wanted):
                missing.append(wanted)
            if looked_at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        await self.create_in([group], missing)
        await self.delete_in([group], await self.left_over(was_deleted))

    async def left_over(self, was_deleted: Callable[[int], bool]) -> list[int]:
        """The numbers of deleted topics that still have queues here, led by this node or not. On a node that has no
        part in any write group any more no log says that they are deleted: there they go at once."""
        numbers: list[int] = []
        holds_any = any(group.consensus.core is not None or group.last_index for group in self._groups)
        for looked_at, number in enumerate(self._table.topics(), 1):
            if was_deleted(number) and holds_any:
                numbers.append(number)
            elif was_deleted(number):
                self._table.drop(number)
            if looked_at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        return numbers

    async def lacking(self, topics: Iterable[Topic]) -> list[QueueRange]:
        """The topics that lack queues here though this node has a replica of one of their write groups. On a node that
        lags behind, their creation may be on its way."""
        missing: list[QueueRange] = []
        for looked_at, topic in enumerate(topics, 1):
            wanted = QueueRange(topic.number, 0, topic.partitions)
            if not self._exists(wanted) and any(
                self._groups[group].consensus.core is not None for group in self._groups_with(wanted)
            ):
                missing.append(wanted)
            if looked_at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        return missing

    async def truncate(self, before: Mapping[int, int]) -> dict[int, int | MainstemError | None]:
        """Raises `StorageFailed` when this node writes no more."""
        answers: dict[int, int | MainstemError | None] = {}
        moves: dict[int, list[tuple[int, int]]] = {}
        for queue_id, offset in before.items():
            group = self._groups[self._group_of(queue_id)]
            if not group.serving:
                refusal = group.consensus.refusal()
                if isinstance(refusal, StorageFailed):
                    raise refusal
                answers[queue_id] = refusal
                continue
            slot = self._table.find(queue_id)
            if slot == NO_SLOT:
                answers[queue_id] = None
                continue
            high_watermark = self._table.get(slot, COMMITTED_END)
            start = high_watermark if offset == -1 else offset
            if not 0 <= start <= high_watermark:
                answers[queue_id] = None
                continue
            current = self._table.get(slot, LOG_START)
            answers[queue_id] = max(start, current)
            if start > current:
                moves.setdefault(group.group, []).append((queue_id, start))
        try:
            await self.move_log_starts(moves)
        except ChangesFailed as failure:
            for group_number in failure.groups & moves.keys():
                answers.update((queue_id, failure) for queue_id, _start in moves[group_number])
        except NotTheLeader as deposed:
            answers.update((queue_id, deposed) for pairs in moves.values() for queue_id, _start in pairs)
        return answers

    async def move_log_starts(self, moves: Mapping[int, list[tuple[int, int]]]) -> None:
        """Log new log starts, (queue id, offset) pairs per write group, for the write groups that this node leads.
        Other nodes do the same for theirs."""
        moves = {group: pairs for group, pairs in moves.items() if pairs and self._groups[group].serving}
        await self._propose(
            (group, [control.LogStartMoved(tuple(pairs[first : first + MOVES_MAX]))])
            for group, pairs in moves.items()
            for first in range(0, len(pairs), MOVES_MAX)
        )

    async def confirm(self) -> None:
        """Make the current log starts durable. Otherwise, under `async` durability, a crash could take them back, and
        the batches removed because of them would be missing."""
        await self._write_loop.sync()

    async def own(self, queue_id: int, *, held: int | None = None) -> int:
        group = self._groups[self._group_of(queue_id)]
        if not group.serving:
            raise group.consensus.refusal()
        if self._is_shut(queue_id):
            raise NotTheLeader(f"queue {queue_id:#x} is on its way to another write group")
        if held is not None:
            if not group.owners.admits(queue_id, held):
                raise NotTheLeader(f"another writer owns queue {queue_id:#x} by now")
            return held
        return group.owners.grant(queue_id)

    async def epoch_end(self, queue_id: int, leader_epoch: int) -> tuple[int, int] | None:
        current = self._groups[self._group_of(queue_id)].term
        return await self._lookup.epoch_end(queue_id, leader_epoch, current)

    async def usage(self, queue_ids: Sequence[int]) -> list[QueueUsage | None]:
        return await self._usage.of(queue_ids)

    async def _propose_in_blocks(self, commands: Sequence[Sequence[control.Command]]) -> None:
        """Log the commands of each group, `COMMANDS_MAX` to a block."""
        for first in range(0, max(map(len, commands), default=0), COMMANDS_MAX):
            parts = [(group, of_group[first : first + COMMANDS_MAX]) for group, of_group in enumerate(commands)]
            await self._propose((group, part) for group, part in parts if part)
        await self._write_loop.sync()

    async def _propose(self, commands: Iterable[tuple[int, Sequence[control.Command]]]) -> None:
        """Log a block of commands in each of these groups; applied and durable when it returns. Changes that another
        caller made before are then durable too, even if no command is left to log.

        Raises `StorageFailed` when this node writes no more, `NotTheLeader`, and `ChangesFailed` when it has no part in
        some of the groups any more, once all others are done."""
        proposed = [(group, self._groups[group].propose(block)) for group, block in commands]
        self._write_loop.wake()
        outcomes = await asyncio.gather(*(outcome for _group, outcome in proposed), return_exceptions=True)
        errors = {
            group: outcome
            for (group, _), outcome in zip(proposed, outcomes, strict=True)
            if isinstance(outcome, BaseException)
        }
        for error in errors.values():
            if not isinstance(error, WriteGroupEnded):
                raise error
        await self._write_loop.sync()
        if errors:
            raise ChangesFailed(errors)
