"""Offsets that transactions commit: they wait for the marker, then come into force or are dropped."""

from __future__ import annotations

from typing import Any

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.machine import ConsumerGroupMachine
from mainstem.broker.consumer_groups.offsets_topic import OffsetsTopicCodec, encode
from mainstem.broker.machines.result import Moment, Result
from mainstem.model import FeatureLevel
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from mainstem.protocol.messages.producer_transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from mainstem.protocol.records import Record

NOW = Moment(1_000, 1_000)
PRODUCER = 7


class Machine:
    def __init__(self, **config: Any) -> None:
        self.config = ConsumerGroupsConfig(**config)
        self.machine = ConsumerGroupMachine(self.config, lambda: "id")
        self.log: list[Any] = []

    def answer(self, result: Result) -> Any:
        self.log += result.records
        [answer] = result.answers
        return answer.response

    def commit(
        self, offset: int, *, epoch: int = 3, asked_at: int | None = None, coordinator_epoch: int = 0, **member: Any
    ) -> ErrorCode:
        partition = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata="why"
        )
        request = TxnOffsetCommitRequest(
            transactional_id="t",
            group_id="g",
            producer_id=PRODUCER,
            producer_epoch=epoch,
            topics=(TxnOffsetCommitRequestTopic(name="flights", partitions=(partition,)),),
            **member,
        )
        seen = self.machine.state.pending.markers if asked_at is None else asked_at
        answer = self.answer(self.machine.offsets.commit_in_transaction(1, request, seen, coordinator_epoch, NOW))
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def end(self, *, commit: bool, epoch: int = 3, coordinator_epoch: int = 0) -> ErrorCode:
        code: ErrorCode = self.answer(
            self.machine.offsets.end_transaction(1, PRODUCER, epoch, coordinator_epoch, commit, NOW)
        )
        return code

    def fetched(self, *, stable: bool = False) -> tuple[int, int]:
        topics = (OffsetFetchRequestTopics(name="flights", partition_indexes=(0,)),)
        request = OffsetFetchRequestGroup(group_id="g", topics=topics)
        answer = self.answer(self.machine.offsets.fetch(1, request, NOW, require_stable=stable))
        [found] = answer.topics[0].partitions
        return found.committed_offset, found.error_code

    def replayed(self, records: list[Any]) -> Machine:
        other = Machine()
        codec = OffsetsTopicCodec()
        for offset, record in enumerate(records):
            encoded = encode(record, 5, FeatureLevel.newest())
            decoded = codec.decode(Record(offset, encoded.timestamp, encoded.key, encoded.value, ()))
            assert decoded is not None
            other.machine.replay(decoded)
        return other


def test_offsets_come_into_force_with_the_commit_and_are_unstable_before() -> None:
    it = Machine()
    assert it.commit(5) is ErrorCode.NONE
    assert it.fetched() == (-1, ErrorCode.NONE)
    assert it.fetched(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert it.end(commit=True) is ErrorCode.NONE
    assert it.fetched(stable=True) == (5, ErrorCode.NONE)
    assert it.machine.state.pending.count == 0
    assert it.end(commit=True) is ErrorCode.NONE  # its coordinator may say so again


def test_an_abort_drops_them_and_keeps_what_was_committed_before() -> None:
    it = Machine()
    it.commit(5)
    it.end(commit=True)
    it.commit(9)
    assert it.end(commit=False) is ErrorCode.NONE
    assert it.fetched(stable=True) == (5, ErrorCode.NONE)


def test_a_restart_and_a_snapshot_keep_what_waits() -> None:
    it = Machine()
    it.commit(5)
    sections = [record for section in it.machine.sections() for record in it.machine.snapshot(section)]
    for records in (it.log, sections):
        other = it.replayed(records)
        assert other.machine.state.pending.count == 1
        assert other.fetched(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert other.end(commit=True) is ErrorCode.NONE
        assert other.fetched(stable=True) == (5, ErrorCode.NONE)


def test_offsets_that_come_behind_their_marker_are_refused() -> None:
    it = Machine()
    asked_at = it.machine.state.pending.markers
    it.end(commit=False, epoch=4)
    assert it.commit(5, epoch=4, asked_at=asked_at) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert it.commit(5, epoch=3) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert it.commit(5, epoch=4) is ErrorCode.NONE
    assert it.end(commit=True, epoch=3) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert it.fetched() == (-1, ErrorCode.NONE)


def test_offsets_of_a_producer_asked_for_before_the_log_was_loaded_come_again() -> None:
    it = Machine()
    assert it.commit(5, asked_at=-1) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert it.commit(5) is ErrorCode.NONE


def test_a_marker_of_a_deposed_coordinator_ends_no_later_transaction() -> None:
    it = Machine()
    it.commit(5)
    assert it.end(commit=True, coordinator_epoch=4) is ErrorCode.NONE
    assert it.commit(9, coordinator_epoch=-1) is ErrorCode.NONE, "an older client's next transaction has the same epoch"
    assert it.end(commit=True, coordinator_epoch=3) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert it.fetched(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert it.fetched() == (5, ErrorCode.NONE)
    assert it.end(commit=False, coordinator_epoch=5) is ErrorCode.NONE
    assert it.fetched(stable=True) == (5, ErrorCode.NONE)


def test_a_deposed_coordinator_that_takes_an_ended_transaction_for_open_lets_no_offset_wait() -> None:
    """Nobody would end it, or the producer's next transaction would commit it."""
    it = Machine()
    it.commit(5, coordinator_epoch=4)
    assert it.end(commit=True, coordinator_epoch=5) is ErrorCode.NONE
    assert it.commit(2, coordinator_epoch=4) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert it.fetched(stable=True) == (5, ErrorCode.NONE)
    assert it.commit(9, coordinator_epoch=5) is ErrorCode.NONE
    assert it.end(commit=True, coordinator_epoch=5) is ErrorCode.NONE
    assert it.fetched(stable=True) == (9, ErrorCode.NONE)


def test_a_marker_of_a_deposed_coordinator_ends_no_later_transaction_after_a_restart_either() -> None:
    it = Machine()
    it.commit(5, coordinator_epoch=3)
    assert it.end(commit=True, coordinator_epoch=4) is ErrorCode.NONE
    assert it.commit(9, coordinator_epoch=4) is ErrorCode.NONE, "the next transaction"
    sections = [record for section in it.machine.sections() for record in it.machine.snapshot(section)]
    for records in (it.log, sections):
        other = it.replayed(records)
        assert other.end(commit=True, coordinator_epoch=3) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert other.fetched(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert other.end(commit=True, coordinator_epoch=4) is ErrorCode.NONE
        assert other.fetched(stable=True) == (9, ErrorCode.NONE)


def test_offsets_of_a_coordinator_that_did_not_say_its_epoch_end_as_before() -> None:
    it = Machine()
    assert it.commit(5, coordinator_epoch=-1) is ErrorCode.NONE
    other = it.replayed(it.log)
    assert other.end(commit=True, coordinator_epoch=0) is ErrorCode.NONE
    assert other.fetched(stable=True) == (5, ErrorCode.NONE)


def test_an_administrator_who_has_no_epoch_ends_what_hangs() -> None:
    it = Machine()
    it.commit(5)
    it.end(commit=True, coordinator_epoch=4)
    it.commit(9, coordinator_epoch=4)
    assert it.end(commit=False, coordinator_epoch=-1) is ErrorCode.NONE
    assert it.commit(11, coordinator_epoch=-1) is ErrorCode.NONE
    assert it.end(commit=True, coordinator_epoch=3) is ErrorCode.TRANSACTION_COORDINATOR_FENCED, "known still"


def test_members_are_checked_and_what_waits_is_bounded() -> None:
    it = Machine(pending_offsets_max=1)
    assert it.commit(5, generation_id=2, member_id="m") is ErrorCode.ILLEGAL_GENERATION  # there is no group
    assert it.commit(5) is ErrorCode.NONE
    assert it.commit(6) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    it.end(commit=True)
    assert it.commit(6, generation_id=2, member_id="m") is ErrorCode.UNKNOWN_MEMBER_ID
    assert it.commit(6) is ErrorCode.NONE
