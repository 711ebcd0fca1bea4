"""The four compressions of record batches, and decompression that cannot be made to fill the memory.

* snappy is read raw or in the framing of the Java library ("xerial": a magic, then blocks behind their
  length) and written framed, which is what every client reads.
* lz4 frames are built here from blocks: the library's own frames link their blocks, which Java clients
  refuse.
* The size that comes out of gzip, lz4 and zstd is not known in advance. A buffer is offered that grows
  fourfold until the data fits or the bound is reached, so at most a third of the work is done twice and
  memory follows what the data really needs.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import Any

import cramjam

from mainstem.model import Buffer
from mainstem.protocol.errors import CorruptBatch, RecordsTooLarge, UnsupportedCompression

DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
"""Sixty times the default `max.message.bytes`: more comes out of a batch only if someone means harm."""

INFLATION_RATIO_MAX = 1_000
INFLATED_BYTES_MIN = 4 * 1024 * 1024
"""Bytes to which a batch may inflate that only this node reads: a thousand times its size. Logs that repeat
themselves compress by a few hundred; a result below this bound is never refused, as it costs only some
milliseconds."""

_FIRST_OFFER_BYTES = 64 * 1024  # most batches decompress into this at the first try
_GROWTH = 4

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_VERSIONS = struct.Struct(">ii")  # its version and the oldest compatible one, both 1
_XERIAL_HEADER_BYTES = len(_XERIAL_MAGIC) + _XERIAL_VERSIONS.size
_XERIAL_BLOCK_BYTES = 32 * 1024  # the Java library's default
_XERIAL_LENGTH = struct.Struct(">i")
_XERIAL_BLOCK_COUNTS_BYTES = 1024
"""A smaller block counts for as much: it costs about a microsecond of Python, whatever is in it."""

_LZ4_FRAME_HEAD = b"\x04\x22\x4d\x18\x60\x40\x82"
"""Magic; version 1 with independent blocks; blocks up to 64 KiB; a byte of xxHash-32 over those two."""
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_LENGTH = struct.Struct("<I")
_LZ4_STORED_BIT = 0x80000000  # the block was not worth compressing and stands as it is
_LZ4_END = b"\x00\x00\x00\x00"

_OUTPUT_FULL = "failed to write whole buffer"  # how the library says that the output was too small


class Compression(enum.IntEnum):
    """The codes in a batch's attributes; names as in topic configs, in upper case."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compression_of(code: int) -> Compression:
    """Raises `UnsupportedCompression` for a code that no compression has."""
    try:
        return Compression(code)
    except ValueError:
        raise UnsupportedCompression(f"there is no compression {code}") from None


def compress(compression: Compression, data: bytes) -> bytes:
    """Compress as Kafka clients expect it."""
    if compression is Compression.NONE:
        return data
    if compression is Compression.GZIP:
        return bytes(cramjam.gzip.compress(data))
    if compression is Compression.SNAPPY:
        return _compress_xerial(data)
    if compression is Compression.LZ4:
        return _compress_lz4(data)
    return bytes(cramjam.zstd.compress(data))


def decompress(compression: Compression, data: Buffer, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """Decompress at most `bytes_max` bytes. Raises `RecordsTooLarge` and `CorruptBatch` (whose position
    counts from the start of `data`)."""
    if compression is Compression.NONE:
        return data
    if compression is Compression.SNAPPY:
        if bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            return _decompress_xerial(data, bytes_max)
        return _decompress_raw_snappy(data, bytes_max)
    decompress_into = _DECOMPRESS_INTO[compression]
    offer = min(max(_FIRST_OFFER_BYTES, _GROWTH * len(data)), bytes_max)
    while True:
        output = bytearray(offer)
        try:
            size = decompress_into(data, output)
        except (cramjam.DecompressionError, OSError, ValueError) as problem:
            if str(problem) != _OUTPUT_FULL:
                raise CorruptBatch(f"{compression.name.lower()}: {problem}", 0) from None
        else:
            return memoryview(output)[:size]
        if offer == bytes_max:
            raise RecordsTooLarge(f"records decompress to more than {bytes_max} bytes")
        offer = min(_GROWTH * offer, bytes_max)


_DECOMPRESS_INTO: dict[Compression, Callable[[Any, Any], int]] = {
    Compression.GZIP: cramjam.gzip.decompress_into,
    Compression.LZ4: cramjam.lz4.decompress_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
}


def inflated_bytes_max(compressed_bytes: int) -> int:
    """The most bytes that may come out of a batch of this size when its records are checked."""
    return min(DECOMPRESSED_BYTES_MAX, max(INFLATED_BYTES_MIN, INFLATION_RATIO_MAX * compressed_bytes))


def _compress_xerial(data: bytes) -> bytes:
    out = [_XERIAL_MAGIC, _XERIAL_VERSIONS.pack(1, 1)]
    for position in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[position : position + _XERIAL_BLOCK_BYTES]))
        out += [_XERIAL_LENGTH.pack(len(block)), block]
    return b"".join(out)


def _decompress_xerial(data: Buffer, bytes_max: int) -> bytes:
    view = memoryview(data)
    if len(view) < _XERIAL_HEADER_BYTES:
        raise CorruptBatch("snappy: the framing's header ends early", 0)
    out = bytearray()
    counted = 0
    position = _XERIAL_HEADER_BYTES
    while position < len(view):
        if len(view) - position < _XERIAL_LENGTH.size:
            raise CorruptBatch("snappy: a block's length ends early", position)
        (size,) = _XERIAL_LENGTH.unpack_from(view, position)
        position += _XERIAL_LENGTH.size
        if not 0 <= size <= len(view) - position:
            raise CorruptBatch(f"snappy: a block claims {size} bytes", position)
        before = len(out)
        out += _decompress_raw_snappy(view[position : position + size], bytes_max, counted)
        counted += max(len(out) - before, _XERIAL_BLOCK_COUNTS_BYTES)
        position += size
    return bytes(out)


def _decompress_raw_snappy(data: Buffer, bytes_max: int, bytes_before: int = 0) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if bytes_before + size <= bytes_max:
            return bytes(cramjam.snappy.decompress_raw(data))
    except (cramjam.DecompressionError, OSError, ValueError) as problem:
        raise CorruptBatch(str(problem), 0) from None
    raise RecordsTooLarge(f"records decompress to more than {bytes_max} bytes")


def _compress_lz4(data: bytes) -> bytes:
    out = [_LZ4_FRAME_HEAD]
    for position in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[position : position + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            out += [_LZ4_LENGTH.pack(len(block)), block]
        else:
            out += [_LZ4_LENGTH.pack(len(plain) | _LZ4_STORED_BIT), plain]
    out.append(_LZ4_END)
    return b"".join(out)
