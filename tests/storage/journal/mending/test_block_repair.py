"""A damaged block is made whole from another copy of it, byte for byte, or not at all."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.storage.journal.sample_blocks import command_block, data_block

from mainstem.model import Buffer
from mainstem.storage.journal.encoding.format import position_of
from mainstem.storage.journal.encoding.framing import BlockToWrite, frame
from mainstem.storage.journal.mending.block_repair import Neighbours, Twin, whole
from mainstem.storage.journal.stored_block import StoredPlace

POSITION, PREVIOUS_CRC = position_of(3, 40_000), 0x1234ABCD
ENDS = tuple(position_of(3, 4096 + 8 * number) for number in range(300))
DURABLE = ENDS[-7]
CRC_FIELD = range(4, 8)


def written(block: BlockToWrite) -> tuple[StoredPlace, bytes, Twin, int]:
    """The place of a block, its bytes, what another replica has of it, its CRC."""
    header, buffers = frame(block, POSITION, DURABLE, PREVIOUS_CRC)
    twin = Twin(block.kind, block.created_ms, block.batch_count, block.directory, b"".join(block.payload))
    place = StoredPlace(block.group, block.term, block.index, POSITION, header.length)
    return place, b"".join(bytes(buffer) for buffer in buffers), twin, header.crc


BLOCKS = st.sampled_from([data_block(7, sizes=(100, 700)), command_block(7), data_block(7, sizes=(61,) * 20)])


@settings(max_examples=examples(300))
@given(block=BLOCKS, bit=st.integers(0), known=st.booleans())
def test_any_flipped_bit_is_put_right(block: BlockToWrite, bit: int, known: bool) -> None:
    """Whether or not the neighbours can be read."""
    place, content, twin, crc = written(block)
    bit %= 8 * len(content)
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    around = Neighbours(PREVIOUS_CRC, crc, ENDS) if known else Neighbours(None, None, ())
    found = whole(place, damaged, twin, around)
    if not known and bit // 8 in CRC_FIELD:
        assert found is None, "nothing tells what was right"
    else:
        assert found == content


@settings(max_examples=examples(200))
@given(block=BLOCKS, start=st.integers(0), length=st.integers(1), filler=st.binary(min_size=1, max_size=3))
def test_what_was_overwritten_is_put_right_where_the_neighbours_can_be_read(
    block: BlockToWrite, start: int, length: int, filler: bytes
) -> None:
    place, content, twin, crc = written(block)
    start %= len(content)
    length = min(length, len(content) - start)
    damaged = content[:start] + (filler * length)[:length] + content[start + length :]
    assert whole(place, damaged, twin, Neighbours(PREVIOUS_CRC, crc, ENDS)) == content


@settings(max_examples=examples(100))
@given(block=BLOCKS, at=st.integers(0), bit=st.integers(0, 7), of=st.sampled_from(["directory", "payload"]))
def test_a_copy_that_is_not_the_same_block_is_not_taken(block: BlockToWrite, at: int, bit: int, of: str) -> None:
    """Payloads of data blocks are checked batch by batch, by whoever hands in the twin."""
    place, content, twin, crc = written(block)
    part: Buffer = getattr(twin, of)
    if not len(part) or (of == "payload" and block.batch_count):
        return
    other = bytearray(part)
    other[at % len(other)] ^= 1 << bit
    wrong = twin._replace(directory=bytes(other)) if of == "directory" else twin._replace(payload=bytes(other))
    assert whole(place, content[:-1] + b"x", wrong, Neighbours(PREVIOUS_CRC, crc, ENDS)) is None
