"""The truth about transactions, as an all-knowing observer writes it down (E).

The observer knows which batches and offsets belong to which transaction, sees every row that is committed to the log of
any queue, and hears what producers and readers are told. A transaction has one outcome. Markers in queues, offsets that
a consumer group shows, and answers of EndTxn all say what it is; the first to say so is believed, and whoever says
anything else after that is wrong. Besides:

- only a transaction whose producer asked for that is committed;
- a producer's id and epoch are given to one producer, and nothing that an older one begins to send after its successor
  was told of its own epoch gets into a log;
- between two transactions of a producer there is a marker in each of their queues, and it says where its own began;
- the last stable offset that anybody is told is not behind the first offset of a transaction that is still open;
- readers of committed transactions are given the batches of committed ones, all of them, and no others, once they leave
  out what the answer says was aborted;
- no transaction is open long after its time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy
from tests.simulation.cluster.history import History, QueueHistory
from tests.simulation.oracle import Violation, require
from tests.simulation.whole.ledger import NOTHING, Place

from mainstem.kernel.batch_header import CONTROL_BIT, TRANSACTIONAL_BIT
from mainstem.model import Buffer
from mainstem.protocol.messages.fetch import AbortedTransaction
from mainstem.protocol.records import ControlType, StoredBatch, read_control, read_records
from mainstem.storage.journal.encoding.transaction_rows import ended_transaction

BEHIND_ALL = 1 << 62
"""The first unstable offset of a queue in which nothing is open."""


class ProducerName(NamedTuple):
    producer_id: int
    epoch: int


@dataclass(eq=False)
class Transaction:
    """One, from before its first request on."""

    number: int
    transactional_id: str
    producer: ProducerName
    timeout_ms: int
    wants_commit: bool = False
    """Its producer has asked for that."""
    committed: bool | None = None
    where: str = ""
    """The first to say so."""
    offsets: dict[Place, int] = field(default_factory=dict)
    """Those that are acknowledged."""

    def __str__(self) -> str:
        producer_id, epoch = self.producer
        return f"transaction {self.number} of {self.transactional_id} (producer {producer_id}, epoch {epoch})"


class OpenInQueue(NamedTuple):
    transaction: Transaction
    first_offset: int
    since: float


@dataclass
class QueueTransactions:
    """Of one queue, as its log has them."""

    open: dict[int, OpenInQueue] = field(default_factory=dict)
    """By producer id."""
    batches: dict[int, Transaction] = field(default_factory=dict)
    """By base offset."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """(producer id, first offset, offset of the marker)."""

    @property
    def first_unstable(self) -> int:
        return min((one.first_offset for one in self.open.values()), default=BEHIND_ALL)


def outcome(committed: bool) -> str:
    return "committed" if committed else "aborted"


class Atomicity:
    """Raises `Violation`, of E, where anything is not as it must be."""

    def __init__(self, history: History, seconds: Callable[[], float]) -> None:
        """`seconds`: the simulated time."""
        self.queues: dict[int, QueueTransactions] = {}
        self.markers = {True: 0, False: 0}
        """How many ended a transaction with batches, committed and aborted ones."""
        self.left_out = 0
        """Batches of aborted transactions that readers of committed ones were told to leave out."""
        self.offsets_shown = 0
        self.late = 0
        """Batches that zombies sent."""
        self._history = history
        self._count = 0
        self._seconds = seconds
        self._sent: dict[int, Transaction] = {}
        """By the CRC of a batch."""
        self._late: dict[int, ProducerName] = {}
        """Batches that were first sent when this successor of their producer had been told of its epoch."""
        self._newest: dict[str, ProducerName] = {}
        self._given: dict[ProducerName, object] = {}
        """Which producer has an id and epoch."""
        self._offsets: dict[Place, dict[int, Transaction]] = {}
        self._promised: dict[Place, int] = {}
        """The newest offset of a transaction that its producer was told is committed."""
        self._shown: dict[Place, int] = {}
        history.followers.append(self.logged)

    # --- from producers -----------------------------------------------------------------------------------

    def given(self, transactional_id: str, name: ProducerName, holder: object) -> bool:
        """`holder` is told its producer id and epoch. Whether the id is new."""
        before = self._given.setdefault(name, holder)
        require(
            before is holder,
            f"producer {name.producer_id} with epoch {name.epoch} of {transactional_id} is given to two producers: its "
            "epoch was not raised",
            "E",
        )
        newest = self._newest.get(transactional_id)
        if newest is None or newest.producer_id != name.producer_id or name.epoch > newest.epoch:
            self._newest[transactional_id] = name
        return newest is None or newest.producer_id != name.producer_id

    def begin(self, transactional_id: str, producer: ProducerName, timeout_ms: int) -> Transaction:
        self._count += 1
        return Transaction(self._count, transactional_id, producer, timeout_ms)

    def sending(self, transaction: Transaction, crc: int) -> None:
        """A batch of a transaction is about to be sent, perhaps again."""
        newest = self._newest[transaction.transactional_id]
        if crc not in self._sent and newest > transaction.producer:
            self._late[crc] = newest
            self.late += 1
        self._sent[crc] = transaction

    def committing(self, transaction: Transaction, place: Place, offset: int) -> None:
        """An offset of a transaction is about to be sent, perhaps again."""
        self._offsets.setdefault(place, {})[offset] = transaction

    def told(self, transaction: Transaction, *, committed: bool) -> None:
        """EndTxn was answered."""
        self.decide(transaction, committed, "by the answer to its producer")
        if committed:
            for place, offset in transaction.offsets.items():
                self._promised[place] = max(offset, self._promised.get(place, NOTHING))

    def decide(self, transaction: Transaction, committed: bool, where: str) -> None:
        if transaction.committed is None:
            require(
                transaction.wants_commit or not committed,
                f"{transaction} is committed {where}; its producer never asked for that",
                "E",
            )
            transaction.committed, transaction.where = committed, where
        require(
            transaction.committed == committed,
            f"{transaction} is half visible: {outcome(committed)} {where}, {outcome(not committed)} "
            f"{transaction.where}",
            "E",
        )

    # --- from the logs ------------------------------------------------------------------------------------

    def queue(self, queue_id: int) -> QueueTransactions:
        found = self.queues.get(queue_id)
        if found is None:
            found = self.queues[queue_id] = QueueTransactions()
        return found

    def logged(self, what: str, queue: QueueHistory, row: numpy.void) -> None:
        """The next row of a queue's log."""
        attributes = int(row["attributes"])
        if not attributes & TRANSACTIONAL_BIT:
            return
        if attributes & CONTROL_BIT:
            self._ended(what, queue, row)
        else:
            self._begun(what, queue, row)

    def _begun(self, what: str, queue: QueueHistory, row: numpy.void) -> None:
        crc, base_offset, producer_id = int(row["crc"]), int(row["base_offset"]), int(row["producer_id"])
        transaction, of_queue = self._sent[crc], self.queue(queue.queue_id)
        require(
            crc not in self._late,
            f"{what}: a batch of {transaction} at {base_offset}, which it sent when its successor had epoch "
            f"{self._late.get(crc, transaction.producer).epoch}: a zombie was not fenced",
            "E",
        )
        known = of_queue.open.setdefault(producer_id, OpenInQueue(transaction, base_offset, self._seconds()))
        require(
            known.transaction is transaction,
            f"{what}: no marker stands between {known.transaction} and {transaction} at {base_offset}",
            "E",
        )
        of_queue.batches[base_offset] = transaction

    def _ended(self, what: str, queue: QueueHistory, row: numpy.void) -> None:
        offset, producer_id = int(row["base_offset"]), int(row["producer_id"])
        how = ended_transaction(offset, int(row["attributes"]), int(row["base_sequence"]), int(row["record_count"]))
        of_queue = self.queue(queue.queue_id)
        known = of_queue.open.pop(producer_id, None)
        first = known.first_offset if known is not None else -1
        require(
            how.first_offset == first,
            f"{what}: the marker at {offset} says that its transaction began at {how.first_offset}, it did at {first}",
            "E",
        )
        unstable = min(of_queue.first_unstable, offset + 1)
        require(
            how.last_stable_offset <= unstable,
            f"{what}: the marker at {offset} moves the last stable offset to {how.last_stable_offset}, past a "
            f"transaction that is open since {unstable}",
            "E",
        )
        if known is not None:
            self.markers[how.committed] += 1
            if not how.committed:
                of_queue.aborted.append((producer_id, first, offset))
            self.decide(known.transaction, how.committed, f"by the marker at {offset} of queue {queue.queue_id:#x}")

    # --- from readers -------------------------------------------------------------------------------------

    def check_stable(self, what: str, queue_id: int, last_stable_offset: int) -> None:
        """Somebody was told this last stable offset. A transaction that is open by now was open then, or was not there.
        One that begins before the log's start begins there for readers."""
        unstable = max(self.queue(queue_id).first_unstable, self._history.queue(queue_id).log_start)
        require(
            last_stable_offset <= unstable,
            f"{what}: the last stable offset {last_stable_offset} is past a transaction that is open since {unstable}",
            "E",
        )

    def check_committed(
        self, what: str, queue_id: int, batches: Sequence[Buffer], told: Iterable[AbortedTransaction]
    ) -> None:
        """A reader of committed transactions got these batches, and was told of these aborted transactions: it leaves
        out what Kafka's clients leave out."""
        of_queue = self.queue(queue_id)
        waiting = sorted(((one.first_offset, one.producer_id) for one in told), reverse=True)
        aborted: set[int] = set()
        for batch in map(StoredBatch.parse, batches):
            header = batch.header
            while waiting and waiting[-1][0] <= header.last_offset:
                aborted.add(waiting.pop()[1])
            if header.attributes & CONTROL_BIT:
                if any(read_control(record).type is ControlType.ABORT for record in read_records(batch)):
                    aborted.discard(header.producer_id)
            elif header.attributes & TRANSACTIONAL_BIT:
                transaction = of_queue.batches[header.base_offset]
                shown = header.producer_id not in aborted
                if transaction.committed is None:
                    raise Violation(
                        f"{what}: a reader of committed transactions gets {header.base_offset} of {transaction}, which "
                        "is open",
                        "E",
                    )
                require(
                    shown == transaction.committed,
                    f"{what}: a reader of committed transactions is {'shown' if shown else 'not shown'} "
                    f"{header.base_offset} of {transaction}, which is {outcome(transaction.committed)} "
                    f"{transaction.where}",
                    "E",
                )
                self.left_out += not shown

    def floor(self, place: Place) -> int:
        """An offset that whoever asks for stable ones from now on must be told, or a later one."""
        return self._promised.get(place, NOTHING)

    def check_offset(self, what: str, place: Place, offset: int, floor: int) -> None:
        """Somebody was told that this offset is committed; `floor`: what had to be by then."""
        group, _topic_id, partition = place
        what = f"{what}: offset {offset} of {group} in partition {partition}"
        require(offset >= floor, f"{what}: {floor} was committed in a transaction", "E")
        if offset == NOTHING:
            return
        self.offsets_shown += 1
        before = self._shown.get(place, NOTHING)
        require(offset >= before, f"{what} went back from {before}", "E")
        self._shown[place] = offset
        transaction = self._offsets.get(place, {}).get(offset)
        if transaction is None:
            raise Violation(f"{what}: no transaction has it", "E")
        self.decide(transaction, True, f"by offset {offset} of {group}")

    def places(self) -> list[Place]:
        """All in which a transaction has tried to commit an offset."""
        return list(self._offsets)

    def newest_committed(self, place: Place) -> int:
        """The last offset there of a transaction that is known to be committed."""
        found = (
            offset for offset, one in self._offsets.get(place, {}).items() if one.committed and place in one.offsets
        )
        return max(found, default=NOTHING)

    # --- at the end ---------------------------------------------------------------------------------------

    def open_in(self, queue_ids: Iterable[int]) -> list[tuple[int, OpenInQueue]]:
        return [(queue_id, one) for queue_id in queue_ids for one in self.queue(queue_id).open.values()]

    def check_nothing_hangs(self, queue_ids: Iterable[int], bound_seconds: float) -> None:
        """Nothing is open past its time and a bound."""
        for queue_id, (transaction, first_offset, since) in self.open_in(queue_ids):
            lasts, may = self._seconds() - since, transaction.timeout_ms / 1000 + bound_seconds
            raise Violation(
                f"queue {queue_id:#x}: {transaction} hangs: it is open at {first_offset} for {lasts:.1f} s of {may:.1f}"
                + (
                    f", and is {outcome(transaction.committed)} {transaction.where}"
                    if transaction.committed is not None
                    else ""
                ),
                "E",
            )
