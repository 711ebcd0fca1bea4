"""Tells which queues may be in a file of extents, with about one byte per queue."""

from __future__ import annotations

import numpy

from mainstem.storage.extents.extent_index import QueueIds

FILTER_BITS_MAX = 1 << 20
"""128 KiB per run. It suffices for 100,000 queues in a run; with more, nearly every run has every queue."""

_SPREAD = 0x9E3779B97F4A7C15
_SPREAD_MASK = 0xFFFFFFFFFFFFFFFF


class QueueFilter:
    """Tells which queues may be in a run; a "no" is always right. About 8 bits per queue, one hash."""

    __slots__ = ("_bits", "_shift")

    def __init__(self, queue_ids: QueueIds) -> None:
        size = min(max(64, 1 << (8 * len(queue_ids)).bit_length()), FILTER_BITS_MAX)
        self._shift = 65 - size.bit_length()
        hashes = (queue_ids * numpy.uint64(_SPREAD)) >> numpy.uint64(self._shift)
        bits = numpy.zeros(size // 8, numpy.uint8)
        marks = (1 << (hashes & numpy.uint64(7)).astype(numpy.uint8)).astype(numpy.uint8)
        numpy.bitwise_or.at(bits, (hashes >> numpy.uint64(3)).astype(numpy.intp), marks)
        self._bits = bits.tobytes()

    def __contains__(self, queue_id: int) -> bool:
        place = (queue_id * _SPREAD & _SPREAD_MASK) >> self._shift
        return bool(self._bits[place >> 3] >> (place & 7) & 1)
