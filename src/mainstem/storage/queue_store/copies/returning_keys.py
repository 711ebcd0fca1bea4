"""Whether deleted keys or aborted transactions would come back, were files of another replica put behind one's own.

Compaction takes away a tombstone once everything older of its key is gone, on each replica for itself. If the sender
lacks offsets behind what is kept here, one of them may be of a tombstone whose older value is still here. Keys tell: a
value that is the latest of its key here, and has none of its key behind it, is a deleted one exactly if the sender does
not have it any more, since compaction leaves the latest record of each key everywhere, but for tombstones.

So a returning replica reads the queues with gaps, here and in what it has copied, and asks the sender for those extents
of its older files that must have what is left over. That is at most the sender's part of these queues.

Likewise the marker of a transaction that is open in what is kept may be gone behind it. That goes only once all
batches of the transaction are gone there, so the sender must have these batches, too.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial

import numpy
import numpy.typing

from mainstem.kernel import RecordKind, crc32c
from mainstem.storage.compacting.key_rows import scan_keys
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_format import TRANSACTIONAL
from mainstem.storage.extents.extent_index import ExtentIndex, QueueIds, Rows
from mainstem.storage.queue_store.copies.continued import DELETED
from mainstem.storage.queue_store.copies.kept_history import FilesOfBlocks
from mainstem.storage.queue_store.copies.open_batches import PLACED, PlacedBatches, open_batches, transactions_in
from mainstem.storage.queue_store.copies.part_copy import Elsewhere, extents_of, index_of
from mainstem.storage.queue_store.copies.queue_offsets import Offsets, OffsetsOfQueues, looked_at
from mainstem.storage.queue_store.reading.open_files import KnownFile
from mainstem.storage.queue_store.reading.stored_files import StoredFiles, WriteGroupsAt
from mainstem.storage.store_files.store_file import StoreFile

RECORDS_MAX = 1 << 20
"""Records with keys that are held at a time, 33 bytes each, and some times that while they are sorted. If there are
more, it is not told what would come back."""

KEYED = numpy.dtype([("queue_id", "<u8"), ("high", "<u8"), ("low", "<u8"), ("offset", "<i8"), ("kind", "u1")])
"""A record: its queue, the two halves of its key's hash, its offset, its `RecordKind`."""

Keyed = numpy.typing.NDArray[numpy.void]


OffsetsOf = Callable[[str, numpy.void, bytes], Offsets]
"""Reads of an extent of a file which offsets it has."""


class NotTold(StorageError):
    """It cannot be told what would come back: there are too many records, or some cannot be read."""


class ReturningKeys:
    """Looks at one write group, of which files up to a block are kept here."""

    def __init__(
        self,
        stored: StoredFiles,
        group: int,
        kept_upto: int,
        queue_ids: QueueIds,
        log_starts: OffsetsOfQueues,
        groups_at: WriteGroupsAt,
    ) -> None:
        """`queue_ids`: those of which offsets are missing."""
        self._stored = stored
        self._group = group
        self._kept_upto = kept_upto
        self._queue_ids = queue_ids
        self._log_starts = log_starts
        self._groups_at = groups_at
        self._hash_key = secrets.token_bytes(16)

    async def check(self, behind: Sequence[StoreFile], theirs: FilesOfBlocks, elsewhere: Elsewhere) -> None:
        """Return if no deleted key comes back with these files, which are here, behind what is kept. `theirs`: all
        files of the sender's, oldest first. Raises `StorageError` if one may, `NotTold`, and what `elsewhere`
        raises."""
        transactions: list[PlacedBatches] = [numpy.empty(0, PLACED)]
        spans = self._stored.manifest.spans(self._group)
        own = [entry.name for place in range(spans.behind(self._kept_upto)) for entry in spans[place]]
        here = await self._records([self._stored.search.known(name) for name in own], RECORDS_MAX, transactions)
        new = await self._records([KnownFile(file.name) for file in behind], RECORDS_MAX - len(here))
        left = await looked_at(len(here) + len(new), lambda: _values_left(here, new))
        undecided = open_batches(numpy.concatenate(transactions))
        unknown = numpy.setdiff1d(self._queue_ids, here["queue_id"])
        for after, upto, file in theirs:
            if after >= self._kept_upto or not (len(left) or len(undecided) or len(unknown)):
                continue
            index = await index_of(file, elsewhere)
            if upto <= self._kept_upto and len(self._of_interest(index, unknown)):
                raise StorageError(f"{file.name} has blocks up to {upto} of a queue of which nothing is here")
            left = await self._not_in(left, file, index, elsewhere, self._offsets_of_keyed)
            undecided = await self._not_in(undecided, file, index, elsewhere, _offsets_of_transactions)
        if len(left):
            first = left[0]
            raise StorageError(
                f"queue {int(first['queue_id']):#x}: {len(left)} records that are the latest of their keys here are "
                f"not there any more, the first at offset {int(first['offset'])}: they were deleted"
            )
        if len(undecided):
            first = undecided[0]
            raise StorageError(
                f"queue {int(first['queue_id']):#x}: {len(undecided)} batches of transactions that are open here are "
                f"not there any more, the first at offset {int(first['offset'])}: their markers may be gone as well"
            )

    def _of_interest(self, index: ExtentIndex, queue_ids: QueueIds) -> Rows:
        """The live rows that an index has of these queues of the write group."""
        rows = index.rows[numpy.isin(index.rows["queue_id"], queue_ids)]
        rows = rows[self._groups_at(rows["queue_id"], rows["base_offset"]) == self._group]
        live: Rows = rows[rows["last_offset"] >= self._log_starts.of(rows["queue_id"], DELETED)]
        return live

    async def _records(
        self, files: Sequence[KnownFile], count_max: int, transactions: list[PlacedBatches] | None = None
    ) -> Keyed:
        """The live records with keys that these files have of the queues. Batches of transactions are added to
        `transactions`. Raises `NotTold`."""
        found: list[Keyed] = [numpy.empty(0, KEYED)]
        count = 0
        for known in files:
            index = await self._stored.open_files.index(known, keep=False)
            rows = await looked_at(len(index), partial(self._of_interest, index, self._queue_ids))
            async for row, data in self._extents(known, rows):
                found.append(self._keyed(known.name, row, data))
                count += len(found[-1])
                if transactions is not None and row["flags"] & TRANSACTIONAL:
                    transactions.append(transactions_in(int(row["queue_id"]), data))
                    count += len(transactions[-1])
                if count > count_max:
                    raise NotTold(f"more than {RECORDS_MAX} records with keys are to be looked at")
        records = numpy.concatenate(found)
        return records[records["offset"] >= self._log_starts.of(records["queue_id"], DELETED)]

    async def _extents(self, known: KnownFile, rows: Rows) -> AsyncIterator[tuple[numpy.void, bytes]]:
        if not len(rows):
            return
        async with self._stored.open_files.opened(known) as file:
            for row in rows:
                data = bytes(await file.read(int(row["position"]), int(row["length"])))
                if crc32c(data) != int(row["crc"]):
                    raise NotTold(f"{known.name}: the extent at {int(row['position'])} fails its CRC")
                yield row, data

    def _keyed(self, name: str, extent: numpy.void, data: bytes) -> Keyed:
        """The records with keys in an extent."""
        pieces: list[Keyed] = [numpy.empty(0, KEYED)]
        for piece in scan_keys(data, self._hash_key):
            if piece.unreadable:
                raise NotTold(f"{name}: records in the extent at {int(extent['position'])} cannot be read")
            rows = piece.rows[(piece.rows["kind"] == RecordKind.VALUE) | (piece.rows["kind"] == RecordKind.TOMBSTONE)]
            keyed = numpy.empty(len(rows), KEYED)
            keyed["queue_id"] = extent["queue_id"]
            for field in ("high", "low", "offset", "kind"):
                keyed[field] = rows[field]
            pieces.append(keyed)
        return numpy.concatenate(pieces)

    def _offsets_of_keyed(self, name: str, extent: numpy.void, data: bytes) -> Offsets:
        found: Offsets = self._keyed(name, extent, data)["offset"]
        return found

    async def _not_in(
        self, left: Rows, file: StoreFile, index: ExtentIndex, elsewhere: Elsewhere, offsets_of: OffsetsOf
    ) -> Rows:
        """Those of these records or batches that a file of the sender's does not have."""
        rows = self._of_interest(index, left["queue_id"])
        places = numpy.lexsort((rows["base_offset"], rows["queue_id"]))
        wanted = [place for place in places.tolist() if len(_within(left, rows[place]))]
        if not wanted:
            return left
        missing = numpy.ones(len(left), numpy.bool_)
        chosen = rows[sorted(wanted)]
        async with aclosing(extents_of(file, chosen, elsewhere)) as extents:
            async for number, data in extents:
                extent = chosen[number]
                there = offsets_of(file.name, extent, data)
                mine = _within(left, extent)
                missing[mine[numpy.isin(left["offset"][mine], there)]] = False
                await asyncio.sleep(0)
        return left[missing]


def _offsets_of_transactions(_name: str, extent: numpy.void, data: bytes) -> Offsets:
    found: Offsets = transactions_in(int(extent["queue_id"]), data)["offset"]
    return found


def _within(records: Rows, extent: numpy.void) -> numpy.typing.NDArray[numpy.intp]:
    """The places of the records or batches whose offsets an extent has, perhaps."""
    same = records["queue_id"] == extent["queue_id"]
    return numpy.flatnonzero(
        same & (records["offset"] >= extent["base_offset"]) & (records["offset"] <= extent["last_offset"])
    )


def _values_left(here: Keyed, behind: Keyed) -> Keyed:
    """The values that are the latest of their keys, and are of those `here`; what is `behind` is later."""
    together = numpy.concatenate([here, behind])
    is_here = numpy.arange(len(together)) < len(here)
    order = numpy.lexsort((together["offset"], ~is_here, together["low"], together["high"], together["queue_id"]))
    together, is_here = together[order], is_here[order]
    last = numpy.ones(len(together), numpy.bool_)
    same = numpy.ones(max(len(together) - 1, 0), numpy.bool_)
    for field in ("queue_id", "high", "low"):
        same &= together[field][1:] == together[field][:-1]
    last[:-1] = ~same
    left: Keyed = together[last & is_here & (together["kind"] == RecordKind.VALUE)]
    return left
