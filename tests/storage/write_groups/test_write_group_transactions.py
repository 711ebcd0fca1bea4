"""A member behind a snapshot knows transactions of blocks that it has yet to apply, and applies these all the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from mainstem.kernel import FIRST_UNSTABLE, QueueTable
from mainstem.kernel.batch_header import CONTROL_BIT, TRANSACTIONAL_BIT
from mainstem.model import AbortedRange, queue_id_of
from mainstem.storage.journal.encoding.format import DIRECTORY_ROW
from mainstem.storage.journal.encoding.transaction_rows import marker_row
from mainstem.storage.write_groups.write_group_transactions import WriteGroupTransactions

QUEUE = queue_id_of(1, 0)
FIRST, SECOND, THIRD = 7, 8, 9
"""Producers."""
Row = tuple[int, int, int]
"""Producer, offset, and where the transaction began that a marker aborts; -1: a batch."""


class Member:
    """One member's transactions, and the queue table whose cells they set."""

    def __init__(self) -> None:
        self.table = QueueTable()
        self.table.create(1, 0, 1)
        self.transactions = WriteGroupTransactions(0, self.table)

    def apply(self, blocks: Sequence[Row], after: int = 0) -> None:
        """Apply blocks of one row each, from the one behind `after` on; the first has number 1."""
        for index, (producer, offset, began) in enumerate(blocks[after:], after + 1):
            row = numpy.zeros(1, DIRECTORY_ROW)
            row["queue_id"], row["producer_id"], row["base_offset"] = QUEUE, producer, offset
            row["attributes"] = TRANSACTIONAL_BIT
            if began >= 0:
                told = marker_row(offset, began, offset + 1, committed=False, coordinator_epoch=1)
                row["attributes"], row["base_sequence"], row["record_count"] = told
                assert told.attributes & CONTROL_BIT
            self.transactions.applied(memoryview(row.tobytes()), [0], index, 1)

    @property
    def first_unstable(self) -> int:
        return int(self.table.get(self.table.find(QUEUE), FIRST_UNSTABLE)) - 1

    @property
    def aborted(self) -> list[AbortedRange]:
        return self.transactions.aborted.find(QUEUE, 0, 1000)


def test_the_last_stable_offset_is_the_leaders_when_blocks_ahead_of_a_snapshot_come_again() -> None:
    blocks = [(FIRST, 0, -1), (FIRST, 1, 0), (FIRST, 2, -1), (SECOND, 3, -1)]
    leader, member = Member(), Member()
    leader.apply(blocks)
    assert leader.first_unstable == 2
    member.transactions.load_image(leader.transactions.image(len(blocks)))
    member.apply(blocks, after=1)
    assert member.first_unstable == 2, "the first producer's transaction is open, and the older one"


def test_transactions_that_the_sender_of_a_snapshot_had_forgotten_are_known_once_their_blocks_come() -> None:
    """The snapshot stands at the block that was split last when it was begun; the split went on while it was sent."""
    blocks = [(FIRST, 0, -1), (FIRST, 1, 0), (SECOND, 2, -1), (SECOND, 3, 2), (THIRD, 4, -1), (THIRD, 5, 4)]
    leader, member = Member(), Member()
    leader.apply(blocks)
    before = leader.aborted
    leader.transactions.aborted.prune(4)
    member.transactions.load_image(leader.transactions.image(len(blocks)))
    member.apply(blocks, after=0)
    assert member.aborted == before
    assert [entry.block_index for _queue, entry in member.transactions.aborted] == [2, 4, 6]
    member.transactions.aborted.prune(4)
    assert member.aborted == [AbortedRange(THIRD, 4, 5)]
