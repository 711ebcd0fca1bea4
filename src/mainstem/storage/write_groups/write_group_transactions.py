"""The transactions of a write group's queues: which are open, where the oldest of each queue begins, and how the latest
ones ended.

Two layers, as for producers. The committed one changes only when a block is applied (`applied`), the same way on every
replica, live and at recovery. On the leader lies above it what was appended and is not applied (`appended`): a
transaction that has begun there, or whose marker is there. Batches are judged by the upper layer (`judge`), and readers
by the lower one: the last stable offset passes a transaction when its marker is applied.

A cell of the queue table has where the oldest open transaction of a queue begins, of either layer; its other
transactions are kept here, in the order in which they began. Queues without any cost nothing.

The first batch of a transaction in a queue waits until the coordinator has confirmed that the producer has a
transaction, of which the queue is part (KIP-890). `judge` notes it in `asked` and answers that it is not known yet; who
asks the coordinator says so by `verified`, and appends the batch again within the same turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import numpy

from mainstem.kernel import NO_SLOT, QueueTable, Verdict
from mainstem.kernel.batch_header import CONTROL_BIT
from mainstem.model import Buffer, topic_number_of
from mainstem.storage.errors import FormatError
from mainstem.storage.journal.encoding.format import DIRECTORY_ROW_BYTES, DIRECTORY_STRUCT
from mainstem.storage.journal.encoding.transaction_rows import ended_transaction
from mainstem.storage.write_groups.aborted_index import AbortedIndex, UnsplitAborted

OPEN_MAX = 100_000
"""Open transactions of a write group's queues, before it takes no new ones: some 30 MB."""

COORDINATORS_MAX = 100_000
"""Producers of queues of whose coordinators the newest epoch is remembered; the ones that ended a transaction longest
ago are forgotten. An epoch matters for as long as a deposed coordinator's marker may be on its way."""

Asked = tuple[int, int, int, int]
"""Write group, queue id, producer id, producer epoch."""

ROW_CELLS = 7
"""Of a row of an image: kind, queue id, producer id, and four numbers that depend on the kind."""
ROW_BYTES = 8 * ROW_CELLS
OPEN, ABORTED, COORDINATOR, AS_OF = range(4)


class OpenTransaction(NamedTuple):
    first_offset: int
    producer_epoch: int
    since_ms: int = -1


class _Ahead(NamedTuple):
    """The newest of one producer's transactions in a queue, of what was appended and is not applied."""

    open: OpenTransaction | None
    """None: its marker was appended."""
    block_index: int


class WriteGroupTransactions:
    """Implements the kernel's `Transactions` for one write group."""

    def __init__(self, group: int, table: QueueTable) -> None:
        self._group = group
        self._table = table
        self._open: dict[int, dict[int, OpenTransaction]] = {}
        """By queue and producer; those of a queue in the order in which they began."""
        self._open_count = 0
        self._ahead: dict[int, dict[int, _Ahead]] = {}
        self._coordinators: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._verified: dict[tuple[int, int], int] = {}
        self._verifying: set[tuple[int, int]] = set()
        """The coordinator is being asked, and no marker has come since."""
        self.met_any = False
        """Whether a transaction has ever ended in a queue of the write group."""
        self.aborted = AbortedIndex()
        self.as_of = 0
        """The block up to which what is known here may run ahead of what is applied, as it came with a snapshot: the
        last stable offsets of queues are right when that block is applied."""
        self.asked: list[Asked] = []
        """Batches that were answered `COLD_PRODUCER` by `judge`; the write groups of a node share one list."""
        self.enabled: Callable[[], bool] = lambda: True
        """Whether the cluster's feature level has transactions."""

    # --- the leader ---------------------------------------------------------------------------------------

    def judge(self, queue_id: int, producer_id: int, producer_epoch: int, transactional: bool) -> int:
        """The verdict on a producer's next batch, as far as transactions go."""
        known = self.open_of(queue_id, producer_id)
        if known is not None:
            if not transactional:
                return Verdict.INVALID_TXN_STATE
            # an older epoch is refused with the sequence; for a newer one the marker of the last is on its way
            return Verdict.OK if producer_epoch <= known.producer_epoch else Verdict.STORAGE_BUSY
        if not transactional or self._verified.get((queue_id, producer_id)) == producer_epoch:
            return Verdict.OK
        if not self.enabled():
            return Verdict.INVALID_TXN_STATE
        if self._open_count >= OPEN_MAX or self.aborted.is_full:
            return Verdict.STORAGE_BUSY
        self.asked.append((self._group, queue_id, producer_id, producer_epoch))
        return Verdict.COLD_PRODUCER

    def verifying(self, queue_id: int, producer_id: int) -> None:
        """The coordinator is about to be asked for a producer's transaction in a queue."""
        self._verifying.add((queue_id, producer_id))

    def void_verification(self, queue_id: int, producer_id: int) -> None:
        """Let the coordinator's answer confirm nothing of a producer's transaction in a queue: it refuses, or a marker
        has ended the transaction since it was asked."""
        self._verifying.discard((queue_id, producer_id))

    def verified(self, queue_id: int, producer_id: int, producer_epoch: int) -> None:
        """The coordinator has confirmed the producer's transaction in a queue, until `verifications_used`. Nothing is
        confirmed if a marker has come since it was asked, or another node has led: the batch then asks again."""
        if (queue_id, producer_id) in self._verifying:
            self._verifying.discard((queue_id, producer_id))
            self._verified[queue_id, producer_id] = producer_epoch

    def verifications_used(self) -> None:
        """Forget confirmations: they are as good as the turn in which they came."""
        self._verified.clear()

    def appended(
        self,
        queue_id: int,
        producer_id: int,
        producer_epoch: int,
        base_offset: int,
        block_index: int,
        is_marker: bool,
    ) -> None:
        """A batch of a transaction, or a marker, went into a block."""
        if is_marker:
            begun = None
        elif self.open_of(queue_id, producer_id) is not None:
            return
        else:
            begun = OpenTransaction(base_offset, producer_epoch)
        of_queue = self._ahead.setdefault(queue_id, {})
        of_queue.pop(producer_id, None)  # so that the queue's are in order
        of_queue[producer_id] = _Ahead(begun, block_index)
        if begun is not None:
            self._settle_cell(queue_id)

    def open_of(self, queue_id: int, producer_id: int) -> OpenTransaction | None:
        """A producer's open transaction in a queue, as of all that was appended."""
        ahead = self._ahead.get(queue_id)
        if ahead is not None and producer_id in ahead:
            return ahead[producer_id].open
        of_queue = self._open.get(queue_id)
        return None if of_queue is None else of_queue.get(producer_id)

    def is_ahead(self, queue_id: int, producer_id: int) -> bool:
        """Whether something of a producer's transactions in a queue was appended, and is not applied yet."""
        return producer_id in self._ahead.get(queue_id, ())

    def stable_without(self, queue_id: int, producer_id: int, end: int) -> int:
        """A bound for the last stable offset of a queue once a producer's transaction has ended right before `end`."""
        for first, other in self._firsts(queue_id):
            if other != producer_id:
                return min(first, end)
        return end

    def _firsts(self, queue_id: int) -> Iterable[tuple[int, int]]:
        """(first offset, producer) of the open transactions of a queue in both layers, the oldest first."""
        for producer_id, known in self._open.get(queue_id, {}).items():
            yield known.first_offset, producer_id
        for producer_id, ahead in self._ahead.get(queue_id, {}).items():
            if ahead.open is not None:
                yield ahead.open.first_offset, producer_id

    def discard_ahead(self) -> None:
        """Forget everything appended and not applied."""
        queues = list(self._ahead)
        self._ahead.clear()
        self._verified.clear()
        self._verifying.clear()
        for queue_id in queues:
            self._settle_cell(queue_id)

    # --- what is committed --------------------------------------------------------------------------------

    def applied(self, directory: Buffer, marked: Sequence[int], block_index: int, created_ms: int) -> list[int]:
        """Take in the rows of transactions of an applied block, by their numbers. Returns the queues in which one has
        ended."""
        ended: list[int] = []
        for number in marked:
            row = DIRECTORY_STRUCT.unpack_from(directory, number * DIRECTORY_ROW_BYTES)
            queue_id, base_offset, _, producer_id, _, _, _, count, sequence, epoch, attributes = row[:11]
            if attributes & CONTROL_BIT:
                self._ended(queue_id, producer_id, base_offset, attributes, sequence, count, block_index)
                ended.append(queue_id)
            else:
                self._begun(queue_id, producer_id, OpenTransaction(base_offset, epoch, created_ms))
            ahead = self._ahead.get(queue_id)
            if ahead is not None and producer_id in ahead and ahead[producer_id].block_index <= block_index:
                del ahead[producer_id]
                if not ahead:
                    del self._ahead[queue_id]
            self._settle_cell(queue_id)
        return ended

    def _begun(self, queue_id: int, producer_id: int, begun: OpenTransaction) -> None:
        of_queue = self._open.setdefault(queue_id, {})
        known = of_queue.get(producer_id)
        if known is None:
            self._open_count += 1
            of_queue[producer_id] = begun

    def _ended(
        self,
        queue_id: int,
        producer_id: int,
        offset: int,
        attributes: int,
        base_sequence: int,
        record_count: int,
        block_index: int,
    ) -> None:
        of_queue = self._open.get(queue_id, {})
        known = of_queue.get(producer_id)
        if known is not None and known.first_offset < offset:  # else it began later: a snapshot told of it
            del of_queue[producer_id]
            self._open_count -= 1
            if not of_queue:
                del self._open[queue_id]
        how = ended_transaction(offset, attributes, base_sequence, record_count)
        if not how.committed and how.first_offset >= 0:
            self.aborted.add(
                queue_id, UnsplitAborted(producer_id, how.first_offset, offset, how.last_stable_offset, block_index)
            )
        self._remember_coordinator(queue_id, producer_id, how.coordinator_epoch)

    def _remember_coordinator(self, queue_id: int, producer_id: int, epoch: int) -> None:
        self.met_any = True
        self._coordinators[queue_id, producer_id] = epoch
        self._coordinators.move_to_end((queue_id, producer_id))
        if len(self._coordinators) > COORDINATORS_MAX:
            self._coordinators.popitem(last=False)

    def _settle_cell(self, queue_id: int) -> None:
        slot = self._table.find(queue_id)
        if slot != NO_SLOT:
            self._table.set_first_unstable(slot, next((first for first, _ in self._firsts(queue_id)), -1))

    def take_over(self, coordinators: Iterable[tuple[int, int, int]]) -> None:
        """Remember the coordinators of producers of queues that come from another write group."""
        for queue_id, producer_id, epoch in coordinators:
            if epoch > self.coordinator_epoch(queue_id, producer_id):
                self._remember_coordinator(queue_id, producer_id, epoch)

    def coordinators_in(self, queue_ids: Collection[int]) -> list[tuple[int, int, int]]:
        """(queue id, producer id, epoch) of the coordinators that are remembered for producers of these queues."""
        return [(*key, epoch) for key, epoch in self._coordinators.items() if key[0] in queue_ids]

    def coordinator_epoch(self, queue_id: int, producer_id: int) -> int:
        """That of the producer's last marker in a queue; -1: none is known."""
        return self._coordinators.get((queue_id, producer_id), -1)

    def open_in(self, queue_id: int) -> dict[int, OpenTransaction]:
        """The committed part of a queue's open transactions, by producer."""
        return dict(self._open.get(queue_id, {}))

    def forget_topics(self, topic_numbers: Iterable[int]) -> None:
        """Forget the transactions of all queues of these topics."""
        gone = set(topic_numbers)
        for layer in (self._open, self._ahead):
            for queue_id in [queue_id for queue_id in layer if topic_number_of(queue_id) in gone]:
                del layer[queue_id]
        self._open_count = sum(map(len, self._open.values()))
        for key in [key for key in self._coordinators if topic_number_of(key[0]) in gone]:
            del self._coordinators[key]
        self.aborted.forget_topics(gone)

    def clear(self) -> None:
        """Forget everything; whoever resets the queues resets their cells."""
        queues = [*self._open, *self._ahead]
        self._open.clear()
        self._ahead.clear()
        self._coordinators.clear()
        self._verified.clear()
        self._verifying.clear()
        self._open_count = 0
        self.aborted.clear()
        self.as_of = 0
        self.met_any = False
        for queue_id in queues:
            self._settle_cell(queue_id)

    # --- checkpoint ---------------------------------------------------------------------------------------

    def image(self, as_of: int = 0) -> bytes:
        """The committed layer, as rows of `ROW_CELLS` i64; empty where no transaction was ever met. `as_of`: the block
        that was applied last, for whoever begins before it."""
        if not (self._open or self._coordinators or len(self.aborted)):
            return b""
        rows = [
            (OPEN, queue_id, producer_id, *known, 0)
            for queue_id, of_queue in self._open.items()
            for producer_id, known in of_queue.items()
        ]
        rows += [(ABORTED, queue_id, *aborted[:3], aborted[3], aborted[4]) for queue_id, aborted in self.aborted]
        rows += [(COORDINATOR, *key, epoch, 0, 0, 0) for key, epoch in self._coordinators.items()]
        if as_of := max(as_of, self.as_of):
            rows.append((AS_OF, 0, 0, as_of, 0, 0, 0))
        table = numpy.array([[cell & 0xFFFFFFFFFFFFFFFF for cell in row] for row in rows], numpy.uint64)
        return table.tobytes()

    def load_image(self, image: Buffer) -> None:
        """Take the place of what is known by an `image`. Raises `FormatError`."""
        if len(image) % ROW_BYTES:
            raise FormatError(f"{len(image)} bytes are not a number of rows of transactions of {ROW_BYTES}")
        self.clear()
        if not len(image):
            return
        rows = numpy.frombuffer(bytes(image), numpy.int64).reshape(-1, ROW_CELLS)
        for kind, queue, producer_id, first, second, third, fourth in rows.tolist():
            queue_id = queue & 0xFFFFFFFFFFFFFFFF
            if kind == OPEN:
                self._begun(queue_id, producer_id, OpenTransaction(first, second, third))
            elif kind == ABORTED:
                self.aborted.add(queue_id, UnsplitAborted(producer_id, first, second, third, fourth))
            elif kind == COORDINATOR:
                self._remember_coordinator(queue_id, producer_id, first)
            elif kind == AS_OF:
                self.as_of = first
            else:
                raise FormatError(f"a row of transactions of kind {kind}, which this version does not know")
        for queue_id in list(self._open):
            self._settle_cell(queue_id)
