"""Transactional ids, and producers of either transaction version that change them, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mainstem.broker.transactions import transitions
from mainstem.broker.transactions.transaction import EPOCH_MAX, Transaction, TransactionState
from mainstem.broker.transactions.transitions import Initialization, Need, Producer, TransactionEnding
from mainstem.protocol.error_codes import ErrorCode

NOW = 1_000
OPEN = Transaction("t", TransactionState.ONGOING, 7, 3, 60_000, 500, 400, frozenset({("flights", 0)}))
EMPTY = replace(OPEN, state=TransactionState.EMPTY, partitions=frozenset(), started_ms=-1)
COMMITTING = replace(OPEN, state=TransactionState.PREPARE_COMMIT)
COMMITTED = replace(EMPTY, state=TransactionState.COMPLETE_COMMIT)
ABORTED = replace(EMPTY, state=TransactionState.COMPLETE_ABORT)
ASKED = Initialization("t", 30_000)


def init(current: Transaction | None, *expected: int, new_id: int | None = None) -> Transaction | ErrorCode | Need:
    asked = ASKED._replace(expected=Producer(*expected)) if expected else ASKED
    return transitions.initialized(current, asked, new_id, NOW)


def given(found: object) -> tuple[int, int]:
    assert isinstance(found, Transaction)
    assert found.state is TransactionState.EMPTY
    return found.producer_id, found.producer_epoch


def end(
    current: Transaction | None, *producer: int, commit: bool, version: int, new_id: int | None = None
) -> TransactionEnding:
    found = transitions.ended(current, Producer(*producer), commit=commit, version=version, new_id=new_id, now_ms=NOW)
    assert isinstance(found, TransactionEnding)
    return found


def test_a_new_id_takes_a_new_producer_id() -> None:
    assert init(None) is Need.PRODUCER_ID
    assert given(init(None, new_id=9)) == (9, 0)


@pytest.mark.parametrize("current", [EMPTY, COMMITTED, ABORTED])
def test_a_producer_that_begins_gets_the_next_epoch(current: Transaction) -> None:
    assert given(init(current)) == (7, 4)


def test_while_the_end_is_written_the_next_producer_waits() -> None:
    assert init(COMMITTING) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_a_new_producer_has_the_open_transaction_aborted_under_an_epoch_that_nobody_has() -> None:
    found = init(OPEN)
    assert isinstance(found, Transaction)
    assert (found.state, found.producer_epoch) == (TransactionState.PREPARE_ABORT, 4)
    assert found.partitions == OPEN.partitions


def test_a_producer_that_recovers_is_known_by_its_epoch_and_a_zombie_is_fenced() -> None:
    bumped = init(EMPTY, 7, 3)
    assert given(bumped) == (7, 4)
    assert isinstance(bumped, Transaction)
    assert given(init(bumped, 7, 3)) == (7, 4)  # its answer was lost, and it asks again
    assert init(bumped, 7, 2) is ErrorCode.PRODUCER_FENCED
    assert init(bumped, 8, 4) is ErrorCode.PRODUCER_FENCED
    taken_over = init(bumped)
    assert isinstance(taken_over, Transaction)
    assert init(taken_over, 7, 4) is ErrorCode.PRODUCER_FENCED
    assert init(OPEN, 7, 2) is ErrorCode.PRODUCER_FENCED  # a zombie aborts nobody's transaction


def test_when_epochs_are_used_up_the_producer_gets_another_id() -> None:
    last = replace(EMPTY, producer_epoch=EPOCH_MAX - 1)
    assert init(last) is Need.PRODUCER_ID
    assert given(init(last, new_id=9)) == (9, 0)
    recovered = init(last, 7, EPOCH_MAX - 1, new_id=9)
    assert given(recovered) == (9, 0)
    assert isinstance(recovered, Transaction)
    assert given(init(recovered, 7, EPOCH_MAX - 1, new_id=10)) == (9, 0)
    assert init(recovered, 7, 5) is ErrorCode.PRODUCER_FENCED


def test_version_1_commits_and_aborts_within_its_epoch() -> None:
    committed = end(OPEN, 7, 3, commit=True, version=0)
    assert committed.transaction is not None
    assert committed.transaction.state is TransactionState.PREPARE_COMMIT
    assert committed.transaction.producer_epoch == 3
    assert end(OPEN, 7, 2, commit=True, version=0).code is ErrorCode.PRODUCER_FENCED
    assert end(OPEN, 8, 3, commit=True, version=0).code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert end(None, 7, 3, commit=True, version=0).code is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize(
    ("current", "commit", "code"),
    [
        (COMMITTING, True, ErrorCode.CONCURRENT_TRANSACTIONS),
        (COMMITTING, False, ErrorCode.INVALID_TXN_STATE),
        (COMMITTED, True, ErrorCode.NONE),
        (COMMITTED, False, ErrorCode.INVALID_TXN_STATE),
        (ABORTED, False, ErrorCode.NONE),
        (ABORTED, True, ErrorCode.INVALID_TXN_STATE),
        (EMPTY, True, ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_an_end_of_version_1_that_comes_again(current: Transaction, commit: bool, code: ErrorCode) -> None:
    assert end(current, 7, 3, commit=commit, version=0) == TransactionEnding(code, Producer(7, 3))


def test_version_2_gets_the_next_epoch_with_the_answer_however_often_it_asks() -> None:
    first = end(OPEN, 7, 3, commit=True, version=2)
    assert (first.code, first.producer) == (ErrorCode.NONE, Producer(7, 4))
    prepared = first.transaction
    assert prepared is not None
    assert end(prepared, 7, 3, commit=True, version=2).code is ErrorCode.CONCURRENT_TRANSACTIONS
    done = transitions.completed(prepared, NOW)
    assert end(done, 7, 3, commit=True, version=2) == TransactionEnding(ErrorCode.NONE, Producer(7, 4))
    assert end(done, 7, 3, commit=False, version=2).code is ErrorCode.INVALID_TXN_STATE
    assert end(done, 7, 2, commit=True, version=2).code is ErrorCode.PRODUCER_FENCED
    assert transitions.refusal(prepared, Producer(7, 4)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert transitions.refusal(done, Producer(7, 4)) is ErrorCode.NONE


@pytest.mark.parametrize("commit", [True, False])
def test_version_2_asks_again_when_it_ends_its_next_transaction_before_the_markers_of_its_last(commit: bool) -> None:
    prepared = end(OPEN, 7, 3, commit=True, version=2).transaction
    assert prepared is not None
    assert end(prepared, 7, 4, commit=commit, version=2) == TransactionEnding(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert end(prepared, 7, 2, commit=commit, version=2).code is ErrorCode.PRODUCER_FENCED
    assert end(prepared, 7, 5, commit=commit, version=2).code is ErrorCode.PRODUCER_FENCED


def test_version_2_may_abort_what_never_began_and_not_commit_it() -> None:
    aborted = end(EMPTY, 7, 3, commit=False, version=2)
    assert (aborted.code, aborted.producer) == (ErrorCode.NONE, Producer(7, 4))
    assert aborted.transaction is not None
    assert not aborted.transaction.partitions
    assert end(EMPTY, 7, 3, commit=True, version=2).code is ErrorCode.INVALID_TXN_STATE


def test_version_2_goes_over_to_another_producer_id_within_a_commit() -> None:
    last = replace(OPEN, producer_epoch=EPOCH_MAX - 1)
    need = transitions.ended(last, Producer(7, EPOCH_MAX - 1), commit=True, version=2, new_id=None, now_ms=NOW)
    assert need is Need.PRODUCER_ID
    ended = end(last, 7, EPOCH_MAX - 1, commit=True, version=2, new_id=9)
    assert ended.producer == Producer(9, 0)
    prepared = ended.transaction
    assert prepared is not None
    assert (prepared.producer_id, prepared.producer_epoch) == (7, EPOCH_MAX)
    assert transitions.refusal(prepared, Producer(9, 0)) is ErrorCode.CONCURRENT_TRANSACTIONS
    done = transitions.completed(prepared, NOW)
    assert (done.producer_id, done.producer_epoch) == (9, 0)
    again = end(done, 7, EPOCH_MAX - 1, commit=True, version=2)
    assert again == TransactionEnding(ErrorCode.NONE, Producer(9, 0))


def test_a_transaction_that_its_coordinator_aborted_fences_its_producer() -> None:
    for timed_out in (False, True):
        done = transitions.completed(transitions.fenced(OPEN, NOW, timed_out=timed_out), NOW)
        assert end(done, 7, 3, commit=True, version=0).code is ErrorCode.PRODUCER_FENCED
    late = ErrorCode.INVALID_TXN_STATE
    assert end(done, 7, 3, commit=True, version=2).code is late
    assert end(done, 7, 3, commit=False, version=2) == TransactionEnding(ErrorCode.NONE, Producer(7, 4))
    taken_over = transitions.completed(transitions.fenced(OPEN, NOW), NOW)
    assert end(taken_over, 7, 3, commit=False, version=2).code is ErrorCode.PRODUCER_FENCED
    assert transitions.refusal(done, Producer(7, 3)) is ErrorCode.PRODUCER_FENCED


def test_partitions_are_added_once_and_a_transaction_begins_with_the_first() -> None:
    begun = transitions.extended(EMPTY, frozenset({("flights", 1)}), 2, NOW)
    assert (begun.state, begun.started_ms, begun.client_version) == (TransactionState.ONGOING, NOW, 2)
    assert transitions.extended(begun, frozenset({("flights", 1)}), 2, NOW + 1) is begun
    more = transitions.extended(begun, frozenset({("flights", 2)}), 2, NOW + 1)
    assert more.started_ms == NOW
    assert more.partitions == {("flights", 1), ("flights", 2)}
