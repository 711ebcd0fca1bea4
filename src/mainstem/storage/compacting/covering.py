"""Empty batches in the place of those of which nothing stays.

A replicated machine takes every offset that its log skips for a lost one. So of such a log compaction leaves no batch
out: one of which nothing stays keeps its header, with all of its offsets and without a record, as Kafka writes it for a
producer whose last batch is emptied. Batches of all replicas begin and end at the same offsets then, however far each
has compacted.
"""

from __future__ import annotations

from itertools import pairwise

import numpy

from mainstem.kernel import crc32c
from mainstem.kernel.batch_header import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CHECKED_FROM,
    CHECKSUM,
    CHECKSUM_AT,
    HEADER_BYTES,
    LENGTH,
    LENGTH_AT,
    LENGTH_EXCLUDES,
    LOG_APPEND_TIME_BIT,
    MAX_TIMESTAMP_AT,
    RECORD_COUNT_AT,
    TRANSACTIONAL_BIT,
)
from mainstem.storage.compacting.rewrite import Rewritten
from mainstem.storage.compacting.window import Flags, Integers, Window

Octets = numpy.typing.NDArray[numpy.uint8]


def cover(window: Window, made: Rewritten, wanted: Flags) -> Rewritten:
    """The batches that `rewrite` left of a window, with an empty batch in the place of each one that is `wanted` (a
    flag per batch of the window) and left out."""
    gone = wanted.copy()
    gone[made.sources] = False
    numbers = numpy.flatnonzero(gone)
    if not len(numbers):
        return made
    headers = _emptied(window, numbers)
    rows = window.batches[numbers]
    rows[:, 1], rows[:, 5] = HEADER_BYTES, 0
    sources = numpy.concatenate((made.sources, numbers))
    order = sources.argsort()
    pieces = []
    is_new = order >= len(made.sources)
    edges = [0, *(numpy.flatnonzero(is_new[1:] != is_new[:-1]) + 1).tolist(), len(order)]
    for first, end in pairwise(edges):
        begin, last = int(order[first]), int(order[end - 1])
        if is_new[first]:
            pieces.append(headers[begin - len(made.sources) : last + 1 - len(made.sources)].data.cast("B"))
        else:
            pieces.append(made.content[int(made.batches[begin, 0]) : int(made.batches[last, :2].sum())])
    batches = numpy.concatenate((made.batches, rows))[order]
    batches[:, 0] = numpy.cumsum(batches[:, 1]) - batches[:, 1]
    return Rewritten(memoryview(b"".join(pieces)), batches, sources[order], made.dropped_records)


def _emptied(window: Window, numbers: Integers) -> Octets:
    """A header in each row: those of these batches, as of batches without records. Largest timestamp, leader epoch,
    producer and sequence are those of the batch."""
    octets = numpy.frombuffer(window.content, numpy.uint8)
    headers: Octets = octets[window.batches[numbers, 0, None] + numpy.arange(HEADER_BYTES)]
    length = LENGTH.pack(HEADER_BYTES - LENGTH_EXCLUDES)
    headers[:, LENGTH_AT : LENGTH_AT + LENGTH.size] = numpy.frombuffer(length, numpy.uint8)
    headers[:, ATTRIBUTES_AT] = 0
    headers[:, ATTRIBUTES_AT + 1] &= LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT
    headers[:, BASE_TIMESTAMP_AT:MAX_TIMESTAMP_AT] = 0xFF  # -1: there is no first record
    headers[:, RECORD_COUNT_AT:] = 0
    for header in headers:
        CHECKSUM.pack_into(header.data, CHECKSUM_AT, crc32c(header.data[CHECKED_FROM:]))
    return headers
