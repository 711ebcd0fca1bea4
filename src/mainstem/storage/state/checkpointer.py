"""The checkpointer saves the applied state, after everything that this state says is done elsewhere is durable.

It captures all but the queues and the producers within one turn of the event loop; these follow in the next turns
(`queue_image` explains why that is as good; applying a producer's earlier batches again changes nothing). It saves the
state after the manifest has caught up and the journal is synced up to the youngest piece, so a checkpoint never knows
more than the disks do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from mainstem.kernel import ProducerStates
from mainstem.ports import Clock, Files
from mainstem.storage.errors import StorageError
from mainstem.storage.journal.journal import Journal
from mainstem.storage.state import checkpoint as checkpoints
from mainstem.storage.state import queue_image
from mainstem.storage.state.applied import AppliedState
from mainstem.storage.state.producers.cold_producers import ColdProducers
from mainstem.storage.write_groups.write_group import WriteGroup
from mainstem.storage.write_groups.write_loop import WriteLoop

PRODUCERS_PER_TURN = 1_000
"""Blocks of a write group captured in one turn of the event loop: some milliseconds."""


class Checkpointer:
    """Saves the applied state of a node, one checkpoint at a time."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        journal: Journal,
        groups: Sequence[WriteGroup],
        state: AppliedState,
        write_loop: WriteLoop,
        producers: ColdProducers,
        node_id: int = 0,
        *,
        held: Callable[[], bool] = lambda: False,
    ) -> None:
        """While `held` returns True nothing is saved: a later start may find more in the journal than this one did."""
        self._node_id = node_id
        self._files = files
        self._clock = clock
        self._journal = journal
        self._groups = groups
        self._state = state
        self._write_loop = write_loop
        self._producers = producers
        self._turn = asyncio.Lock()
        self._held = held
        self._saved_at = clock.monotonic()
        self._bytes_at_save = 0
        self._blocks_at_save = 0
        self.position = 0
        """Journal position of the newest checkpoint: recovery needs no block that ends at or below it."""
        self.saved = 0

    def recovered(self, position: int) -> None:
        """Note that the node started from the checkpoint at this journal position."""
        self.position = position
        self._bytes_at_save = self._state.journal_map.data_bytes
        self._blocks_at_save = self._blocks

    @property
    def seconds_since(self) -> float:
        return self._clock.monotonic() - self._saved_at

    @property
    def bytes_since(self) -> int:
        """Bytes of data blocks applied since the newest checkpoint, or since the start."""
        return self._state.journal_map.data_bytes - self._bytes_at_save

    @property
    def blocks_since(self) -> int:
        """Blocks applied since the newest checkpoint, or since the start."""
        return self._blocks - self._blocks_at_save

    @property
    def _blocks(self) -> int:
        return sum(group.applied_index for group in self._groups)

    @property
    def held(self) -> bool:
        """Whether nothing is saved now."""
        return self._held()

    async def checkpoint(self) -> None:
        """Save the applied state as of now, unless no block was applied since the last checkpoint, or saving is
        `held`."""
        if not self._held() and self._write_loop.applied_end > self.position:
            await self.save()

    async def save(self) -> None:
        """Save the applied state as of now, even if no block changed it. Raises `StorageError` while saving is
        `held`."""
        async with self._turn:
            self._refuse_if_held()
            await self._save()

    async def save_after(self, change: Callable[[], Awaitable[None]]) -> None:
        """Make a change of the state that takes more than a turn of the event loop, and save the result: no checkpoint
        ever has half of it. Raises `StorageError` while saving is `held`, and changes nothing then."""
        async with self._turn:
            self._refuse_if_held()
            await change()
            await self._save()

    def _refuse_if_held(self) -> None:
        if self._held():
            raise StorageError("no checkpoint is saved while a write group waits for what the journal lacks")

    async def _save(self) -> None:
        applied = self._state
        position, size = self._write_loop.applied_end, applied.journal_map.data_bytes
        blocks = self._blocks
        in_files = self._producers.active
        groups = {group.group: group.dump(with_producers=False) for group in self._groups}
        transactions = {group.group: known for group in self._groups if (known := group.transactions.image())}
        logs = {group.group: group.blocks.dump() for group in self._groups}
        journal_map, splits = applied.journal_map.dump(), applied.manifest.dump()
        remote_numbers, moves = applied.remote.numbers(), applied.moves.image()
        image = await queue_image.take(applied.table)
        producer_files = await self._producers.flush() if in_files else {}
        producers = {} if in_files else {
            number: await _packed_producers(self._groups[number].producers) for number in groups
        }  # fmt: skip
        durable = self._write_loop.end
        await applied.manifest.settled()
        with contextlib.suppress(StorageError):  # the checkpoint then says less
            await applied.manifest.vouch()
        await applied.remote.drained()
        await self._journal.sync()
        state = checkpoints.State(
            position=position,
            durable=durable,
            groups=groups,
            journal_map=journal_map,
            splits=applied.manifest.as_written(splits),
            logs=logs,
            producer_files=producer_files,
            node_id=self._node_id,
            remote_numbers=remote_numbers,
            transactions=transactions,
            moves=moves,
        )
        await checkpoints.save(self._files, state, image, producers)
        if in_files:
            self._producers.saved(producer_files)
            await self._producers.remove_unnamed()
        self.position = position
        self._saved_at = self._clock.monotonic()
        self._bytes_at_save = size
        self._blocks_at_save = blocks
        self.saved += 1


async def _packed_producers(producers: ProducerStates) -> list[msgspec.Raw]:
    """All producers as a checkpoint keeps them, packed some in a turn of the event loop. Those packed later may be
    younger: a start applies the blocks that changed them again, which changes nothing the second time."""
    producers.all_changed()
    packed: list[msgspec.Raw] = []
    begin = True
    while (rows := producers.changed(begin, PRODUCERS_PER_TURN)) is not None:
        packed += checkpoints.packed_producers(rows)
        begin = False
        await asyncio.sleep(0)
    producers.all_changed()  # none of them is in a file
    return packed
