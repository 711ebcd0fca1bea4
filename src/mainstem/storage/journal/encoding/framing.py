"""Frames the blocks that write groups want stored, and joins their bytes into the buffers of one write. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import google_crc32c

from mainstem.model import Buffer
from mainstem.storage.journal.encoding.format import (
    BLOCK_HEADER_BYTES,
    DIRECTORY_ROW_BYTES,
    KIND_DATA,
    KINDS,
    BlockHeader,
    aligned,
    pack_header,
)

SMALL_BUFFER_BYTES = 4096
"""Buffers below this size are copied together: cheaper than one more entry of a vectored write (1,024 at most)."""

SMALL_WRITE_BYTES = 16 * 1024
"""A write up to this size is copied together as a whole: a microsecond, less than looking at its buffers one by one."""


class BlockToWrite(NamedTuple):
    """A block without its place. The buffers are not copied: they stay unchanged until `write` returns."""

    kind: int
    group: int
    term: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which is never called on a block
    directory: Buffer
    """`batch_count` rows of `DIRECTORY_ROW`."""
    batch_count: int
    payload: Sequence[Buffer]
    created_ms: int


def size_of(buffer: Buffer) -> int:
    """Bytes in a buffer; `len` counts items, which are not always bytes."""
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def content_length(block: BlockToWrite) -> int:
    """Header, directory and payload in bytes, without padding."""
    length = BLOCK_HEADER_BYTES + block.batch_count * DIRECTORY_ROW_BYTES
    for part in block.payload:
        length += size_of(part)
    return length


def frame(
    block: BlockToWrite, position: int, durable_position: int, previous_crc: int, content: int | None = None
) -> tuple[BlockHeader, list[Buffer]]:
    """The block's header for this place in the chain, and its bytes as buffers to be written in order. `content` is its
    `content_length`, where that is known."""
    assert block.kind in KINDS, block.kind
    directory_length = block.batch_count * DIRECTORY_ROW_BYTES
    assert size_of(block.directory) == directory_length, "directory and batch count differ"
    assert block.kind == KIND_DATA or not block.batch_count, "only data blocks have a directory"
    content = content_length(block) if content is None else content
    length = aligned(content)
    payload_crc = 0
    if block.kind != KIND_DATA:
        for part in block.payload:
            payload_crc = google_crc32c.extend(payload_crc, bytes(part))
    unsigned = (
        block.kind,
        block.group,
        block.term,
        block.index,
        length,
        block.batch_count,
        content - BLOCK_HEADER_BYTES - directory_length,
        payload_crc,
        position,
        durable_position,
        previous_crc,
        block.created_ms,
    )
    packed, crc = pack_header(*unsigned, block.directory)
    buffers: list[Buffer] = [packed, block.directory, *block.payload, bytes(length - content)]
    return BlockHeader(*unsigned, crc), buffers


def joined(buffers: Sequence[Buffer], length: int) -> list[Buffer]:
    """The same `length` bytes, with neighbouring small buffers copied together and empty buffers left out."""
    if 0 < length <= SMALL_WRITE_BYTES:
        return [b"".join(buffers)]
    result: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in buffers:
        size = size_of(buffer)
        if not size:
            continue
        if size < SMALL_BUFFER_BYTES:
            small.append(buffer)
            continue
        if small:
            result.append(b"".join(small))
            small = []
        result.append(buffer)
    if small:
        result.append(b"".join(small))
    return result


def last_bytes(buffers: Sequence[Buffer], count: int) -> bytes:
    """The last `count` bytes of what the buffers hold together."""
    parts: list[bytes] = []
    for buffer in reversed(buffers):
        if count <= 0:
            break
        part = bytes(memoryview(buffer).cast("B")[-count:])
        parts.append(part)
        count -= len(part)
    assert count <= 0, "fewer bytes than asked for"
    return b"".join(reversed(parts))
