"""One transactional id: its producer, and its transaction that is open, ending or over."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import NamedTuple

from mainstem.broker.machines.result import UnknownRecord

NO_PRODUCER_ID = -1
NO_EPOCH = -1

EPOCH_MAX = 2**15 - 1
"""No producer gets it: it fences the producer that has the one before."""

TopicPartition = tuple[str, int]

BYTES_OF_ID = 400
"""Memory that an id takes besides its name."""
BYTES_OF_PARTITION = 120
"""Memory that a partition in an open transaction takes."""


class TransactionState(enum.IntEnum):
    """By Kafka's numbers, in the order of a transaction's life."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """Its name as Kafka's tools tell it."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """The end is decided, and markers are to be written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


STATES_BY_TITLE = {state.title: state for state in TransactionState}


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transactional id at one moment; every change makes another."""

    transactional_id: str
    state: TransactionState
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    updated_ms: int
    """Wall time, as all times here."""
    started_ms: int = -1
    partitions: frozenset[TopicPartition] = frozenset()
    """The places of its batches and offsets, those to come as well; none once all markers are written."""
    last_epoch: int = NO_EPOCH
    """The epoch before the last bump, if its holder asked for that bump."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the last change of it."""
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id from the end of this transaction on, where the epochs of the present one are used up."""
    client_version: int = 0
    """The transaction version that the client spoke."""

    @property
    def epochs_used_up(self) -> bool:
        return self.producer_epoch >= EPOCH_MAX - 1

    @property
    def is_over(self) -> bool:
        """Nothing is open, and nothing is left to be written."""
        return self.state in (
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        )

    @property
    def size_bytes(self) -> int:
        """The memory it takes, about."""
        return BYTES_OF_ID + 2 * len(self.transactional_id) + BYTES_OF_PARTITION * len(self.partitions)

    def changed(self, now_ms: int, state: TransactionState, **fields: object) -> Transaction:
        return replace(self, state=state, updated_ms=now_ms, **fields)  # type: ignore[arg-type]


class TransactionRecord(NamedTuple):
    """A transactional id; without a transaction: the id is forgotten."""

    transactional_id: str
    transaction: Transaction | None


class CoordinatorEpochRecord(NamedTuple):
    """The coordinator epoch of the reign that begins here, greater than that of every reign before."""

    epoch: int


StateRecord = TransactionRecord | CoordinatorEpochRecord | UnknownRecord
