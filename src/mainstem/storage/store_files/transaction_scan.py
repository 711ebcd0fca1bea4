"""The transactions of a queue, found in its batches one after the other: for files that are made of batches alone,
without the directory of a block or the index of another file.

A marker does not say where its transaction began. So what is found is sure only from the queue's first batch on, or,
of a producer, behind its first marker; what is not sure raises, rather than that readers are told the wrong batches.
"""

from __future__ import annotations

import numpy
import numpy.typing

from mainstem.kernel.batch_header import ATTRIBUTES_AT, CONTROL_BIT, PRODUCER_ID_AT, TRANSACTIONAL_BIT
from mainstem.model import Buffer
from mainstem.protocol.errors import ProtocolError
from mainstem.protocol.records import ControlType, StoredBatch, read_control, read_records
from mainstem.storage.errors import FormatError
from mainstem.storage.extents.aborted import ABORTED_ROW, NO_PRODUCER, AbortedRows, joined_rows
from mainstem.storage.extents.extent_format import TRANSACTIONAL

Integers = numpy.typing.NDArray[numpy.int64]
Flags = numpy.typing.NDArray[numpy.uint32]


def attributes_of(content: Buffer, positions: Integers) -> Integers:
    """The lower bytes of the attributes of the batches at these positions."""
    octets = numpy.frombuffer(content, numpy.uint8)
    return octets[positions + ATTRIBUTES_AT + 1].astype(numpy.int64)


def producers_of(content: Buffer, positions: Integers) -> Integers:
    """The producer ids of the batches at these positions."""
    octets = numpy.frombuffer(content, numpy.uint8)
    fields = octets[positions[:, None] + numpy.arange(PRODUCER_ID_AT, PRODUCER_ID_AT + 8)]
    return numpy.ascontiguousarray(fields).view(">i8")[:, 0].astype(numpy.int64)


def flags_of(content: Buffer, positions: Integers) -> Flags:
    """The flags that a writer of extents is given with the batches at these positions."""
    found = (attributes_of(content, positions) & TRANSACTIONAL_BIT) != 0
    return numpy.where(found, TRANSACTIONAL, 0).astype(numpy.uint32)


class TransactionScan:
    """The transactions of one queue. Batches come in order, in pieces."""

    def __init__(self, queue_id: int, *, from_first: bool, where: str) -> None:
        """`from_first`: the batches begin with the queue's first. `where`: named in errors."""
        self._queue_id = queue_id
        self._from_first = from_first
        self._where = where
        self._open: dict[int, int] = {}
        """Producer → first offset of its open transaction."""
        self._seen: set[int] = set()
        """Producers of which a marker was found."""
        self._found: list[tuple[int, int, int, int, int]] = []

    def add(self, content: Buffer, batches: Integers) -> None:
        """`batches`: a row of `BATCH_FIELDS` for each batch in `content`. Raises FormatError naming the marker whose
        transaction may have begun before the first batch, or that cannot be read."""
        positions = batches[:, 0]
        attributes = attributes_of(content, positions)
        chosen = numpy.flatnonzero(attributes & TRANSACTIONAL_BIT)
        if not len(chosen):
            return
        producers = producers_of(content, positions[chosen]).tolist()
        view = memoryview(content)
        for number, producer_id in zip(chosen.tolist(), producers, strict=True):
            position, length, offset = batches[number, :3].tolist()
            if not attributes[number] & CONTROL_BIT:
                self._open.setdefault(producer_id, offset)
            else:
                self._end(producer_id, offset, self._is_abort(view[position : position + length], offset))

    def rows(self) -> AbortedRows:
        """The index of aborted transactions of all that was added."""
        return joined_rows([numpy.array(self._found, ABORTED_ROW)])

    def open_first_offset(self) -> int | None:
        """The first offset of the oldest transaction whose marker was not found; None: there is none."""
        return min(self._open.values(), default=None)

    def _end(self, producer_id: int, offset: int, is_abort: bool) -> None:
        began = self._open.pop(producer_id, None)
        is_sure = self._from_first or producer_id in self._seen
        if is_abort and not is_sure:
            raise FormatError(
                f"{self._where}: the transaction of producer {producer_id} that was aborted at offset {offset} may "
                "have begun before; nothing here says where"
            )
        self._seen.add(producer_id)
        stable = min(self._open.values(), default=offset + 1) if self._from_first else 0
        if is_abort and began is not None:
            self._found.append((self._queue_id, producer_id, began, offset, stable))
        else:
            self._found.append((self._queue_id, NO_PRODUCER, -1, offset, stable))

    def _is_abort(self, batch: memoryview, offset: int) -> bool:
        try:
            (record,) = read_records(StoredBatch.parse(batch))
            return read_control(record).type is ControlType.ABORT
        except (ProtocolError, ValueError) as error:
            raise FormatError(f"{self._where}: the marker at offset {offset} cannot be read: {error}") from error
