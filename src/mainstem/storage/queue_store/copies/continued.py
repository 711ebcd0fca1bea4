"""Whether some files go on where others end, without an offset that is missing.

Compaction takes away records of a queue, and a tombstone once everything older of its key is gone. Each replica does
that to its own files. Where a sender's files lack offsets behind what is kept here, one of them may be of a tombstone
whose older values are still here: they would come back. Nothing of one's own may stay then. What retention takes away
lies below the log start, and does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import numpy

from mainstem.storage.extents.extent_index import Rows
from mainstem.storage.queue_store.copies.queue_offsets import NO_OFFSETS, OffsetsOfQueues, looked_at
from mainstem.storage.queue_store.reading.open_files import KnownFile
from mainstem.storage.queue_store.reading.stored_files import StoredFiles, WriteGroupsAt
from mainstem.storage.store_files.store_file import StoreFile

DELETED = numpy.iinfo(numpy.int64).max
"""The log start of a queue that is not there any more."""


async def goes_on(
    stored: StoredFiles,
    group: int,
    kept_upto: int,
    files: Sequence[StoreFile],
    log_starts: OffsetsOfQueues,
    groups_at: WriteGroupsAt,
) -> bool:
    """Whether these files, which are here and in the order of their blocks, have every offset of a write group from
    where its files end that hold blocks up to `kept_upto`, or from the log start on. Raises `StorageError` and OSError
    where a file cannot be read."""
    spans = stored.manifest.spans(group)
    kept = range(spans.behind(kept_upto))
    if not kept:
        return True
    ends = begins = NO_OFFSETS
    for file in files:
        index = await stored.open_files.index(KnownFile(file.name), keep=False)
        look = partial(_behind, index.rows, group, groups_at, log_starts, ends, begins)
        found = await looked_at(len(index), look)
        if found is None:
            return False
        ends, begins = found
    queue_ids, offsets = begins.queue_ids, begins.offsets
    for place in reversed(kept):  # most queues are in the newest
        if not len(queue_ids):
            break
        ends = NO_OFFSETS
        for entry in spans[place]:
            index = await stored.open_files.index(stored.search.known(entry.name), keep=False)
            ends = await looked_at(len(index), partial(_with_ends, ends, index.rows, group, groups_at))
        here = ends.of(queue_ids)
        if ((here > 0) & (here < offsets)).any():
            return False
        queue_ids, offsets = queue_ids[here == 0], offsets[here == 0]
        await asyncio.sleep(0)
    return not len(queue_ids)


def _behind(
    rows: Rows,
    group: int,
    groups_at: WriteGroupsAt,
    log_starts: OffsetsOfQueues,
    ends: OffsetsOfQueues,
    begins: OffsetsOfQueues,
) -> tuple[OffsetsOfQueues, OffsetsOfQueues] | None:
    """Tell where the queues of a write group end with one more file, and where those begin that begin behind their log
    starts. None if an offset is missing that is live."""
    rows = rows[groups_at(rows["queue_id"], rows["base_offset"]) == group]
    rows = rows[rows["last_offset"] >= log_starts.of(rows["queue_id"], DELETED)]
    firsts, lasts = first_and_last(rows)
    had = ends.of(firsts["queue_id"])
    if has_gaps(rows) or ((had > 0) & (firsts["base_offset"] != had)).any():
        return None
    new = firsts[(had == 0) & (firsts["base_offset"] > log_starts.of(firsts["queue_id"], DELETED))]
    return (
        ends.together(lasts["queue_id"], lasts["last_offset"] + 1),
        begins.together(new["queue_id"], new["base_offset"]),
    )


def _with_ends(ends: OffsetsOfQueues, rows: Rows, group: int, groups_at: WriteGroupsAt) -> OffsetsOfQueues:
    _firsts, lasts = first_and_last(rows[groups_at(rows["queue_id"], rows["base_offset"]) == group])
    return ends.together(lasts["queue_id"], lasts["last_offset"] + 1)


async def ends_of(stored: StoredFiles, group: int, after: int, upto: int, groups_at: WriteGroupsAt) -> OffsetsOfQueues:
    """Per queue, how far the files here go that hold blocks of a write group behind `after`, none behind `upto`. Raises
    `StorageError` and OSError when one cannot be read; that is noted."""
    ends = NO_OFFSETS
    spans = stored.manifest.spans(group)
    for place in range(spans.behind(after), spans.behind(upto)):
        for entry in spans[place]:
            index = await stored.open_files.index(stored.search.known(entry.name), keep=False)
            ends = await looked_at(len(index), partial(_with_ends, ends, index.rows, group, groups_at))
    return ends


def first_and_last(rows: Rows) -> tuple[Rows, Rows]:
    """The first and the last row of each queue, of rows sorted by (queue, offset)."""
    changes = rows["queue_id"][1:] != rows["queue_id"][:-1]
    edge = numpy.ones(min(len(rows), 1), numpy.bool_)
    return rows[numpy.concatenate((edge, changes))], rows[numpy.concatenate((changes, edge))]


def has_gaps(rows: Rows) -> bool:
    """Whether offsets are missing within rows sorted by (queue, offset), or between two of a queue."""
    same = rows["queue_id"][1:] == rows["queue_id"][:-1]
    between = same & (rows["base_offset"][1:] != rows["last_offset"][:-1] + 1)
    within = rows["record_count"] != rows["last_offset"] - rows["base_offset"] + 1
    return bool(between.any() or within.any())
