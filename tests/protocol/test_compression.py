"""Compressed records: what other libraries write and read, and data that wants to fill the memory."""

from __future__ import annotations

import gzip
import tracemalloc

import cramjam
import pytest
from aiokafka import codec as aiokafka_codec
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.protocol.errors import CorruptBatch, RecordsTooLarge
from mainstem.protocol.records.compression import Compression, compress, decompress

REAL = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
THEIR_ENCODERS = {
    Compression.GZIP: aiokafka_codec.gzip_encode,
    Compression.SNAPPY: aiokafka_codec.snappy_encode,
    Compression.LZ4: aiokafka_codec.lz4_encode,
    Compression.ZSTD: aiokafka_codec.zstd_encode,
}
THEIR_DECODERS = {
    Compression.GZIP: aiokafka_codec.gzip_decode,
    Compression.SNAPPY: aiokafka_codec.snappy_decode,
    Compression.LZ4: aiokafka_codec.lz4_decode,
    Compression.ZSTD: aiokafka_codec.zstd_decode,
}
SAMPLES = [b"x", b"hello " * 3, bytes(32 * 1024), bytes(range(256)) * 1000, b"ab" * 500_000]

payloads = st.binary(min_size=1, max_size=3000) | st.sampled_from(SAMPLES)


@pytest.mark.parametrize("compression", REAL)
@given(data=payloads)
@settings(max_examples=30, deadline=None)
def test_both_ways_with_another_library(compression: Compression, data: bytes) -> None:
    ours = compress(compression, data)
    assert bytes(decompress(compression, ours)) == data
    assert bytes(THEIR_DECODERS[compression](ours)) == data
    theirs = bytes(THEIR_ENCODERS[compression](data))
    assert bytes(decompress(compression, memoryview(theirs))) == data


def test_raw_snappy_is_read_too() -> None:
    raw = bytes(aiokafka_codec.snappy_encode(b"hello " * 100, xerial_compatible=False))
    assert decompress(Compression.SNAPPY, raw) == b"hello " * 100


def test_lz4_blocks_are_independent() -> None:
    """Bit 5 of the frame's flags; Java clients refuse frames without it."""
    frame = compress(Compression.LZ4, bytes(200_000))
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0x20


def test_gzip_of_several_members() -> None:
    assert bytes(decompress(Compression.GZIP, gzip.compress(b"one") + gzip.compress(b"two"))) == b"onetwo"


def test_nothing_is_done_without_compression() -> None:
    data = b"as it is"
    assert compress(Compression.NONE, data) is data
    assert decompress(Compression.NONE, data) is data


@pytest.mark.parametrize("compression", REAL)
def test_a_bomb_is_stopped_at_the_bound(compression: Compression) -> None:
    bound = 1 << 20
    bomb = compress(compression, bytes(32 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(RecordsTooLarge, match=str(bound)):
            decompress(compression, bomb, bound)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * bound


def test_a_snappy_header_that_lies_about_its_size() -> None:
    with pytest.raises(RecordsTooLarge):
        decompress(Compression.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(20))


@pytest.mark.parametrize("compression", REAL)
def test_exactly_the_bound_is_allowed(compression: Compression) -> None:
    data = bytes(100_000)
    assert len(decompress(compression, compress(compression, data), len(data))) == len(data)
    with pytest.raises(RecordsTooLarge):
        decompress(compression, compress(compression, data), len(data) - 1)


@pytest.mark.parametrize("compression", REAL)
def test_truncated_data(compression: Compression) -> None:
    whole = compress(compression, b"hello " * 50)
    for size in range(1, len(whole)):
        try:
            partial = decompress(compression, whole[:size])
        except CorruptBatch:
            continue
        assert bytes(partial) != b"hello " * 50  # snappy may end between two blocks


@pytest.mark.parametrize(
    "tail", [b"\x00", b"\x00\x00\x00\x09abc", b"\xff\xff\xff\xff", b"\x00\x00\x00\x03\xff\xff\xff"]
)
def test_bad_snappy_blocks(tail: bytes) -> None:
    framed = compress(Compression.SNAPPY, b"hello")
    with pytest.raises(CorruptBatch):
        decompress(Compression.SNAPPY, framed + tail)
    with pytest.raises(CorruptBatch):
        decompress(Compression.SNAPPY, framed[:12])


def test_the_library_still_says_that_an_output_is_too_small_in_the_words_we_know() -> None:
    with pytest.raises(cramjam.DecompressionError, match=r"^failed to write whole buffer$"):
        cramjam.zstd.decompress_into(cramjam.zstd.compress(bytes(100)), bytearray(10))
