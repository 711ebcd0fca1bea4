"""The transaction machine: the transactional ids of one partition of `__transaction_state`. It does no I/O.

Events go in (requests with a ticket, the passing of time), one `Result` comes out per event; see `machines.result` for
the order of its effects. State changes in `replay` alone, live and at a load. An answer leaves once everything that the
machine contained is committed; so whoever is given a transaction whose end is prepared (`prepared`) may write markers:
the decision cannot be taken back.

Invariants: records leave in the order they were replayed; every ticket is answered exactly once; a transaction whose
end was decided for a commit is never aborted, and the other way round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mainstem.broker.machines.deadlines import Deadlines
from mainstem.broker.machines.letting_go import emptied
from mainstem.broker.machines.result import Answer, Moment, Result, Ticket, UnknownRecord
from mainstem.broker.transactions import transitions
from mainstem.broker.transactions.config import TransactionsConfig
from mainstem.broker.transactions.transaction import (
    BYTES_OF_PARTITION,
    CoordinatorEpochRecord,
    StateRecord,
    TopicPartition,
    Transaction,
    TransactionRecord,
    TransactionState,
)
from mainstem.broker.transactions.transitions import Initialization, Need, Producer, TransactionEnding
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.errors import UnsupportedVersion
from mainstem.protocol.messages.transaction_log import read_transaction_key, write_transaction_key

EXPIRY_IDS_PER_STEP = 1_000
"""Ids looked at in one event: about a millisecond."""

EXPIRY_PAUSE_MS = 10
"""Between two such events."""

_EXPIRY = ""
"""The deadline of the next look at unused ids; that of a transaction has its id, which is not empty."""


@dataclass(slots=True)
class TransactionCounts:
    """Counts of events, for the metrics."""

    committed: int = 0
    aborted: int = 0
    timed_out: int = 0
    fenced: int = 0
    ids_expired: int = 0
    refused_for_room: int = 0
    log_failures: int = 0
    records_lost: int = 0


class Prepared(NamedTuple):
    """Transactions whose end is decided for good, and the coordinator epoch to write into their markers."""

    coordinator_epoch: int
    transactions: list[Transaction]


@dataclass(slots=True)
class _Step:
    """One event on its way through the machine."""

    now: Moment
    replay: Callable[[StateRecord], None]
    result: Result = field(default_factory=Result)

    def write(self, record: StateRecord) -> None:
        self.result.records.append(record)
        self.replay(record)

    def keep(self, transaction: Transaction) -> None:
        self.write(TransactionRecord(transaction.transactional_id, transaction))

    def answer(self, ticket: Ticket, response: Any) -> None:
        self.result.answers.append(Answer(ticket, response))


class TransactionMachine:
    """One per partition. `told_of_prepared` is called when there are transactions whose markers are to be written:
    `prepared` gives them."""

    def __init__(
        self,
        config: TransactionsConfig,
        counts: TransactionCounts | None = None,
        told_of_prepared: Callable[[], None] = lambda: None,
    ) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.unknown: dict[bytes, UnknownRecord] = {}
        """Per key the record that a later version wrote, to be handed on."""
        self.coordinator_epoch = -1
        self.incomplete = False
        """Part of the log cannot be read: an id that is not known may have been there."""
        self.bytes_held = 0
        self.counts = counts or TransactionCounts()
        self._config = config
        self._told_of_prepared = told_of_prepared
        self._prepared: set[str] = set()
        self._untold: set[str] = set()
        """Those that nobody was told of yet."""
        self._deadlines: Deadlines[str] = Deadlines()
        self._to_expire: deque[str] = deque()

    # --- the log -------------------------------------------------------------------------------------

    def replay(self, record: StateRecord) -> None:
        """Apply the next record of the log."""
        if isinstance(record, CoordinatorEpochRecord):
            self.coordinator_epoch = max(self.coordinator_epoch, record.epoch)
        elif isinstance(record, UnknownRecord):
            self._replay_unknown(record)
        else:
            if self.unknown:
                self.unknown.pop(write_transaction_key(record.transactional_id), None)
            self._replace(record.transactional_id, record.transaction)

    def _replace(self, transactional_id: str, transaction: Transaction | None) -> None:
        before = self.transactions.pop(transactional_id, None)
        self.bytes_held -= 0 if before is None else before.size_bytes
        self._prepared.discard(transactional_id)
        self._untold.discard(transactional_id)
        if transaction is None:
            return
        self.transactions[transactional_id] = transaction
        self.bytes_held += transaction.size_bytes
        if transaction.state.is_prepared:
            self._prepared.add(transactional_id)
            self._untold.add(transactional_id)

    def _replay_unknown(self, record: UnknownRecord) -> None:
        """Keep a record of a later version; what was known under its key no longer holds."""
        try:
            self._replace(read_transaction_key(record.key).transactional_id, None)
        except UnsupportedVersion:
            pass
        if record.value is None:
            self.unknown.pop(record.key, None)
        else:
            self.unknown[record.key] = record

    def let_go(self) -> Iterator[None]:
        """Free the content of a machine that serves no more, a piece at a time."""
        yield from emptied(self.transactions)
        yield from emptied(self.unknown)

    def lose(self) -> None:
        """The next part of the log cannot be read."""
        self.incomplete = True

    def recovered(self, now: Moment) -> Result:
        """The whole log has been replayed. A new reign has a coordinator epoch of its own; transactions go on where
        the last reign left them."""
        step = self._step(now)
        step.write(CoordinatorEpochRecord(self.coordinator_epoch + 1))
        for transaction in self.transactions.values():
            if transaction.state is TransactionState.ONGOING:
                self._time(step, transaction)
        self._deadlines.set(_EXPIRY, now.monotonic_ms + self._config.id_expiration_check_interval_ms)
        if self._prepared:
            self._told_of_prepared()
        return self._finish(step)

    def sections(self) -> list[str | bytes | None]:
        """The contents of a snapshot, one after the other: the coordinator epoch, transactional ids, then the keys of
        unknown records."""
        return [None, *self.transactions, *self.unknown]

    def snapshot(self, section: str | bytes | None) -> Iterator[StateRecord]:
        """The records that make a section as it is now; none when it is gone."""
        if section is None:
            yield CoordinatorEpochRecord(self.coordinator_epoch)
        elif isinstance(section, bytes):
            if section in self.unknown:
                yield self.unknown[section]
        elif section in self.transactions:
            yield TransactionRecord(section, self.transactions[section])

    # --- producers -----------------------------------------------------------------------------------

    def initialize(self, ticket: Ticket, asked: Initialization, new_id: int | None, now: Moment) -> Result:
        """InitProducerId. The answer is a `Producer`, a code, or the `Need` of a new producer id."""
        step = self._step(now)
        current = self.transactions.get(asked.transactional_id)
        answer: Producer | ErrorCode | Need
        if current is None and self._is_unclear(asked.transactional_id):
            answer = ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif current is None and not self._has_room_for_id(asked.transactional_id):
            self.counts.refused_for_room += 1
            answer = ErrorCode.POLICY_VIOLATION
        else:
            found = transitions.initialized(current, asked, new_id, now.wall_ms)
            answer = self._initialized(step, found)
        step.answer(ticket, answer)
        return self._finish(step)

    def _initialized(self, step: _Step, found: Transaction | ErrorCode | Need) -> Producer | ErrorCode | Need:
        if not isinstance(found, Transaction):
            self.counts.fenced += found is ErrorCode.PRODUCER_FENCED
            return found
        if found.state.is_prepared:  # the last producer's transaction: the new one waits for its end
            self._end(step, found)
            return ErrorCode.CONCURRENT_TRANSACTIONS
        step.keep(found)
        return Producer(found.producer_id, found.producer_epoch)

    def add(
        self,
        ticket: Ticket,
        transactional_id: str,
        producer: Producer,
        partitions: frozenset[TopicPartition],
        client_version: int,
        now: Moment,
    ) -> Result:
        """AddPartitionsToTxn, AddOffsetsToTxn. The answer is a code, for all partitions together."""
        step = self._step(now)
        current = self.transactions.get(transactional_id)
        code = self._refusal(transactional_id, current, producer)
        if code is ErrorCode.NONE and current is not None:
            after = transitions.extended(current, partitions, client_version, now.wall_ms)
            added = len(after.partitions) - len(current.partitions)
            if len(after.partitions) > self._config.partitions_max or not self._has_room(added * BYTES_OF_PARTITION):
                self.counts.refused_for_room += 1
                code = ErrorCode.POLICY_VIOLATION
            elif after is not current:
                step.keep(after)
                if current.state is not TransactionState.ONGOING:
                    self._time(step, after)
        step.answer(ticket, code)
        return self._finish(step)

    def verify(
        self,
        ticket: Ticket,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        now: Moment,
    ) -> Result:
        """Whether the producer's transaction is open with these partitions in it: the answer is a code, or codes by
        partition."""
        step = self._step(now)
        current = self.transactions.get(transactional_id)
        code = self._refusal(transactional_id, current, producer)
        answer: ErrorCode | Mapping[TopicPartition, ErrorCode] = code
        if code is ErrorCode.NONE and current is not None:
            there = current.partitions if current.state is TransactionState.ONGOING else frozenset()
            answer = {each: ErrorCode.NONE if each in there else ErrorCode.TRANSACTION_ABORTABLE for each in partitions}
        step.answer(ticket, answer)
        return self._finish(step)

    def end(
        self,
        ticket: Ticket,
        transactional_id: str,
        producer: Producer,
        commit: bool,
        version: int,
        new_id: int | None,
        now: Moment,
    ) -> Result:
        """EndTxn. The answer is an `TransactionEnding`, or the `Need` of a new producer id."""
        step = self._step(now)
        current = self.transactions.get(transactional_id)
        if current is None and self._is_unclear(transactional_id):
            step.answer(ticket, TransactionEnding(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return self._finish(step)
        found = transitions.ended(current, producer, commit=commit, version=version, new_id=new_id, now_ms=now.wall_ms)
        if isinstance(found, TransactionEnding):
            self.counts.fenced += found.code is ErrorCode.PRODUCER_FENCED
            if found.transaction is not None:
                self._end(step, found.transaction)
        step.answer(ticket, found)
        return self._finish(step)

    # --- completion ----------------------------------------------------------------------------------

    def prepared(self, ticket: Ticket, everything: bool, now: Moment) -> Result:
        """The answer is `Prepared`, with the transactions that no answer had before, or with `everything`."""
        step = self._step(now)
        told = self._prepared if everything else self._untold
        found = [self.transactions[transactional_id] for transactional_id in sorted(told)]
        self._untold.clear()
        step.answer(ticket, Prepared(self.coordinator_epoch, found))
        return self._finish(step)

    def complete(self, ticket: Ticket, written: Transaction, now: Moment) -> Result:
        """All markers of a transaction are written. The answer is whether that was news."""
        step = self._step(now)
        current = self.transactions.get(written.transactional_id)
        news = current is not None and current == written
        if news:
            assert current is not None
            after = transitions.completed(current, now.wall_ms)
            commits = after.state is TransactionState.COMPLETE_COMMIT
            self.counts.committed += commits
            self.counts.aborted += not commits
            step.keep(after)
        step.answer(ticket, news)
        return self._finish(step)

    # --- tools ---------------------------------------------------------------------------------------

    def all(self, ticket: Ticket, now: Moment) -> Result:
        """The answer is a list of all transactions."""
        step = self._step(now)
        step.answer(ticket, list(self.transactions.values()))
        return self._finish(step)

    def get(self, ticket: Ticket, transactional_ids: Iterable[str], now: Moment) -> Result:
        """The answer is a list of transactions in the order asked for, None for ids that are not known."""
        step = self._step(now)
        step.answer(ticket, [self.transactions.get(transactional_id) for transactional_id in transactional_ids])
        return self._finish(step)

    # --- time ----------------------------------------------------------------------------------------

    def advance(self, now: Moment) -> Result:
        """Time has passed: abort the transactions whose time is over. An early call does no harm."""
        step = self._step(now)
        for transactional_id in self._deadlines.due(now.monotonic_ms):
            if transactional_id == _EXPIRY:
                self._expire(step)
                continue
            current = self.transactions.get(transactional_id)
            if current is not None and current.state is TransactionState.ONGOING:
                self.counts.timed_out += 1
                self._end(step, transitions.fenced(current, now.wall_ms, timed_out=True))
        return self._finish(step)

    def _expire(self, step: _Step) -> None:
        """Forget ids that nobody has used for long. While part of the log is missing nothing is forgotten: what is
        known is all that could tell a zombie from its successor."""
        if not self._to_expire and not self.incomplete:
            self._to_expire.extend(self.transactions)
        for _ in range(min(EXPIRY_IDS_PER_STEP, len(self._to_expire))):
            transactional_id = self._to_expire.popleft()
            current = self.transactions.get(transactional_id)
            if current is None or not current.is_over:
                continue
            if step.now.wall_ms - current.updated_ms >= self._config.id_expiration_ms:
                self.counts.ids_expired += 1
                step.write(TransactionRecord(transactional_id, None))
        pause_ms = EXPIRY_PAUSE_MS if self._to_expire else self._config.id_expiration_check_interval_ms
        self._deadlines.set(_EXPIRY, step.now.monotonic_ms + pause_ms)

    # --- internals -----------------------------------------------------------------------------------

    def _step(self, now: Moment) -> _Step:
        return _Step(now, self.replay)

    def _finish(self, step: _Step) -> Result:
        step.result.wake_at_ms = self._deadlines.next_deadline_ms()
        return step.result

    def _end(self, step: _Step, prepared: Transaction) -> None:
        step.keep(prepared)
        self._deadlines.cancel(prepared.transactional_id)
        self._told_of_prepared()

    def _time(self, step: _Step, transaction: Transaction) -> None:
        """Abort an open transaction when its time is over, by the wall clock, which every coordinator has."""
        left_ms = transaction.started_ms + transaction.timeout_ms - step.now.wall_ms
        wait_ms = min(max(left_ms, 0), transaction.timeout_ms)
        self._deadlines.set(transaction.transactional_id, step.now.monotonic_ms + wait_ms)

    def _refusal(self, transactional_id: str, current: Transaction | None, producer: Producer) -> ErrorCode:
        if current is None and self._is_unclear(transactional_id):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        code = transitions.refusal(current, producer)
        self.counts.fenced += code is ErrorCode.PRODUCER_FENCED
        return code

    def _is_unclear(self, transactional_id: str) -> bool:
        """Whether an id that is not known may have been in the part of the log that cannot be read, or was written by a
        later version."""
        return self.incomplete or bool(self.unknown and write_transaction_key(transactional_id) in self.unknown)

    def _has_room_for_id(self, transactional_id: str) -> bool:
        return len(self.transactions) < self._config.ids_max and self._has_room(2 * len(transactional_id))

    def _has_room(self, more_bytes: int) -> bool:
        return self.bytes_held + more_bytes <= self._config.bytes_max
