"""A write group without a journal: blocks are handed over, become durable, are applied, and answer who waits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence

import pytest
from tests.fakes.simulated_loop import SimulatedLoop
from tests.storage.small_node import QUEUE, new_batch

from mainstem.kernel import COMMITTED_END, NEXT_OFFSET, ROW, QueueTable
from mainstem.kernel.pure.producer_states import PATIENCE
from mainstem.model import AppendResult, BatchAppend, Buffer, Outcome
from mainstem.raft import HardState, Membership, Message, RaftConfig, Snapshot
from mainstem.raft.messages import InstallSnapshot
from mainstem.storage.errors import StorageFailed
from mainstem.storage.journal.encoding.format import KIND_CONTROL, KIND_DATA, KIND_NO_OP, BlockHeader
from mainstem.storage.journal.journal import BlockToWrite
from mainstem.storage.write_groups import control
from mainstem.storage.write_groups.log_block import Ticket
from mainstem.storage.write_groups.write_group import WriteGroup

BLOCK_BYTES_MAX = 5000
NOW_MS = 1_700_000_000_000


class Applied:
    """Records what is applied; commands come to their own names."""

    def __init__(self) -> None:
        self.blocks: list[BlockHeader] = []

    def queues_seen(self, directory: Buffer) -> None:
        raise AssertionError("every block was appended here")

    def block_applied(
        self,
        header: BlockHeader,
        directory: Buffer,
        payload: memoryview | None,
        watched: Sequence[tuple[int, int]],
    ) -> None:
        self.blocks.append(header)

    def awaits(self, group: int, command: control.Command) -> bool:
        return False

    def holds(self, group: int) -> bool:
        return False

    def transactions_ended(self, queue_ids: Sequence[int]) -> None: ...

    def command_applied(self, group: int, index: int, command: control.Command) -> str:
        return type(command).__name__


class Alone:
    """There are no other nodes, and nobody needs to be woken."""

    def __init__(self) -> None:
        self.serving: list[bool] = []

    def send(self, group: int, messages: Iterable[Message]) -> None:
        raise AssertionError(f"nobody is there to hear {list(messages)}")

    def withholds(self, group: int) -> None:
        raise AssertionError("there is nobody to withhold entries from")

    def wake(self) -> None: ...

    def superseded(self, group: int, first_index: int, positions: Sequence[int], last_data: int) -> None:
        raise AssertionError("there is no other leader")

    def send_snapshot(self, group: int, message: InstallSnapshot) -> None:
        raise AssertionError(f"nobody is there to take {message.snapshot}")

    def install_snapshot(self, group: int, snapshot: Snapshot) -> None:
        raise AssertionError(f"nobody is there who sent {snapshot}")

    def leader_changed(self, group: int, leader_id: int, term: int) -> None: ...

    def hand_over_changed(self, group: int, *, begun: bool) -> None:
        raise AssertionError("there is no other leader")

    def serving_changed(self, group: int, *, serving: bool) -> None:
        self.serving.append(serving)


def new_group(table: QueueTable, applied: Applied) -> WriteGroup:
    return WriteGroup(0, table, applied, Alone(), block_bytes_max=BLOCK_BYTES_MAX, batch_bytes_max=1 << 20)


class Driver:
    """One group and its disk: `take` what is to be written, `durable` once it is."""

    def __init__(self) -> None:
        self.table = QueueTable()
        self.table.create(1, 0, 2)
        self.applied = Applied()
        self.written: list[BlockToWrite] = []
        self.position = 4096
        self.group = new_group(self.table, self.applied)
        self.lead()

    def lead(self, term: int = 0) -> None:
        """Become the leader; block 1 is the no-op that this takes."""
        self.group.consensus.join(RaftConfig(node_id=1), HardState(term), Membership.of([1]), random.Random(1))
        due = self.group.consensus.hard_state_due
        assert due is not None
        assert not self.group.serving, "before its term is durable"
        self.group.consensus.hard_state_due = None
        self.group.consensus.hard_state_saved(due)
        (no_op,) = self.take()
        assert no_op.kind == KIND_NO_OP
        self.durable()
        assert self.group.serving
        self.applied.blocks.clear()

    def append(self, *batches: BatchAppend) -> Ticket:
        results: list[AppendResult] = []
        ticket = Ticket(results)
        for batch in batches:
            result, index = self.group.log.append(batch, NOW_MS)
            results.append(result)
            if index:
                self.group.wait_for(index, ticket)
        if not ticket.blocks:
            ticket.set_result(results)
        return ticket

    def take(self, bytes_max: int = 1 << 20) -> list[BlockToWrite]:
        blocks = self.group.take(NOW_MS, bytes_max)
        self.written += blocks
        return blocks

    def durable(self, count: int = 1) -> None:
        for _ in range(count):
            block = self.written.pop(0)
            header = BlockHeader(
                block.kind,
                0,
                block.term,
                block.index,
                8,
                block.batch_count,
                0,
                0,
                self.position,
                0,
                0,
                block.created_ms,
            )
            self.position += 8
            assert self.group.written(header)
            self.group.flushed(header)

    def cell(self, cell: int, queue_id: int = QUEUE) -> int:
        return self.table.get(self.table.find(queue_id), cell)


def driven(story: Callable[[Driver], Awaitable[None]]) -> None:
    loop = SimulatedLoop()

    async def told() -> None:
        await story(Driver())

    try:
        loop.run_until_complete(told())
    finally:
        loop.close()


def test_offsets_run_ahead_and_are_committed_block_by_block() -> None:
    async def story(driver: Driver) -> None:
        first = driver.append(new_batch(QUEUE, 10, records=3), new_batch(QUEUE + 1, 10))
        second = driver.append(new_batch(QUEUE, 10))
        (block,) = driver.take()
        third = driver.append(new_batch(QUEUE, 10))
        assert (driver.cell(NEXT_OFFSET), driver.cell(COMMITTED_END)) == (5, 0)
        driver.take()
        driver.durable()
        assert (driver.cell(NEXT_OFFSET), driver.cell(COMMITTED_END)) == (5, 4)
        assert [result.base_offset for result in await first] == [0, 0]
        assert [result.base_offset for result in await second] == [3]
        assert not third.done()
        driver.durable()
        assert (await third)[0].base_offset == 4
        rows = [ROW.unpack_from(block.directory, 64 * row) for row in range(block.batch_count)]
        assert [(row[0], row[1], row[6], row[7]) for row in rows] == [
            (QUEUE, 0, 2, 3),
            (QUEUE + 1, 0, 0, 1),
            (QUEUE, 3, 0, 1),
        ]
        assert driver.group.log.pending_bytes == 0

    driven(story)


def test_a_request_in_many_blocks_waits_for_the_last() -> None:
    async def story(driver: Driver) -> None:
        future = driver.append(*(new_batch(QUEUE, 2000) for _ in range(6)))
        assert len(driver.take()) == 3
        driver.durable(2)
        assert not future.done()
        driver.durable()
        assert [result.base_offset for result in await future] == list(range(6))

    driven(story)


def test_no_block_outgrows_its_bound_but_for_a_single_batch() -> None:
    async def story(driver: Driver) -> None:
        driver.append(new_batch(QUEUE, 3000), new_batch(QUEUE, 3000), new_batch(QUEUE, 9000), new_batch(QUEUE, 10))
        blocks = driver.take()
        assert [block.batch_count for block in blocks] == [1, 1, 1, 1]
        for block in blocks:
            size = len(block.directory) + sum(map(len, block.payload))
            assert size <= BLOCK_BYTES_MAX or block.batch_count == 1

    driven(story)


def test_a_turn_takes_about_what_it_may_and_leaves_the_rest_in_order() -> None:
    async def story(driver: Driver) -> None:
        driver.append(*(new_batch(QUEUE, 4000) for _ in range(5)))
        assert [len(driver.take(bytes_max)) for bytes_max in (1, 8000, 1 << 20, 1 << 20)] == [1, 2, 2, 0]
        assert [block.index for block in driver.written] == [2, 3, 4, 5, 6]
        assert not driver.group.has_work

    driven(story)


def test_a_duplicate_waits_for_the_block_of_the_first_wherever_that_is() -> None:
    async def story(driver: Driver) -> None:
        def send(sequence: int) -> Ticket:
            return driver.append(new_batch(QUEUE, 10, producer=(7, 0, sequence)))

        first = send(0)
        in_open_block = send(0)
        driver.take()
        second = send(1)
        driver.group.propose([])  # closes the block of the second
        in_closed_block, in_flight = send(1), send(0)
        assert not any(future.done() for future in (first, in_open_block, second, in_closed_block, in_flight))
        driver.durable()
        for future in (first, in_open_block, in_flight):
            assert (await future)[0].base_offset == 0
        assert not second.done()
        assert not in_closed_block.done()
        driver.take()
        driver.durable(2)
        assert (await second)[0].base_offset == (await in_closed_block)[0].base_offset == 1
        afterwards = send(0)
        assert afterwards.done()
        assert (await afterwards)[0].base_offset == 0
        assert driver.cell(COMMITTED_END) == 2, "no duplicate was appended"
        assert driver.group.log.appended_batches == 2

    driven(story)


def test_what_is_refused_leaves_nothing_behind() -> None:
    async def story(driver: Driver) -> None:
        refused = driver.append(new_batch(9 << 32))
        assert (await refused)[0].outcome is Outcome.UNKNOWN_QUEUE
        driver.append(new_batch(QUEUE, 10, producer=(7, 1, 0)))
        driver.take()
        stale = driver.append(new_batch(QUEUE, 10, producer=(7, 0, 1)))
        assert (await stale)[0].outcome is Outcome.STALE_PRODUCER_EPOCH
        for _ in range(PATIENCE):
            gap = driver.append(new_batch(QUEUE, 10, producer=(7, 1, 2)))
            assert (await gap)[0].outcome is Outcome.SKIPPED_SEQUENCE
        gap = driver.append(new_batch(QUEUE, 10, producer=(7, 1, 2)))
        assert (await gap)[0].outcome is Outcome.OUT_OF_ORDER_SEQUENCE
        assert not driver.group.has_work
        assert driver.cell(NEXT_OFFSET) == 1

    driven(story)


def test_log_append_time_is_in_batch_directory_and_answer() -> None:
    async def story(driver: Driver) -> None:
        future = driver.append(new_batch(QUEUE, 10)._replace(log_append_time=True))
        (block,) = driver.take()
        driver.durable()
        assert (await future)[0].log_append_time_ms == NOW_MS
        assert ROW.unpack(block.directory)[2] == NOW_MS

    driven(story)


def test_commands_are_logged_behind_what_was_appended_and_bring_their_outcomes() -> None:
    async def story(driver: Driver) -> None:
        driver.append(new_batch(QUEUE, 10))
        commands = driver.group.propose([control.QueuesDeleted(3), control.LogStartMoved(())])
        no_op = driver.group.propose([])
        driver.append(new_batch(QUEUE, 10))
        blocks = driver.take()
        assert [block.kind for block in blocks] == [KIND_DATA, KIND_CONTROL, KIND_NO_OP, KIND_DATA]
        assert control.decode(bytes(blocks[1].payload[0]), "") == (control.QueuesDeleted(3), control.LogStartMoved(()))
        driver.durable(4)
        assert await commands == ["QueuesDeleted", "LogStartMoved"]
        assert await no_op == []
        assert [header.index for header in driver.applied.blocks] == [2, 3, 4, 5]

    driven(story)


def test_a_failure_answers_everybody_and_nothing_is_accepted_after_it() -> None:
    async def story(driver: Driver) -> None:
        in_flight = driver.append(new_batch(QUEUE, 10), new_batch(9 << 32))
        driver.take()
        closed, command, opened = (
            driver.append(new_batch(QUEUE, 10)),
            driver.group.propose([]),
            driver.append(new_batch(QUEUE, 10)),
        )
        driver.group.fail(StorageFailed("gone"))
        assert [result.outcome for result in await in_flight] == [Outcome.STORAGE_FAILED, Outcome.UNKNOWN_QUEUE]
        assert (await closed)[0].outcome is (await opened)[0].outcome is Outcome.STORAGE_FAILED
        for proposal in (command, driver.group.propose([])):
            with pytest.raises(StorageFailed):
                await proposal
        assert driver.group.log.pending_bytes == 0
        assert not driver.group.has_work
        assert driver.cell(COMMITTED_END) == 0

    driven(story)


def test_a_checkpoint_holds_nothing_of_what_is_merely_appended() -> None:
    async def story(driver: Driver) -> None:
        driver.append(new_batch(QUEUE, 10, producer=(7, 0, 0)))
        driver.take()
        driver.durable()
        driver.append(new_batch(QUEUE, 10, producer=(7, 0, 1)), new_batch(QUEUE, 10, producer=(8, 0, 0)))
        state = driver.group.dump()
        ranges, images = driver.table.dump()
        again = Driver()
        again.table = QueueTable()
        again.table.load(ranges, images)
        again.group = new_group(again.table, again.applied)
        again.group.load(state)
        again.group.blocks.begin_behind(state.applied_index, state.term)
        again.lead()
        assert again.cell(NEXT_OFFSET) == again.cell(COMMITTED_END) == 1
        results = await asyncio.gather(
            again.append(new_batch(QUEUE, 10, producer=(7, 0, 0))),  # a duplicate, committed before
        )
        assert results[0][0].base_offset == 0
        fresh = again.append(new_batch(QUEUE, 10, producer=(7, 0, 1)), new_batch(QUEUE, 10, producer=(8, 0, 0)))
        again.take()
        again.durable()
        assert [result.base_offset for result in await fresh] == [1, 2]

    driven(story)
