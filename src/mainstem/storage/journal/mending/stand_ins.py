"""Puts blocks without content in the place of blocks that are lost for good, so that the journal can be walked again.

A stand-in has the term and index of a lost block, lies within the bytes that cannot be read, and continues the chain of
checksums at both of its ends: the last four bytes of its header, which no version reads, are chosen so that its
checksum is the one that the block behind it states. So every version walks, splits and replicates it like any block.

A block whose directory can still be read keeps its batches that are sound. Of any other the stand-in has none: a data
block without rows where it is known that there was data, else a no-op. If another replica has a stand-in already, it is
copied, so that all logs say the same.

The last four bytes of a header are zero in every block that is no stand-in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy

from mainstem.kernel import crc32c
from mainstem.model import Buffer
from mainstem.ports import Files
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.journal.encoding.blocks import batches_fault, block_at
from mainstem.storage.journal.encoding.format import (
    BLOCK_ALIGNMENT,
    BLOCK_HEADER_BYTES,
    DIRECTORY_ROW,
    DIRECTORY_ROW_BYTES,
    FIRST_BLOCK,
    KIND_DATA,
    KIND_NO_OP,
    PAGE_BYTES,
    SegmentHeader,
    offset_of,
    pack_header,
    segment_name,
    sequence_of,
)
from mainstem.storage.journal.mending.block_mending import read_around
from mainstem.storage.journal.mending.block_repair import Twin
from mainstem.storage.journal.segments.segment_files import DIRECTORY, INDEX, segment_path
from mainstem.storage.journal.stored_block import StoredPlace

CRC_BITS = 32
MARK = (1).to_bytes(4, "little")
"""The last four bytes of a stand-in's header where its checksum is not given."""
CHUNK_BYTES = 1 << 20


class Lost(NamedTuple):
    """A lost block: what stands in for it has its term and index, and lies from `position` on for `length` bytes."""

    group: int
    term: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which is never called
    position: int
    length: int
    data: bool
    """It was a data block; False: or it is not known."""


def tiled(start: int, end: int, lost: Sequence[tuple[int, int, int]]) -> list[Lost]:
    """Places for (group, term, index) blocks whose own places are not known, which together cover a stretch of the
    journal. Empty if the stretch has no room for them, or does not lie within one segment."""
    if not lost or sequence_of(start) != sequence_of(end) or end - start < len(lost) * BLOCK_HEADER_BYTES:
        return []
    places = [start + number * BLOCK_HEADER_BYTES for number in range(len(lost))]
    ends = [*places[1:], end]
    return [
        Lost(*block, position, upto - position, data=False)
        for block, position, upto in zip(lost, places, ends, strict=True)
    ]


def forged(header: bytes, directory: Buffer, crc: int) -> bytes:
    """A packed block header with this checksum over itself and its directory, by a choice of its last four bytes."""
    head = header[8:-4]

    def checksum(last: int) -> int:
        return crc32c(directory, crc32c(last.to_bytes(4, "little"), crc32c(head)))

    base = checksum(0)
    rows = [(checksum(1 << bit) ^ base, 1 << bit) for bit in range(CRC_BITS)]
    wanted, last = crc ^ base, 0
    for bit in reversed(range(CRC_BITS)):  # Gaussian elimination: a checksum is linear in the bytes it covers
        pivot = next(number for number, (value, _bits) in enumerate(rows) if value >> bit & 1)
        value, bits = rows.pop(pivot)
        rows = [(left ^ value, its ^ bits) if left >> bit & 1 else (left, its) for left, its in rows]
        if wanted >> bit & 1:
            wanted, last = wanted ^ value, last ^ bits
    assert checksum(last) == crc, (last, crc)
    return header[:4] + crc.to_bytes(4, "little") + head + last.to_bytes(4, "little")


def stand_ins(
    content: Buffer,
    lost: Sequence[Lost],
    previous_crc: int,
    own_crc: int,
    now_ms: int,
    twins: Mapping[int, Twin] | None = None,
) -> bytes:
    """The bytes of the blocks that stand in for `lost`, which lie side by side. `content`: what lies there now;
    `previous_crc`: the checksum of the block before; `own_crc`: that which the block behind states of the last;
    `twins`: what other replicas have in the place of these blocks, by position. Raises `StorageError` where there is no
    room for that."""
    parts: list[bytes] = []
    view = memoryview(content)
    start = lost[0].position
    for number, block in enumerate(lost):
        kind = KIND_DATA if block.data else KIND_NO_OP
        damaged = view[block.position - start :][: block.length]
        directory, payload, created_ms = kept(damaged, block) or (b"", b"", now_ms)
        twin = (twins or {}).get(block.position)
        if twin is not None:
            kind, created_ms, directory, payload = twin.kind, twin.created_ms, bytes(twin.directory), unpadded(twin)
        if BLOCK_HEADER_BYTES + len(directory) + len(payload) > block.length:
            raise StorageError(
                f"block {block.index} of write group {block.group}: what another replica has of it does not fit where "
                "it lay here; have another node take the place of this one"
            )
        payload += bytes(block.length - BLOCK_HEADER_BYTES - len(directory) - len(payload))
        header, crc = pack_header(
            kind, block.group, block.term, block.index, block.length, len(directory) // DIRECTORY_ROW_BYTES,
            len(payload), 0 if kind == KIND_DATA else crc32c(payload), block.position, start, previous_crc, created_ms,
            directory,
        )  # fmt: skip
        if number == len(lost) - 1:
            header, crc = forged(header, directory, own_crc), own_crc
        else:
            crc = crc32c(directory, crc32c(MARK, crc32c(header[8:-4])))
            header = header[:4] + crc.to_bytes(4, "little") + header[8:-4] + MARK
        parts += [header, directory, payload]
        previous_crc = crc
    return b"".join(parts)


def kept(damaged: Buffer, block: Lost) -> tuple[bytes, bytes, int] | None:
    """Directory and payload of the sound batches of a data block, and its time; None where its directory cannot be
    read."""
    header = block_at(damaged, 0, block.position)
    if header is None or header.kind != KIND_DATA or (header.group, header.index) != (block.group, block.index):
        return None
    directory, payload = directory_and_payload(damaged, header.batch_count)
    rows: list[bytes] = []
    batches: list[bytes] = []
    size = 0
    for row in range(header.batch_count):
        entry = bytes(directory[row * DIRECTORY_ROW_BYTES :][:DIRECTORY_ROW_BYTES])
        if batches_fault(entry, payload) is not None:
            continue
        (fields,) = numpy.frombuffer(entry, DIRECTORY_ROW)
        batch = bytes(payload[int(fields["position"]) :][: int(fields["length"])])
        moved = numpy.frombuffer(bytearray(entry), DIRECTORY_ROW)
        moved["position"] = size
        rows.append(moved.tobytes())
        batches.append(batch)
        size += len(batch)
    return b"".join(rows), b"".join(batches), header.created_ms


def unpadded(twin: Twin) -> bytes:
    """The payload of a block without the zeros behind its batches."""
    if twin.kind != KIND_DATA:
        return bytes(twin.payload).rstrip(b"\0")
    rows = numpy.frombuffer(twin.directory, DIRECTORY_ROW)
    ends = rows["position"].astype(numpy.int64) + rows["length"]
    return bytes(twin.payload[: int(ends.max(initial=0))])


def is_stand_in(header: Buffer) -> bool:
    """Whether these bytes of a sound block's header are a stand-in's."""
    return any(memoryview(header)[BLOCK_HEADER_BYTES - 4 : BLOCK_HEADER_BYTES])


def directory_and_payload(content: Buffer, batch_count: int) -> tuple[memoryview, memoryview]:
    view = memoryview(content)
    end = BLOCK_HEADER_BYTES + batch_count * DIRECTORY_ROW_BYTES
    return view[BLOCK_HEADER_BYTES:end], view[end:]


async def segment_end(files: Files, start: int, end: int) -> int:
    """The end of a stretch that cannot be read, where `end` is the first block behind it, perhaps in the next
    segment: that one's header says where the blocks of the segment before end. 0: it cannot be told."""
    if sequence_of(start) == sequence_of(end):
        return end
    following = await _header(files, sequence_of(start) + 1)
    if following is None or sequence_of(following.previous_end) != sequence_of(start):
        return 0
    return following.previous_end if following.previous_end > start else 0


async def content_crc(files: Files, start: int, end: int) -> int:
    """Checksum of what lies in a stretch of one segment now. Raises OSError, which FileNotFoundError is."""
    file = await files.open(segment_path(sequence_of(start)))
    try:
        crc, offset = 0, offset_of(start)
        while offset < offset_of(end):
            chunk = await file.read(offset, min(CHUNK_BYTES, offset_of(end) - offset))
            if not chunk:
                break
            crc = crc32c(chunk, crc)
            offset += len(chunk)
        return crc
    finally:
        await file.close()


async def stand_in(files: Files, lost: Sequence[Lost], now_ms: int, twins: Mapping[int, Twin] | None = None) -> None:
    """Write the blocks that stand in for `lost`, which lie side by side in one segment, into a journal that no process
    has open; durable on return. `twins` as in `stand_ins`. The segment's index goes, which knows the lost batches, and
    those of all behind it: readers look into memory for what lies behind the last index. Raises `StorageError` if the
    blocks around cannot be read, or what is in `twins` does not fit; OSError."""
    start, end = lost[0].position, lost[-1].position + lost[-1].length
    sequence = sequence_of(start)
    assert start % BLOCK_ALIGNMENT == end % BLOCK_ALIGNMENT == 0, (start, end)
    path = segment_path(sequence)
    file = await files.open(path)
    try:
        first = lost[0]
        around = await read_around(file, StoredPlace(first.group, first.term, first.index, start, end - start))
        own_crc = around.own_crc
        if own_crc is None:
            following = await _header(files, sequence + 1)
            if following is not None and following.previous_end == end:
                own_crc = following.previous_crc
        previous_crc = around.previous_crc
        if previous_crc is None or own_crc is None:
            where = f"{segment_name(sequence)} at byte {offset_of(start)}"
            side = "before" if previous_crc is None else "behind"
            raise StorageError(
                f"{where}: the block {side} what is given up cannot be read, so that nothing can stand in for it; "
                "restore the segment"
            )
        content = await file.read(offset_of(start), end - start)
        if len(content) < end - start:
            content += bytes(end - start - len(content))
        written = stand_ins(content, lost, previous_crc, own_crc, now_ms, twins)
        for name in reversed(await files.names(DIRECTORY)):
            if name.endswith(INDEX) and int(name.removesuffix(INDEX)) >= sequence:
                await files.remove(f"{DIRECTORY}/{name}")
        await file.write(offset_of(start), [written], sync=True)
    finally:
        await file.close()


async def _header(files: Files, sequence: int) -> SegmentHeader | None:
    try:
        file = await files.open(segment_path(sequence))
    except FileNotFoundError:
        return None
    try:
        return SegmentHeader.unpack(await file.read(0, PAGE_BYTES), segment_path(sequence))
    except FormatError:
        return None
    finally:
        await file.close()


assert FIRST_BLOCK % BLOCK_ALIGNMENT == 0
