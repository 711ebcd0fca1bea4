"""Makes a damaged block whole again, byte for byte, from another replica's copy of the same block. No I/O.

A block has the same term, index, kind, time, directory and payload on all replicas. Only its place, which is known, and
three fields differ from journal to journal: how far the journal was durable when the block was written, the CRC of the
header before it, and its own CRC. The block's neighbours hold the two CRCs as well. For the durable position the repair
tries the only possible values: the one on the disk, that one with any single bit flipped, and the ends of the blocks
before. The block's CRC tells which value is right; it errs no more often than any check that takes a damaged block for
a sound one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mainstem.kernel import crc32c
from mainstem.model import Buffer
from mainstem.storage.journal.encoding.format import BLOCK_HEADER, BLOCK_HEADER_BYTES, KIND_DATA, aligned, pack_header
from mainstem.storage.journal.stored_block import StoredPlace

DURABLE_BITS = 64
CRC_BITS = 32

TRIED_MAX = 1 << 12
"""The most headers tried: each costs the CRC of its directory, some microseconds."""


class Twin(NamedTuple):
    """The same block from another replica, checked."""

    kind: int
    created_ms: int
    batch_count: int
    directory: Buffer
    payload: Buffer


class Neighbours(NamedTuple):
    """The facts that the blocks around a damaged block give, as far as these can be read."""

    previous_crc: int | None
    """CRC of the header before it."""
    own_crc: int | None
    """CRC of the damaged block's own header, as the block behind it states it."""
    ends: tuple[int, ...]
    """Journal positions behind the blocks before it, the nearest last."""


def whole(place: StoredPlace, damaged: Buffer, twin: Twin, around: Neighbours) -> bytes | None:
    """The bytes that were written at this place; None when they cannot be found. `damaged` are the bytes that lie there
    now."""
    content = BLOCK_HEADER_BYTES + len(twin.directory) + len(twin.payload)
    if aligned(content) != place.length or len(damaged) < BLOCK_HEADER_BYTES:
        return None
    stored = BLOCK_HEADER.unpack_from(damaged)
    stored_crc, stored_previous, stored_durable = stored[1], stored[2], stored[11]
    crcs = {stored_crc, *([] if around.own_crc is None else [around.own_crc])}
    payload_crc = 0 if twin.kind == KIND_DATA else crc32c(twin.payload)
    tried = 0
    for previous in _previous(stored_previous, around):
        for durable in _durable(stored_durable, around.ends):
            tried += 1
            if tried > TRIED_MAX:
                return None
            if not 0 <= durable <= place.position:
                continue
            header, crc = pack_header(
                twin.kind,
                place.group,
                place.term,
                place.index,
                place.length,
                twin.batch_count,
                len(twin.payload),
                payload_crc,
                place.position,
                durable,
                previous,
                twin.created_ms,
                twin.directory,
            )
            if crc in crcs:
                return b"".join([header, twin.directory, twin.payload, bytes(place.length - content)])
    return None


def _previous(stored: int, around: Neighbours) -> Iterator[int]:
    if around.previous_crc is not None:
        yield around.previous_crc
        return
    yield stored
    for bit in range(CRC_BITS):
        yield stored ^ 1 << bit


def _durable(stored: int, ends: Iterable[int]) -> Iterator[int]:
    yield stored
    for bit in range(DURABLE_BITS):
        yield stored ^ 1 << bit
    yield 0
    yield from reversed(tuple(ends))
