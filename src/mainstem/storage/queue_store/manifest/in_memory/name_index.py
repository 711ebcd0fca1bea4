"""Finds the rows of files by their names: 8 bytes per file, in sorted buckets.

A bucket holds, ascending, 32 bits of each name's hash and the row behind them. The asker compares the name itself:
names may share a hash. Python's hash differs from process to process, so nobody can choose names that collide."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

import numpy

BUCKET_BITS = 10
"""A bucket of a million files has a thousand entries: little to move when one comes or goes."""

_BUCKETS = 1 << BUCKET_BITS
_HASH_MASK = ((1 << 32) - 1) << 32


class NameIndex:
    """Rows, below 2**32, by name."""

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}

    def find(self, name: bytes) -> Iterator[int]:
        """The rows that may be of this name."""
        bucket, key = _place(name)
        entries = self._buckets.get(bucket)
        if entries is not None:
            for at in range(bisect_left(entries, key), len(entries)):
                if entries[at] & _HASH_MASK != key:
                    return
                yield entries[at] ^ key

    def add(self, name: bytes, row: int) -> None:
        bucket, key = _place(name)
        insort(self._buckets.setdefault(bucket, array("Q")), key | row)

    def discard(self, name: bytes, row: int) -> None:
        bucket, key = _place(name)
        entries = self._buckets[bucket]
        at = bisect_left(entries, key | row)
        assert entries[at] == key | row, name
        del entries[at]

    def load(self, parts: Sequence[tuple[Sequence[bytes], numpy.ndarray]]) -> None:
        """Add many names with their rows to an empty index."""
        hashes = numpy.concatenate([
            numpy.fromiter(map(hash, names), numpy.int64, len(names)).view(numpy.uint64) for names, _rows in parts
        ])  # fmt: skip
        rows = numpy.concatenate([rows for _names, rows in parts]).astype(numpy.uint64)
        buckets = (hashes & numpy.uint64(_BUCKETS - 1)).astype(numpy.uint16)
        keys = ((hashes >> numpy.uint64(BUCKET_BITS)) << numpy.uint64(32)) | rows
        order = numpy.argsort(buckets, kind="stable")  # a sort by digits, which a sort by both would not be
        keys, ends = keys[order], numpy.cumsum(numpy.bincount(buckets, minlength=_BUCKETS))
        for bucket, (start, end) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)):
            if start < end:
                self._buckets[bucket] = array("Q", numpy.sort(keys[start:end]).tobytes())


def _place(name: bytes) -> tuple[int, int]:
    """The bucket of a name, and what its entries begin with."""
    hashed = hash(name) & (1 << 64) - 1
    return hashed & (_BUCKETS - 1), ((hashed >> BUCKET_BITS) & 0xFFFFFFFF) << 32
