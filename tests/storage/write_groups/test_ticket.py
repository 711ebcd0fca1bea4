"""A ticket: one append on its way, over several blocks of several groups."""

from __future__ import annotations

from tests.kernel.produce.produce_bodies import good_batch
from tests.kernel.produce.test_produce_bursts import LIMIT, Frame, plain
from tests.kernel.test_group_log import GROUPS, PARTITIONS, TOPIC, Node

import mainstem.kernel as kernel
from mainstem.model import AppendResult, Outcome
from mainstem.storage.write_groups.log_block import Ticket


def test_only_what_was_in_a_lost_block_is_lost_and_told_with_the_rest() -> None:
    node = Node(kernel)
    topic = kernel.ProduceTopic(number=TOPIC, partitions=PARTITIONS, message_bytes_max=LIMIT)
    content = b"".join(Frame(plain((partition, good_batch()))).written() for partition in range(PARTITIONS))
    resolve = {b"plain": topic}.__getitem__
    scan = kernel.scan_burst(memoryview(content), 0, len(content), 100, LIMIT, resolve, resolve)
    assert scan is not None
    results, waiting = node.append(scan, [True] * GROUPS, 1)
    assert len(waiting) > 1
    ticket = Ticket(results)
    ticket.blocks = len(waiting)
    for group, index in waiting[1:]:
        ticket.block_failed(group, index, Outcome.NOT_LEADER)
        assert not ticket.done()
    ticket.block_safe()
    assert ticket.done()
    verdicts = {(batch.group, batch.block_index): batch.verdict for batch in scan.scanned()}
    assert verdicts.pop(waiting[0]) == kernel.Verdict.OK
    assert set(verdicts.values()) == {kernel.Verdict.NOT_LEADER}


def test_where_it_is_not_known_what_was_lost_all_is_and_at_once() -> None:
    ticket = Ticket([AppendResult(Outcome.OK, 3, -1, 0), AppendResult(Outcome.FENCED)])
    ticket.blocks = 2
    ticket.block_failed(0, 1, Outcome.STORAGE_FAILED)
    assert [result.outcome for result in ticket.result()] == [Outcome.STORAGE_FAILED, Outcome.FENCED]
    ticket.block_failed(0, 2, Outcome.STORAGE_FAILED)  # nobody is told twice
    ticket.block_safe()


def test_where_more_than_one_batch_was_taken_none_is_called_refused() -> None:
    """Another of them may be committed, with a block before the lost one."""
    taken = AppendResult(Outcome.OK, 3, -1, 0)
    alone, several = Ticket([taken]), Ticket([taken, taken, AppendResult(Outcome.FENCED)])
    alone.blocks, several.blocks = 1, 2
    several.block_safe()
    for ticket in (alone, several):
        ticket.block_failed(0, 2, Outcome.NOT_LEADER)
    assert [result.outcome for result in alone.result()] == [Outcome.NOT_LEADER]
    assert [result.outcome for result in several.result()] == [Outcome.UNDECIDED, Outcome.UNDECIDED, Outcome.FENCED]


def test_a_batch_whose_producer_is_being_read_is_undecided_when_the_others_are_told() -> None:
    for outcome in (Outcome.STORAGE_FAILED, Outcome.NOT_LEADER):
        ticket = Ticket([AppendResult(Outcome.OK, 3, -1, 0), AppendResult(Outcome.COLD_PRODUCER)])
        ticket.blocks = 2
        ticket.block_failed(0, 1, outcome)
        assert ticket.result()[1].outcome is Outcome.UNDECIDED
