"""Recovery of a small journal: torn at every byte, flipped at every byte, recycled again and again."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from tests.fakes.clock import FakeClock
from tests.fakes.files import PowerLoss, SimulatedFiles
from tests.storage.journal.sample_blocks import (
    SMALL,
    Delivered,
    abandoned,
    command_block,
    data_block,
    flip,
    next_is_taken,
    started,
)

from mainstem.model import Durability
from mainstem.storage.errors import CorruptJournal
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.journal.encoding.blocks import batches_fault
from mainstem.storage.journal.encoding.format import (
    FIRST_BLOCK,
    KIND_DATA,
    PAGE_BYTES,
    SEGMENT_HEADER,
    BlockHeader,
    offset_of,
    position_of,
    sequence_of,
)
from mainstem.storage.journal.encoding.framing import content_length, frame
from mainstem.storage.journal.journal import BlockToWrite, Journal
from mainstem.storage.journal.recovery import Hole
from mainstem.storage.journal.segments.segment_files import index_path, segment_path

ASYNC = JournalConfig(segment_bytes=16384, pool_segments=0, durability=Durability.ASYNC, flush_interval_seconds=999)


def are(delivered: list[Delivered], blocks: list[BlockToWrite]) -> bool:
    return len(delivered) == len(blocks) and all(
        found.is_(block) for found, block in zip(delivered, blocks, strict=True)
    )


async def test_an_empty_directory_is_an_empty_journal() -> None:
    found = await started(SimulatedFiles())
    assert (found.report.end, found.report.blocks, found.journal.segments()) == (0, 0, [])
    await found.journal.close()


# --- torn writes ------------------------------------------------------------------------------------------


def left_behind(files: SimulatedFiles) -> Iterator[tuple[int, SimulatedFiles]]:
    """(bytes kept, disk) for each number of bytes that a power cut may keep of what is not synced. A disk that is the
    same, byte for byte, as that of one byte less is left out: most of a page is zeros, as it was before."""
    before: dict[str, bytes] = {}
    for kept in range(files.unsynced_bytes() + 1):
        disk = files.clone(seed=kept)
        disk.crash(keep_bytes=kept)
        content = {path: disk.content(path) for path in disk.paths()}
        if content != before:
            yield kept, disk
        before = content


async def torn_at_every_byte(before: list[BlockToWrite], last: list[BlockToWrite]) -> None:
    """Write `before`, then `last` in one write whose power goes before its sync; keep its first 0, 1, 2, …
    bytes; recover. Exactly the blocks kept whole come back, and the journal goes on from there."""
    files = SimulatedFiles()
    journal = (await started(files)).journal
    for block in before:
        await journal.write([block])
    page_start = offset_of(journal.end) // PAGE_BYTES * PAGE_BYTES
    ends, offset = [], offset_of(journal.end)
    for block in last:
        ends.append(offset + content_length(block) - page_start)
        offset += -(-content_length(block) // 8) * 8
    files.cut_power(after=2)
    with pytest.raises(PowerLoss):
        await journal.write(last)
    await abandoned(journal)
    for number, (kept, disk) in enumerate(left_behind(files)):
        found = await started(disk)
        whole = sum(end <= kept for end in ends)
        assert are(found.delivered, before + last[:whole]), f"{kept} bytes kept"
        if number % 8 == 0:
            more = command_block(900)
            await found.journal.write([more])
            disk.crash()
            again = await started(disk)
            assert are(again.delivered, [*before, *last[:whole], more]), f"{kept} bytes kept, then written on"
            await again.journal.close()
        await abandoned(found.journal)


async def test_a_write_torn_at_every_byte() -> None:
    await torn_at_every_byte(
        [data_block(1), command_block(2), data_block(3, sizes=(70, 200))],
        [data_block(4, sizes=(61, 90)), command_block(5), data_block(6), command_block(7, size=3)],
    )


async def test_the_first_write_of_a_segment_torn_at_every_byte() -> None:
    before = [data_block(number, sizes=(5900,)) for number in (1, 2)]
    files = SimulatedFiles()
    journal = (await started(files)).journal
    for block in before:
        await journal.write([block])
    await next_is_taken(journal)
    files.cut_power(after=2)  # the write, and the sync is interrupted
    last = [data_block(3, sizes=(300,))]
    with pytest.raises(PowerLoss):
        await journal.write(last)
    await abandoned(journal)
    whole_from = FIRST_BLOCK + content_length(last[0])
    for number, (kept, disk) in enumerate(left_behind(files)):
        found = await started(disk)
        assert are(found.delivered, before + last[: kept >= whole_from]), f"{kept} bytes kept"
        if number % 8 == 0:
            await found.journal.write([command_block(9)])
            await found.journal.close()
            again = await started(disk)
            assert again.indexes() == [*found.indexes(), 9]
            await abandoned(again.journal)
        await abandoned(found.journal)


async def test_what_was_cut_off_never_comes_back() -> None:
    """Under async durability pages reach the disk in any order, so blocks survive behind a lost one. They are
    cut off; when the lost one is written again, byte for byte, they must not follow it. Blocks begin on page
    boundaries here, so that writing the lost one again does not happen to overwrite the next one's header."""
    config = msgspec.structs.replace(ASYNC, segment_bytes=65536)
    first = command_block(1)
    blocks = [data_block(2, sizes=(PAGE_BYTES - 112 - 144,))]
    blocks += [data_block(index, sizes=(PAGE_BYTES - 144,)) for index in range(3, 9)]
    revivable = 0
    for seed in range(60):
        files = SimulatedFiles(seed)
        journal = (await started(files, config)).journal
        await journal.write([first])
        await journal.sync()
        for block in blocks:
            await journal.write([block])
        assert offset_of(journal.end) % PAGE_BYTES == 0
        files.cut_power(after=1)
        with pytest.raises(PowerLoss):
            await journal.sync()
        await abandoned(journal)
        files.crash()
        found = await started(files, config)
        assert are(found.delivered, [first, *blocks][: len(found.delivered)])
        lost = blocks[len(found.delivered) - 1 :]
        revivable += found.report.cut_blocks > 0 and len(lost) == len(blocks)
        if lost:
            await found.journal.write(lost[:1])
            await found.journal.sync()
        await abandoned(found.journal)
        files.crash()
        again = await started(files, config)
        assert again.indexes() == found.indexes() + [block.index for block in lost[:1]]
        await abandoned(again.journal)
    assert revivable > 5, "the seeds must produce blocks that survive behind the first, and would chain to it"


async def test_a_block_that_does_not_continue_the_chain_is_not_delivered() -> None:
    """Right place, valid CRC, and yet written behind another block than the one that is there."""
    files = SimulatedFiles()
    journal = (await started(files, ASYNC)).journal
    first, second = await journal.write([data_block(1), data_block(2)])
    await journal.close()
    other = data_block(7)
    header, buffers = frame(other, first.position, 0, first.previous_crc)
    assert header.length == first.length
    content = bytearray(files.content(segment_path(1)))
    content[FIRST_BLOCK : FIRST_BLOCK + header.length] = b"".join(buffers)
    files.put(segment_path(1), bytes(content))
    found = await started(files, ASYNC)
    assert are(found.delivered, [other])
    assert found.report.end == second.position
    await found.journal.close()


async def test_a_killed_process_loses_nothing_and_what_it_left_is_made_durable() -> None:
    files = SimulatedFiles(3)
    journal = (await started(files, ASYNC)).journal
    blocks = [data_block(index, sizes=(2000,)) for index in range(1, 30)]
    for block in blocks:
        await journal.write([block])
    assert journal.durable_end == 0
    files.crash(keep_all=True)
    await abandoned(journal)
    found = await started(files, ASYNC)
    assert are(found.delivered, blocks)
    assert found.journal.durable_end == found.journal.end
    files.crash()  # now the power goes, before anything more was synced
    again = await started(files, ASYNC)
    assert are(again.delivered, blocks)
    await abandoned(found.journal)
    await abandoned(again.journal)


# --- bit flips --------------------------------------------------------------------------------------------


class SmallJournal:
    """Two segments, written by several writes, with all that recovery must tell apart."""

    def __init__(self) -> None:
        self.files = SimulatedFiles()
        self.blocks: list[BlockToWrite] = []
        self.headers: list[BlockHeader] = []

    async def make(self) -> None:
        journal = (await started(self.files)).journal
        for blocks in (
            [data_block(1), command_block(1, group=1)],
            [data_block(2, sizes=(77, 61)), command_block(2, group=1, size=5)],
            [data_block(3, sizes=(11_000,))],
            [data_block(4), command_block(3, group=1)],
            [command_block(4, group=1), data_block(5), data_block(6)],
        ):
            self.blocks += blocks
            self.headers += await journal.write(blocks)
        await journal.close()
        assert {sequence_of(header.position) for header in self.headers} == {1, 2}

    def vouched(self, without: int | None) -> int:
        """The highest durability claim of all blocks but one."""
        return max(header.durable_position for number, header in enumerate(self.headers) if number != without)

    def expected(self, position: int) -> int | None:
        """How many blocks come back when the byte at `position` is damaged; None: it is corruption."""
        if offset_of(position) < SEGMENT_HEADER.size:
            first = position_of(sequence_of(position), FIRST_BLOCK)
            if self.vouched(None) > first:
                return None
            return sum(header.position < first for header in self.headers)
        for number, (header, block) in enumerate(zip(self.headers, self.blocks, strict=True)):
            if header.position <= position < header.position + content_length(block):
                unseen = header.kind == KIND_DATA and position >= header.payload_position
                if header.end <= self.vouched(number):
                    return len(self.blocks) if unseen else None
                return number
        return len(self.blocks)

    def places(self) -> list[int]:
        """Every byte of headers and blocks, and some of the padding and of what lies behind the blocks."""
        result = []
        for sequence in (1, 2):
            end = max(offset_of(header.end) for header in self.headers if sequence_of(header.position) == sequence)
            offsets = {
                *range(SEGMENT_HEADER.size),
                *range(SEGMENT_HEADER.size, FIRST_BLOCK, 331),
                *range(FIRST_BLOCK, FIRST_BLOCK + 1400),
                *range(FIRST_BLOCK + 1400, end, 101),
                *range(end, SMALL.segment_bytes, 503),
            }
            result += [position_of(sequence, offset) for offset in sorted(offsets)]
        return result


async def test_a_bit_flipped_at_every_byte() -> None:
    """Below the durable mark: refused and named, nothing touched. In the tail: cut off there. In padding: no
    matter. In a batch that was durable: left to its CRC. Never a wrong block."""
    small = SmallJournal()
    await small.make()
    outcomes = {"refused": 0, "cut": 0, "whole": 0}
    for place in small.places():
        disk = small.files.clone(seed=0)
        flip(disk, place, bit=place % 8)
        before = {path: disk.content(path) for path in disk.paths()}
        expected = small.expected(place)
        if expected is None:
            with pytest.raises(CorruptJournal, match=segment_path(sequence_of(place))) as refusal:
                await started(disk)
            assert before == {path: disk.content(path) for path in disk.paths()}
            hit = [
                header.group
                for header, block in zip(small.headers, small.blocks, strict=True)
                if header.position <= place < header.position + content_length(block)
            ]
            assert set(hit) <= refusal.value.groups
            outcomes["refused"] += 1
            continue
        found = await started(disk)
        assert are(found.delivered, small.blocks[:expected]), f"flipped at {place:#x}"
        for delivered in found.delivered:
            header = delivered.header
            if header.kind == KIND_DATA and header.position <= place < header.end:
                payload = await found.journal.read(header.payload_position, header.payload_length)
                damaged = place < header.payload_position + header.payload_length
                assert (batches_fault(delivered.directory, payload) is not None) == damaged
        outcomes["cut" if expected < len(small.blocks) else "whole"] += 1
        await found.journal.close()
    assert min(outcomes.values()) > 100, outcomes


async def test_damage_below_what_a_checkpoint_vouches_for_is_corruption() -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    (header,) = await journal.write([data_block(1)])
    await journal.close()
    flip(files, header.position + 20)
    assert (await started(files.clone(0))).indexes() == []
    for start, durable in ((header.end, 0), (0, header.end)):
        with pytest.raises(CorruptJournal, match=f"{segment_path(1)} at byte {FIRST_BLOCK}"):
            await started(files.clone(0), start=start, durable=durable)


async def test_a_missing_segment_is_named() -> None:
    small = SimulatedFiles()
    journal = (await started(small)).journal
    for index in range(1, 10):
        await journal.write([data_block(index, sizes=(5000,))])
    await journal.close()
    sequences = [segment.sequence for segment in journal.segments()]
    assert sequences == [1, 2, 3, 4, 5]
    for missing, start in ((3, 0), (5, position_of(5, FIRST_BLOCK))):
        disk = small.clone(0)
        await disk.remove(segment_path(missing))
        with pytest.raises(CorruptJournal, match=segment_path(missing)):
            await started(disk, start=start)
    disk = small.clone(0)
    await disk.remove(segment_path(1))
    assert (await started(disk)).indexes() == [3, 4, 5, 6, 7, 8, 9], "the oldest may be missing: it was recycled"


async def test_a_segment_whose_last_block_lies_in_a_hole_ends_where_the_next_one_says() -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    headers = [(await journal.write([data_block(index, sizes=(5000,))]))[0] for index in range(1, 8)]
    await journal.close()
    last = max((header for header in headers if sequence_of(header.position) == 2), key=lambda it: it.position)
    ends = {segment.sequence: segment.end for segment in journal.segments()}
    assert ends[2] == last.end
    flip(files, last.position + 20)
    holes: list[Hole] = []
    again = await Journal.open(files, FakeClock(), SMALL)
    await again.recover(0, lambda *_block: None, step_over=holes.append)
    assert [hole.start for hole in holes] == [last.position]
    assert {segment.sequence: segment.end for segment in again.segments()} == ends
    assert all(segment.sealed for segment in again.segments())
    await again.close()


async def test_a_start_inside_a_block_is_refused() -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    (header,) = await journal.write([data_block(1)])
    await journal.close()
    with pytest.raises(CorruptJournal, match="inside a block"):
        await started(files, start=header.position + 8)


# --- where to start ---------------------------------------------------------------------------------------


async def test_only_blocks_from_the_start_on_are_visited_and_the_chain_goes_on() -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    headers = []
    for index in range(1, 9):
        headers += await journal.write([data_block(index, sizes=(3000,))])
    await journal.close()
    for number, header in enumerate(headers):
        disk = files.clone(0)
        found = await started(disk, start=header.end)
        assert found.indexes() == list(range(number + 2, 9))
        await found.journal.write([command_block(9)])
        await found.journal.close()
        again = await started(disk)
        assert again.indexes() == list(range(1, 10))
        await again.journal.close()


async def test_a_segment_taken_but_never_written_to_is_given_up() -> None:
    files = SimulatedFiles()
    journal = (await started(files)).journal
    await journal.write([data_block(1, sizes=(9000,))])
    await next_is_taken(journal)
    files.cut_power(after=1)  # the write is interrupted
    with pytest.raises(PowerLoss):
        await journal.write([data_block(2, sizes=(9000,))])
    await abandoned(journal)
    files.crash(keep_bytes=0)
    assert segment_path(2) in files.paths()
    for start in (position_of(1, FIRST_BLOCK), position_of(2, FIRST_BLOCK)):
        disk = files.clone(0)
        found = await started(disk, start=start)
        assert found.report.end > position_of(1, FIRST_BLOCK), "the segment before it is the last"
        assert segment_path(2) not in disk.paths()
        await found.journal.close()
    found = await started(files)
    assert found.indexes() == [1]
    assert [segment.sequence for segment in found.journal.segments()] == [1]
    await found.journal.write([data_block(2, sizes=(9000,))])
    await found.journal.close()
    assert (await started(files)).indexes() == [1, 2]


@pytest.mark.parametrize("damaged", [1, 2])
async def test_damage_is_not_taken_for_the_end_of_the_segment_before_one_that_was_taken_ahead(damaged: int) -> None:
    """Of three blocks the second or the last one is damaged, which a checkpoint knows; the next segment has none."""
    files = SimulatedFiles()
    journal = (await started(files)).journal
    headers = [(await journal.write([data_block(index, sizes=(3000,))]))[0] for index in (1, 2, 3)]
    await next_is_taken(journal)
    files.crash(keep_all=True)
    await abandoned(journal)
    assert segment_path(2) in files.paths()
    flip(files, headers[damaged].position)
    with pytest.raises(CorruptJournal, match=f"{segment_path(1)} at byte {offset_of(headers[damaged].position)}"):
        await started(files, durable=headers[2].end)


async def test_an_index_vouches_for_its_segment() -> None:
    """Only durable segments are indexed, so damage at the end of an indexed one is never a torn tail, even when
    no block after it is left to say so."""
    files = SimulatedFiles()
    journal = (await started(files)).journal
    headers = []
    for index in (1, 2):
        headers += await journal.write([data_block(index, sizes=(9000,))])
    await journal.seal_index(1, await journal.scan_directory(1))
    await journal.close()
    flip(files, headers[1].position)  # the only block that claims the first to be durable
    flip(files, headers[0].position)
    with pytest.raises(CorruptJournal, match=segment_path(1)):
        await started(files)


async def test_the_index_of_a_segment_that_is_written_to_again_is_dropped() -> None:
    files = SimulatedFiles()
    found = await started(files)
    await found.journal.write([data_block(1)])
    await found.journal.close()
    files.put(index_path(1), b"of another life")
    again = await started(files)
    assert index_path(1) not in files.paths()
    await again.journal.close()


# --- recycled files ---------------------------------------------------------------------------------------


async def test_blocks_of_a_former_life_are_never_delivered() -> None:
    """Files are recycled over and over while blocks keep their size, so stale blocks lie exactly where the
    next ones would be, whole and with valid CRCs."""
    files = SimulatedFiles(11)
    index = 0
    kept: list[BlockToWrite] = []
    for life in range(30):
        found = await started(files)
        assert are(found.delivered, kept), f"life {life}"
        for _ in range(life % 7 + 1):
            index += 1
            kept.append(data_block(index, sizes=(1800,)))
            await found.journal.write(kept[-1:])
        recycled = await found.journal.recycle(1 << 30)
        first = found.journal.segments()[0].sequence
        if recycled:
            per_segment = [segment.sequence for segment in found.journal.segments()]
            assert per_segment == [first], "all but the newest segment were recycled"
        await abandoned(found.journal)
        files.crash()
        survivors = await started(files)
        kept = kept[len(kept) - len(survivors.delivered) :]
        assert all(sequence_of(block.header.position) >= first for block in survivors.delivered)
        await survivors.journal.close()
    assert first > 5, "segments were recycled again and again"


async def test_a_recycled_file_keeps_its_stale_blocks_behind_the_new_ones() -> None:
    """The premise of the test above: the stale blocks are really there."""
    files = SimulatedFiles()
    journal = (await started(files)).journal
    for index in range(1, 12):
        await journal.write([data_block(index, sizes=(1800,))])
    await next_is_taken(journal)  # the third
    await journal.recycle(2)
    while journal.segments()[-1].sequence < 4:
        index += 1
        await journal.write([data_block(index, sizes=(1800,))])
    content = files.content(segment_path(4))
    stale = BlockHeader.unpack(content, FIRST_BLOCK + 3 * 1944, "stale")
    assert sequence_of(stale.position) == 1
    await journal.close()
    assert (await started(files)).indexes()[-1] == index
