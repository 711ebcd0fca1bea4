"""The records of a compacted queue that may be gone, and those that may not (L).

The observer knows every record that was committed, and every pass of any node before it can count: up to which offset a
pass compacts a queue, and when it began. Replicas compact by themselves and copy from each other, so of a record that a
node does not have it is asked whether any pass may have taken it away: there is a later one of its key, in the log of
the same write group, that a pass had as well, or it is a tombstone, and a pass began `delete.retention.ms` or more
after the first that had it. A served batch stays what was committed, at its offset; a batch that lost records has the
others as they were.

Once a tombstone has gone, no older value of its key may be there.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from tests.simulation.oracle import require

from mainstem.kernel.batch_header import CHECKED_FROM, CHECKSUM_AT
from mainstem.model import Buffer, TopicSettings
from mainstem.protocol.records import Record, StoredBatch, read_batch_header, read_records
from mainstem.protocol.records.batch import crc32c

IDENTITY = slice(43, 57)
"""Of a record batch: producer id and epoch, and the first sequence number, which compaction keeps."""


class Pass(NamedTuple):
    """Of one queue."""

    began_ms: int
    last: int
    """The last offset that it compacts."""


class CompactedQueue:
    """Of a topic with `cleanup.policy=compact`."""

    def __init__(self, queue_id: int, settings: TopicSettings, *, covered: bool = False) -> None:
        """`covered`: no batch of it is left out."""
        self._what = f"queue {queue_id:#x}"
        self._settings = settings
        self._covered = covered
        self._records: list[Record] = []
        """With the offsets that they were committed at: without a gap, the first at 0."""
        self._groups: list[int] = []
        """The write group of each record: a pass has files of one."""
        self._times: list[int] = []
        """Of each record the largest timestamp in its batch."""
        self._by_key: dict[bytes | None, list[int]] = {}
        """The offsets of each key."""
        self._passes: list[Pass] = []
        self._reach = -1
        """The last offset that any pass had."""
        self.gone: set[int] = set()
        """Offsets that somebody did not find, and that might be gone."""

    def committed(self, base_offset: int, batch: Buffer, group: int = 0) -> None:
        """The next batch of the queue, as it was sent, in the log of this write group."""
        header = read_batch_header(batch)
        assert base_offset == len(self._records)
        for offset, record in enumerate(read_records(StoredBatch(batch, header)), base_offset):
            self._records.append(dataclasses.replace(record, offset=offset))
            self._groups.append(group)
            self._times.append(header.max_timestamp)
            self._by_key.setdefault(record.key, []).append(offset)

    def handed_in(self, what: str, began_ms: int, end: int, last: int) -> None:
        """A pass that may be recorded compacts what lies below `end`, the last of which is at `last`."""
        lag_ms = self._settings.min_compaction_lag_ms
        require(last < min(end, len(self._records)), f"{what}: {self._what}: {last} lies beyond the end {end}", "L")
        youngest = max(self._times[: last + 1])
        latest_ms = max([began_ms, *(one.began_ms for one in self._passes)])  # clocks are set back a little at times
        require(
            not lag_ms or youngest <= latest_ms - lag_ms,
            f"{what}: {self._what} is compacted up to offset {last} at {began_ms}, with a record of {youngest} in it; "
            f"min.compaction.lag.ms is {lag_ms}",
            "L",
        )
        self._passes.append(Pass(began_ms, last))
        self._reach = max(self._reach, last)

    # --- what is served -----------------------------------------------------------------------------------

    def check_left_out(self, what: str, first: int, end: int) -> None:
        """Somebody finds no batch that has any of these offsets, `end` not among them."""
        require(first >= end or not self._covered, f"{what}: {self._what}: no batch has offset {first}", "L")
        self.check_gone(what, first, end)

    def check_gone(self, what: str, first: int, end: int) -> None:
        """Somebody finds nothing of these offsets, `end` not among them."""
        for offset in range(first, end):
            why_not = self._why_not_gone(self._records[offset])
            require(not why_not, f"{what}: offset {offset} of {self._what} is gone: {why_not}", "L")
            self.gone.add(offset)

    def check_rewritten(self, what: str, batch: Buffer, identity: bytes, end: int) -> None:
        """Somebody reads a batch that is not as it was sent: it had this identity, and ended before `end`."""
        header = read_batch_header(batch)
        what = f"{what}: the batch at offset {header.base_offset} of {self._what}, which compaction changed,"
        require(header.last_offset + 1 == end, f"{what} ends at {header.last_offset}, not before {end}", "L")
        require(bytes(batch[IDENTITY]) == identity, f"{what} is of another producer, or has another sequence", "L")
        stated = int.from_bytes(batch[CHECKSUM_AT : CHECKSUM_AT + 4], "big")
        require(crc32c(batch, CHECKED_FROM) == stated, f"{what} fails its CRC", "L")
        records = list(read_records(StoredBatch(batch, header)))
        require(bool(records) or self._covered, f"{what} is empty", "L")
        next_offset = header.base_offset
        for record in records:
            require(next_offset <= record.offset < end, f"{what} has a record at offset {record.offset}", "L")
            require(record == self._records[record.offset], f"{what} has another record at offset {record.offset}", "L")
            self.check_gone(what, next_offset, record.offset)
            next_offset = record.offset + 1
        self.check_gone(what, next_offset, end)

    def check_values(self, what: str, served: Sequence[int], start: int, end: int) -> None:
        """Somebody who reads all from the log start on up to `end`, and finds these offsets, has the last value of each
        key, or none. Of a key that was deleted twice the last tombstone may have gone and the first be there: on a
        replica that took files of another one behind its own."""
        last_served: dict[bytes | None, int] = {}
        for offset in served:
            last_served[self._records[offset].key] = offset
        for key, offsets in self._by_key.items():
            before = bisect_left(offsets, end)
            if key is None or not before or offsets[before - 1] < start:
                continue
            latest, found = offsets[before - 1], last_served.get(key)
            deleted = self._records[latest].value is None and (found is None or self._records[found].value is None)
            require(
                found == latest or deleted,
                f"{what}: {self._what}: the last record of key {key!r} is that at offset {found}, an older one; it was "
                f"written last at {latest}, {'a tombstone' if self._records[latest].value is None else 'a value'}",
                "L",
            )

    def _why_not_gone(self, record: Record) -> str:
        """Why a record must be there; empty: it may be gone."""
        if record.key is None:
            return "it has no key"
        if record.offset > self._reach:
            return f"no pass has had more than what lies before {self._reach + 1}"
        offsets = self._by_key[record.key]
        group = self._groups[record.offset]
        behind = offsets[bisect_right(offsets, record.offset) :]
        if any(self._groups[later] == group and later <= self._reach for later in behind):
            return ""
        if record.value is not None:
            return f"it is the latest of its key in write group {group}"
        seen = min(one.began_ms for one in self._passes if one.last >= record.offset)
        dropping = max((one.began_ms for one in self._passes if one.last > record.offset), default=seen)
        retention_ms = self._settings.delete_retention_ms
        if dropping < seen + retention_ms:
            return f"a tombstone stays {retention_ms} ms; a pass had it first at {seen}, the last one was at {dropping}"
        return ""
