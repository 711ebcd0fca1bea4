"""How producers and their coordinator change a transactional id: the present state and a request in, the next state
or a refusal out.

                           init                                init
               (nothing) ────────▶ EMPTY ◀──────────── COMPLETE_COMMIT, COMPLETE_ABORT
                                     │ add                │ add           ▲
                                     └───────▶ ONGOING ◀──┘               │ all markers are written
                                                  │ end, timeout, init    │
                                                  └───▶ PREPARE_COMMIT, PREPARE_ABORT

A producer of transaction version 2 gets the next epoch with each end, one of an older version with each init. While the
end is being written (`PREPARE_…`), nobody changes anything: clients are told to try again.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from mainstem.broker.transactions.transaction import (
    EPOCH_MAX,
    NO_EPOCH,
    NO_PRODUCER_ID,
    TopicPartition,
    Transaction,
    TransactionState,
)
from mainstem.protocol.error_codes import ErrorCode

TRANSACTION_VERSION_2 = 2


class Need(enum.Enum):
    PRODUCER_ID = "a new producer id"
    """The request is to be made again with one."""


class Producer(NamedTuple):
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class Initialization(NamedTuple):
    """InitProducerId. `expected`: the producer that the client thinks it is (KIP-360); none: it has just begun."""

    transactional_id: str
    timeout_ms: int
    expected: Producer = Producer()


class TransactionEnding(NamedTuple):
    """The outcome of EndTxn. `transaction`: as it is from now on; None: as it was."""

    code: ErrorCode
    producer: Producer = Producer()
    transaction: Transaction | None = None


def initialized(
    current: Transaction | None, asked: Initialization, new_id: int | None, now_ms: int
) -> Transaction | ErrorCode | Need:
    """The id after InitProducerId; a transaction that was open is being aborted by it. `new_id`: a producer id that is
    nobody's yet."""
    if current is None:
        if new_id is None:
            return Need.PRODUCER_ID
        return Transaction(asked.transactional_id, TransactionState.EMPTY, new_id, 0, asked.timeout_ms, now_ms)
    if not _may_be(current, asked.expected):
        return ErrorCode.PRODUCER_FENCED
    if current.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    continues = asked.expected.producer_id != NO_PRODUCER_ID
    epoch = asked.expected.producer_epoch
    if current.state is TransactionState.ONGOING:
        return ErrorCode.PRODUCER_FENCED if continues and epoch != current.producer_epoch else fenced(current, now_ms)
    if current.epochs_used_up and (not continues or epoch == current.producer_epoch):
        if new_id is None:
            return Need.PRODUCER_ID
        return _emptied(current, asked, now_ms, new_id, 0, epoch if continues else NO_EPOCH, current.producer_id)
    if not continues or epoch == current.producer_epoch:
        last = epoch if continues else NO_EPOCH
        return _emptied(
            current,
            asked,
            now_ms,
            current.producer_id,
            current.producer_epoch + 1,
            last,
            current.previous_producer_id,
        )
    if epoch == current.last_epoch:  # it has lost the answer to the same request
        return _emptied(
            current,
            asked,
            now_ms,
            current.producer_id,
            current.producer_epoch,
            current.last_epoch,
            current.previous_producer_id,
        )
    return ErrorCode.PRODUCER_FENCED


def _may_be(current: Transaction, expected: Producer) -> bool:
    """Whether a client that says who it is may be this id's producer, as far as the producer id tells."""
    if expected.producer_id in (NO_PRODUCER_ID, current.producer_id):
        return True
    used_up = expected.producer_epoch >= EPOCH_MAX - 1
    return expected.producer_id == current.previous_producer_id and used_up


def _emptied(
    current: Transaction,
    asked: Initialization,
    now_ms: int,
    producer_id: int,
    epoch: int,
    last_epoch: int,
    previous_id: int,
) -> Transaction:
    return current.changed(
        now_ms,
        TransactionState.EMPTY,
        producer_id=producer_id,
        producer_epoch=epoch,
        last_epoch=last_epoch,
        previous_producer_id=previous_id,
        timeout_ms=asked.timeout_ms,
        started_ms=-1,
    )


def fenced(current: Transaction, now_ms: int, *, timed_out: bool = False) -> Transaction:
    """An open transaction as its coordinator aborts it: under the next epoch, which nobody has, so that its producer
    writes nothing behind the markers. A producer that only took too long may go on: when it aborts, as it must, it
    gets that epoch."""
    assert current.state is TransactionState.ONGOING, current
    epoch = min(current.producer_epoch + 1, EPOCH_MAX)
    last_epoch = current.producer_epoch if timed_out and epoch < EPOCH_MAX else NO_EPOCH
    return current.changed(now_ms, TransactionState.PREPARE_ABORT, producer_epoch=epoch, last_epoch=last_epoch)


def refusal(current: Transaction | None, producer: Producer) -> ErrorCode:
    """Why a producer may not do anything with the id now, if it may not."""
    if current is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    is_next = current.next_producer_id != NO_PRODUCER_ID and producer == Producer(current.next_producer_id, 0)
    if current.state.is_prepared and is_next:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if producer.producer_id != current.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer.producer_epoch != current.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.CONCURRENT_TRANSACTIONS if current.state.is_prepared else ErrorCode.NONE


def extended(
    current: Transaction, partitions: frozenset[TopicPartition], client_version: int, now_ms: int
) -> Transaction:
    """The transaction with these partitions in it; it begins with the first."""
    if current.state is TransactionState.ONGOING:
        if partitions <= current.partitions:
            return current
        return current.changed(now_ms, TransactionState.ONGOING, partitions=current.partitions | partitions)
    return current.changed(
        now_ms, TransactionState.ONGOING, partitions=partitions, started_ms=now_ms, client_version=client_version
    )


def ended(
    current: Transaction | None, producer: Producer, *, commit: bool, version: int, new_id: int | None, now_ms: int
) -> TransactionEnding | Need:
    """EndTxn of a client that speaks a transaction version."""
    if current is None:
        return TransactionEnding(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if version < TRANSACTION_VERSION_2:
        return _ended_1(current, producer, commit=commit, now_ms=now_ms)
    return _ended_2(current, producer, commit=commit, new_id=new_id, now_ms=now_ms)


def _ended_1(current: Transaction, producer: Producer, *, commit: bool, now_ms: int) -> TransactionEnding:
    if producer.producer_id != current.producer_id:
        return TransactionEnding(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if producer.producer_epoch != current.producer_epoch:
        return TransactionEnding(ErrorCode.PRODUCER_FENCED)
    if current.state is TransactionState.ONGOING:
        state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        return TransactionEnding(ErrorCode.NONE, producer, current.changed(now_ms, state))
    return TransactionEnding(_code_of_repeated(current.state, commit=commit), producer)


def _ended_2(
    current: Transaction, producer: Producer, *, commit: bool, new_id: int | None, now_ms: int
) -> TransactionEnding | Need:
    epoch = producer.producer_epoch
    over_the_end = (
        producer == Producer(current.previous_producer_id, EPOCH_MAX - 1)
        and current.producer_epoch == 0
        and not current.state.is_prepared
    )
    if producer.producer_id != current.producer_id and not over_the_end:
        is_next = producer.producer_id == current.next_producer_id != NO_PRODUCER_ID
        return TransactionEnding(
            ErrorCode.CONCURRENT_TRANSACTIONS if is_next else ErrorCode.INVALID_PRODUCER_ID_MAPPING
        )
    again = over_the_end or epoch == current.last_epoch == current.producer_epoch - 1
    present = epoch == current.producer_epoch and not over_the_end
    now = Producer(current.producer_id, current.producer_epoch)
    if current.state.is_prepared:
        if present:  # the end of the next transaction, which its producer gives up before it has written anything
            return TransactionEnding(ErrorCode.CONCURRENT_TRANSACTIONS)
        code = _code_of_repeated(current.state, commit=commit) if again else ErrorCode.PRODUCER_FENCED
        return TransactionEnding(code)
    if current.state is TransactionState.ONGOING and present:
        return _prepared(current, commit=commit, new_id=new_id, now_ms=now_ms)
    if current.is_over and present:  # nothing was added: an abort still gives the next epoch
        if commit:
            return TransactionEnding(ErrorCode.INVALID_TXN_STATE)
        begun = current.changed(now_ms, current.state, started_ms=now_ms, partitions=frozenset())
        return _prepared(begun, commit=False, new_id=new_id, now_ms=now_ms)
    if again and current.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
        return TransactionEnding(_code_of_repeated(current.state, commit=commit), now)
    return TransactionEnding(ErrorCode.PRODUCER_FENCED)


def _prepared(current: Transaction, *, commit: bool, new_id: int | None, now_ms: int) -> TransactionEnding | Need:
    """The end is decided, with the next epoch in its markers. Behind the last epoch the next transaction has
    another producer id."""
    next_id = NO_PRODUCER_ID
    if current.epochs_used_up:
        if new_id is None:
            return Need.PRODUCER_ID
        next_id = new_id
    epoch = min(current.producer_epoch + 1, EPOCH_MAX)
    prepared = current.changed(
        now_ms,
        TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
        producer_epoch=epoch,
        last_epoch=current.producer_epoch,
        next_producer_id=next_id,
        client_version=TRANSACTION_VERSION_2,
    )
    following = Producer(next_id, 0) if next_id != NO_PRODUCER_ID else Producer(prepared.producer_id, epoch)
    return TransactionEnding(ErrorCode.NONE, following, prepared)


def _code_of_repeated(state: TransactionState, *, commit: bool) -> ErrorCode:
    """The answer to an EndTxn of which the state says that it came before, or that it is no longer possible."""
    same = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
    if not commit:
        same = (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)
    if state not in same:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.CONCURRENT_TRANSACTIONS if state.is_prepared else ErrorCode.NONE


def completed(current: Transaction, now_ms: int) -> Transaction:
    """All markers are written."""
    assert current.state.is_prepared, current
    commits = current.state is TransactionState.PREPARE_COMMIT
    state = TransactionState.COMPLETE_COMMIT if commits else TransactionState.COMPLETE_ABORT
    if current.next_producer_id == NO_PRODUCER_ID:
        return current.changed(now_ms, state, partitions=frozenset())
    return current.changed(
        now_ms,
        state,
        partitions=frozenset(),
        producer_id=current.next_producer_id,
        producer_epoch=0,
        previous_producer_id=current.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )
