"""Memory tells readers what was aborted as far as it knows; for the rest files are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import ModuleType
from typing import Any, cast

from tests.kernel.fetch.test_recent_index import Filler, both

from mainstem.kernel import LOG_START, RecentIndex
from mainstem.model import AbortedRange, queue_id_of
from mainstem.storage.errors import RecordsDeleted
from mainstem.storage.placement import Stay
from mainstem.storage.queues.committed_reads import LocalCommittedReads
from mainstem.storage.write_groups.aborted_index import UnsplitAborted
from mainstem.storage.write_groups.write_group_transactions import WriteGroupTransactions

QUEUE, OTHER = queue_id_of(1, 0), queue_id_of(1, 1)
BLOCKS = 300
PRODUCER = 7
ABORTED = AbortedRange(PRODUCER, 3, 5)
"""A transaction of which files alone know."""


class CountingIndex:
    """An index that counts how often somebody looks for an offset."""

    def __init__(self, index: Any, table: Any) -> None:
        self._index = index
        self.table = table
        """Of its queues."""
        self.windows = 0

    def window(self, slot: int, offset: int) -> Any:
        self.windows += 1
        return self._index.window(slot, offset)


class Files:
    """Files of which it takes a search to know what was aborted in them."""

    def aborted_at_once(
        self, queue_id: int, group: int, from_offset: int, to_offset: int
    ) -> Sequence[AbortedRange] | None:
        return None

    async def aborted(self, queue_id: int, from_offset: int, to_offset: int) -> list[AbortedRange]:
        raise AssertionError(f"files are searched for offset {from_offset} of queue {queue_id}")


class FilesOf(Files):
    """Files of which memory knows what was aborted of one queue; it takes a search for others."""

    def __init__(self, known: int) -> None:
        self._known = known
        self.searched: list[int] = []

    def aborted_at_once(
        self, queue_id: int, group: int, from_offset: int, to_offset: int
    ) -> Sequence[AbortedRange] | None:
        return [ABORTED] if queue_id == self._known else None

    async def aborted(self, queue_id: int, from_offset: int, to_offset: int) -> list[AbortedRange]:
        self.searched.append(queue_id)
        return [ABORTED]


def reads_of_blocks(
    kernel: ModuleType,
) -> tuple[LocalCommittedReads, CountingIndex, list[int], WriteGroupTransactions]:
    """Blocks of one message each, of two queues in turn: offset n of the first is in block 2n + 1, and its
    transactions of three messages are all aborted. The last block that is split stands in the list;
    beside them is what memory knows."""
    filler = Filler(kernel, 0)
    transactions = WriteGroupTransactions(0, filler.table)
    transactions.take_over([(QUEUE, PRODUCER, 1)])
    for number in range(BLOCKS):
        filler.add([0], 1)
        filler.add([1], 1)
        if number % 3 == 2:
            transactions.aborted.add(QUEUE, UnsplitAborted(PRODUCER, number - 2, number, number + 1, 2 * number + 1))
    index, split = CountingIndex(filler.index, filler.table), [0]
    counting = cast(RecentIndex, index)
    reads = LocalCommittedReads([transactions], lambda queue_id, offset: (Stay(0, 0),), filler.table, counting)
    reads.look_into(Files())
    reads.prune(lambda group: split[0])
    return reads, index, split, transactions


def told(reads: LocalCommittedReads, first: int, queue_id: int = QUEUE) -> list[int] | None:
    """The first offsets of the aborted transactions among ten messages; None: files have to be asked."""
    answers = reads.aborted_at_once([(queue_id, first, first + 10)])
    return None if answers is None else [one.first_offset for one in answers[0]]


def expected(first: int) -> list[int]:
    return list(range(first - first % 3, first + 10, 3))


@both
def test_a_reader_that_goes_on_is_looked_for_once(kernel: ModuleType) -> None:
    reads, index, _split, _transactions = reads_of_blocks(kernel)
    for first in range(20, BLOCKS - 10, 10):
        assert told(reads, first) == expected(first)
    assert index.windows == 1
    assert told(reads, 10) == expected(10)
    assert index.windows == 2, "memory was not asked for what lies before that"
    assert told(reads, 20, OTHER) == []
    assert index.windows == 3, "another queue"


@both
def test_files_are_asked_once_a_split_has_taken_the_offset(kernel: ModuleType) -> None:
    reads, index, split, _transactions = reads_of_blocks(kernel)
    assert told(reads, 100) == expected(100)
    split[0] = 2 * 100 + 1  # the block with offset 100
    reads.prune(lambda group: split[0])
    assert told(reads, 100) is None
    assert told(reads, 101) == expected(101), "the first transaction's marker is behind what is split"
    before = index.windows
    assert told(reads, 110) == expected(110)
    assert index.windows == before


@both
def test_what_was_known_before_memory_forgot_all_is_not_believed(kernel: ModuleType) -> None:
    """As when a snapshot takes its place, though the last block that is split has the same number again."""
    reads, index, split, transactions = reads_of_blocks(kernel)
    assert told(reads, 100) == expected(100)
    before = index.windows
    transactions.aborted.clear()
    assert told(reads, 100) is None
    reads.prune(lambda group: split[0])
    told(reads, 100)
    assert index.windows == before + 1


@both
def test_only_queues_that_nobody_remembers_are_searched(kernel: ModuleType) -> None:
    reads, _index, split, _transactions = reads_of_blocks(kernel)
    files = FilesOf(OTHER)
    reads.look_into(files)
    split[0] = BLOCKS
    reads.prune(lambda group: split[0])
    ranges = [(OTHER, 0, 10), (QUEUE, 0, 10), (OTHER, 10, 20)]
    assert reads.aborted_at_once(ranges) is None
    assert asyncio.run(reads.aborted(ranges)) == [[ABORTED]] * len(ranges)
    assert files.searched == [QUEUE]


@both
def test_what_was_aborted_among_deleted_records_is_not_told(kernel: ModuleType) -> None:
    """They were read a moment before; by now part of it may be forgotten, and files are gone that would know it."""
    reads, index, _split, _transactions = reads_of_blocks(kernel)
    reads.look_into(FilesOf(QUEUE))
    index.table.set(index.table.find(QUEUE), LOG_START, 100)
    known = reads.aborted_at_once([(QUEUE, 100, 110)])
    assert known is not None
    assert reads.aborted_at_once([(QUEUE, 99, 110)]) is None
    assert asyncio.run(reads.aborted([(OTHER, 0, 10), (QUEUE, 100, 110)])) == [[], *known]
    gone, others = asyncio.run(reads.aborted([(QUEUE, 99, 110), (OTHER, 0, 10)]))
    assert isinstance(gone, RecordsDeleted)
    assert "from offset 99 on are deleted" in str(gone)
    assert others == [], "the other queue's readers go on"


@both
def test_a_file_that_cannot_be_read_holds_up_the_readers_of_its_queue_alone(kernel: ModuleType) -> None:
    class Broken(FilesOf):
        async def aborted(self, queue_id: int, from_offset: int, to_offset: int) -> list[AbortedRange]:
            raise OSError("cannot be read")

    reads, _index, split, _transactions = reads_of_blocks(kernel)
    reads.look_into(Broken(OTHER))
    split[0] = BLOCKS
    reads.prune(lambda group: split[0])
    unread, others = asyncio.run(reads.aborted([(QUEUE, 0, 10), (OTHER, 0, 10)]))
    assert isinstance(unread, OSError)
    assert others == [ABORTED]
