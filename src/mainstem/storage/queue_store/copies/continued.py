"""Whether some files go on where others end, without an offset that is missing.

Compaction takes away records of a queue, and a tombstone once everything older of its key is gone. Each replica does
that to its own files. If a sender's files lack offsets behind what is kept here, one of them may be of a tombstone
whose older values are still here: they would come back, unless `returning_keys` finds that none does. Records that
retention takes away lie below the log start, and do not count."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import numpy
import numpy.typing

from mainstem.storage.extents.extent_index import QueueIds, Rows
from mainstem.storage.queue_store.copies.queue_offsets import NO_OFFSETS, OffsetsOfQueues, looked_at
from mainstem.storage.queue_store.reading.open_files import KnownFile
from mainstem.storage.queue_store.reading.stored_files import StoredFiles, WriteGroupsAt
from mainstem.storage.store_files.store_file import StoreFile

DELETED = numpy.iinfo(numpy.int64).max
"""The log start of a queue that is not there any more."""


async def queues_with_gaps(
    stored: StoredFiles,
    group: int,
    kept_upto: int,
    files: Sequence[StoreFile],
    log_starts: OffsetsOfQueues,
    groups_at: WriteGroupsAt,
) -> QueueIds:
    """The queues of a write group of which these files, which are here and in the order of their blocks, lack an offset
    from where the write group's files end that hold blocks up to `kept_upto`, or from the log start on. Raises
    `StorageError` and OSError where a file cannot be read."""
    spans = stored.manifest.spans(group)
    kept = range(spans.behind(kept_upto))
    ends = begins = NO_OFFSETS
    none: QueueIds = ends.queue_ids
    if not kept:
        return none
    gaps: list[QueueIds] = []
    for file in files:
        index = await stored.open_files.index(KnownFile(file.name), keep=False)
        look = partial(_behind, index.rows, group, groups_at, log_starts, ends, begins)
        ends, begins, lacking = await looked_at(len(index), look)
        gaps.append(lacking)
    queue_ids, offsets = begins.queue_ids, begins.offsets
    for place in reversed(kept):  # most queues are in the newest
        if not len(queue_ids):
            break
        ends = NO_OFFSETS
        for entry in spans[place]:
            index = await stored.open_files.index(stored.search.known(entry.name), keep=False)
            ends = await looked_at(len(index), partial(_with_ends, ends, index.rows, group, groups_at))
        here = ends.of(queue_ids)
        gaps.append(queue_ids[(here > 0) & (here < offsets)])
        queue_ids, offsets = queue_ids[here == 0], offsets[here == 0]
        await asyncio.sleep(0)
    found: QueueIds = numpy.unique(numpy.concatenate([*gaps, queue_ids]))
    return found


def _behind(
    rows: Rows,
    group: int,
    groups_at: WriteGroupsAt,
    log_starts: OffsetsOfQueues,
    ends: OffsetsOfQueues,
    begins: OffsetsOfQueues,
) -> tuple[OffsetsOfQueues, OffsetsOfQueues, QueueIds]:
    """Tell where the queues of a write group end with one more file, where those begin that begin behind their log
    starts, and of which an offset is missing that is live."""
    rows = rows[groups_at(rows["queue_id"], rows["base_offset"]) == group]
    rows = rows[rows["last_offset"] >= log_starts.of(rows["queue_id"], DELETED)]
    firsts, lasts = first_and_last(rows)
    had = ends.of(firsts["queue_id"])
    lacking = numpy.concatenate(
        [rows["queue_id"][gaps_in(rows)], firsts["queue_id"][(had > 0) & (firsts["base_offset"] != had)]]
    )
    new = firsts[(had == 0) & (firsts["base_offset"] > log_starts.of(firsts["queue_id"], DELETED))]
    return (
        ends.together(lasts["queue_id"], lasts["last_offset"] + 1),
        begins.together(new["queue_id"], new["base_offset"]),
        lacking,
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


def gaps_in(rows: Rows) -> numpy.typing.NDArray[numpy.bool_]:
    """Per row, of rows sorted by (queue, offset), whether offsets are missing within it, or behind the one before it of
    the same queue."""
    found: numpy.typing.NDArray[numpy.bool_] = rows["record_count"] != rows["last_offset"] - rows["base_offset"] + 1
    same = rows["queue_id"][1:] == rows["queue_id"][:-1]
    found[1:] |= same & (rows["base_offset"][1:] != rows["last_offset"][:-1] + 1)
    return found
