"""Terms and votes, and how each group began here: read back, or refused."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.files import PowerLoss, SimulatedFiles

from mainstem.kernel import crc32c
from mainstem.model import Buffer
from mainstem.nameserver.disk.starts import Remembers, is_older
from mainstem.ports import File
from mainstem.raft import HardState
from mainstem.storage.errors import FormatError, StorageFailed
from mainstem.storage.write_groups.hard_states import COPY_BYTES, MAGIC, NAME, HardStates


def in_turn(magic: bytes, groups: int, rows: bytes, sequence: int) -> bytes:
    """A copy as versions wrote it that wrote one at a time."""
    content = struct.pack("<IQ", groups, sequence) + rows
    return (magic + struct.pack("<I", crc32c(content)) + content).ljust(COPY_BYTES, b"\0")


def saved(disk: SimulatedFiles, *terms: int, node_id: int = 1) -> None:
    """A file in which node 1 voted for node 2 in each of these terms."""

    async def story() -> None:
        states = await HardStates.open(disk, node_id)
        for term in terms:
            await states.save({group: HardState(term, 2) for group in range(20)})
        await states.close()

    asyncio.run(story())


def read(disk: SimulatedFiles, node_id: int = 1) -> HardState:
    async def story() -> HardState:
        states = await HardStates.open(disk, node_id)
        await states.close()
        return states.of(19)

    return asyncio.run(story())


@pytest.mark.parametrize("nonce", [b"\0bcdefgh", b"\0\0cdef\0\0", b"abcdefg\0", b"\0" * 7 + b"h", b"abcd\0fgh"])
def test_the_start_that_saved_it_is_known_again_whatever_its_nonce_begins_with(nonce: bytes) -> None:
    """Else the file would be taken for an older copy of itself, and the node would have no vote until it is led on."""
    disk = SimulatedFiles(1)

    async def story() -> bytes:
        states = await HardStates.open(disk, 1)
        states.nonce = nonce
        await states.save({0: HardState(3, 2)})
        await states.close()
        again = await HardStates.open(disk, 1)
        await again.close()
        return again.saved_in

    saved_in = asyncio.run(story())
    remembers = Remembers(drawn=[b"another1", nonce], written={NAME: nonce})
    assert saved_in
    assert not is_older(remembers, NAME, saved_in)


COPY_LENGTH = 24 + 20 * 24
"""Of what `saved` writes, but for the seal."""


@pytest.mark.parametrize("place", [0, COPY_BYTES])
def test_a_flipped_bit_in_either_copy_never_brings_an_older_vote_back(place: int) -> None:
    """For any place of it."""
    disk = SimulatedFiles(1)
    saved(disk, 7, 8)

    async def story() -> None:
        for at in range(place * 8, (place + COPY_LENGTH) * 8, 7):
            disk.flip(NAME, at)
            states = await HardStates.open(disk, 1)
            assert states.of(19) == HardState(8, 2), at
            await states.close()
            disk.flip(NAME, at)

    asyncio.run(story())


def test_both_copies_are_on_the_disk_before_anything_is_promised() -> None:
    disk = SimulatedFiles(1)

    async def story() -> None:
        states = await HardStates.open(disk, 1)
        await states.save({0: HardState(7, 2)})
        disk.cut_power(after=1)  # nothing was written since: what is lost was not promised

    asyncio.run(story())
    disk.crash()
    content = disk.content(NAME)
    assert content[:COPY_BYTES] == content[COPY_BYTES:]


def test_the_power_may_go_at_every_step_of_a_save() -> None:
    for cut_after in range(1, 3):
        for seed in range(30):
            disk = SimulatedFiles(seed)
            saved(disk, 7)

            async def vote_again(disk: SimulatedFiles = disk, cut_after: int = cut_after) -> None:
                states = await HardStates.open(disk, 1)
                disk.cut_power(after=cut_after)
                with suppress(PowerLoss):
                    await states.save({group: HardState(8, 3) for group in range(20)})

            asyncio.run(vote_again())
            disk.crash()
            assert read(disk) in (HardState(7, 2), HardState(8, 3))


@pytest.mark.parametrize("killed", [False, True], ids=["power lost", "killed"])
def test_the_power_may_go_in_two_saves_in_a_row(killed: bool) -> None:
    """The second save leaves the copy alone that the first one left whole: the node would have no place in its write
    groups any more. A killed process may have left that copy in memory alone."""
    groups = range(800)  # some pages, so that a save is rarely whole on the disk by chance

    async def vote(disk: SimulatedFiles, term: int, cut_after: int = 0) -> None:
        states = await HardStates.open(disk, 1)
        if cut_after:
            disk.cut_power(after=cut_after)
        with suppress(PowerLoss):
            await states.save(dict.fromkeys(groups, HardState(term, 3)))

    for first_cut, second_cut in product(range(1, 5), repeat=2):
        disk = SimulatedFiles(first_cut * 5 + second_cut)
        asyncio.run(vote(disk, 7))
        asyncio.run(vote(disk, 8, first_cut))
        disk.crash(keep_all=killed)
        asyncio.run(vote(disk, 9, second_cut))
        disk.crash()
        assert read(disk) in (HardState(7, 3), HardState(8, 3), HardState(9, 3))


def test_of_copies_written_in_turn_a_damaged_one_is_refused_with_a_remedy() -> None:
    """The other one may be older than the vote that was given."""
    rows = [struct.pack("<IHHQQ", 0, 0, 0, term, 2) for term in (7, 8)]
    disk = SimulatedFiles(1)
    disk.put(NAME, in_turn(b"MSHARDS2", 1, rows[1], 12) + in_turn(b"MSHARDS2", 1, rows[0], 11))
    whole = disk.content(NAME)
    flipped = whole[:30] + bytes([whole[30] ^ 1]) + whole[31:]
    for content in (flipped, bytes(COPY_BYTES) + whole[COPY_BYTES:]):
        disk.put(NAME, content)
        with pytest.raises(FormatError, match=r"copy at byte 0 is damaged.*mainstem cluster replace"):
            read(disk)
    disk.put(NAME, whole)
    saved(disk, 9)
    disk.flip(NAME, 8 * 30)
    assert read(disk) == HardState(9, 2)


def test_a_version_that_writes_in_turn_may_come_back() -> None:
    """Its copies carry no seal, or one that is not theirs."""
    disk = SimulatedFiles(1)
    saved(disk, 7)
    content = disk.content(NAME)
    rows = b"".join(struct.pack("<IHHQQ", group, 0, 0, 8, 3) for group in range(20))
    older = in_turn(b"MSHARDS2", 20, rows, 2)[:COPY_LENGTH]
    disk.put(NAME, older + content[len(older) :])
    assert read(disk) == HardState(8, 3)
    disk.flip(NAME, 8 * (COPY_BYTES + 30))
    with pytest.raises(FormatError, match="copy at byte 65536 is damaged"):
        read(disk)


def test_the_file_of_another_node_is_refused_by_name() -> None:
    disk = SimulatedFiles(1)
    saved(disk, 7, node_id=2)
    with pytest.raises(FormatError, match="belongs to node 2, this is node 1"):
        read(disk)


def test_a_file_of_zeros_is_not_taken_for_a_new_one() -> None:
    async def zeroed(disk: SimulatedFiles) -> bool:
        states = await HardStates.open(disk, 1)
        await states.close()
        return states.zeroed

    disk = SimulatedFiles(1)
    assert not asyncio.run(zeroed(disk))
    disk = SimulatedFiles(1)
    saved(disk, 7)
    disk.put(NAME, bytes(len(disk.content(NAME))))
    assert asyncio.run(zeroed(disk))


def test_a_replica_that_was_moved_away_is_remembered_with_its_votes_until_another_comes() -> None:
    disk = SimulatedFiles(1)

    async def story() -> None:
        states = await HardStates.open(disk)
        for group, founders in ((0, {1, 2, 3}), (1, ()), (2, ())):
            states.begin(group, founders)
        await states.save({0: HardState(7, 2), 2: HardState(3, 1)})
        for group in (0, 2):
            states.leave(group)
        await states.save({})
        await states.close()
        states = await HardStates.open(disk)
        assert [states.left(group) for group in range(4)] == [True, False, True, False]
        assert [states.came_later(group) for group in range(4)] == [True, True, True, False]
        assert (states.of(0), states.of(2)) == (HardState(7, 2), HardState(3, 1))
        states.begin(0)
        await states.save({})
        await states.close()
        states = await HardStates.open(disk)
        assert (states.left(0), states.came_later(0), states.of(0)) == (False, True, HardState(7, 2))
        assert [states.returned(group) for group in range(3)] == [True, False, False]
        states.begin(0)
        assert states.returned(0), "its node was restarted before it caught up"
        states.caught_up(0)
        await states.save({})
        await states.close()
        states = await HardStates.open(disk)
        assert (states.returned(0), states.came_later(0)) == (False, True)
        await states.close()

    asyncio.run(story())


def test_founders_are_remembered_until_the_replica_leaves() -> None:
    disk = SimulatedFiles(1)

    async def story() -> None:
        states = await HardStates.open(disk)
        states.begin(0, {1, 2, 3})
        states.begin(1, {2})
        states.begin(2)
        await states.save({1: HardState(7, 2)})
        await states.close()
        states = await HardStates.open(disk)
        assert [states.founders(group) for group in range(4)] == [{1, 2, 3}, {2}, set(), set()]
        assert states.of(1) == HardState(7, 2)
        states.leave(0)
        await states.save({})
        await states.close()
        states = await HardStates.open(disk)
        assert [states.founders(group) for group in range(2)] == [set(), {2}]
        await states.close()

    asyncio.run(story())


def test_format_1_is_read_and_knows_no_founders() -> None:
    disk = SimulatedFiles(1)
    rows = struct.pack("<IIQQ", 0, 0, 7, 2) + struct.pack("<IIQQ", 3, 1, 5, 0) + struct.pack("<IIQQ", 4, 2, 6, 1)
    disk.put(NAME, in_turn(b"MSHARDS1", 3, rows, 11) + in_turn(b"MSHARDS1", 3, rows, 10))

    async def story() -> None:
        states = await HardStates.open(disk)
        assert states.sequence == 11
        assert [states.began(group) for group in range(5)] == [True, False, False, True, True]
        assert [states.of(group) for group in (0, 3, 4)] == [HardState(7, 2), HardState(5), HardState(6, 1)]
        assert (states.came_later(3), states.left(4), states.founders(0)) == (True, True, frozenset())
        await states.save({0: HardState(8, 1)})
        await states.close()
        states = await HardStates.open(disk)
        assert (states.of(0), states.came_later(3), states.left(4)) == (HardState(8, 1), True, True)
        await states.close()

    asyncio.run(story())


def test_more_groups_than_there_is_room_for_are_refused() -> None:
    async def story() -> None:
        states = await HardStates.open(SimulatedFiles(1))
        for group in range(2000):
            states.begin(group, {1, 2, 3})
        with pytest.raises(StorageFailed, match="2000 write groups"):
            await states.save({})
        await states.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("magic", "words"),
    [(b"MSHARDS3", "of format MSHARDS3.*start the version that wrote it"), (b"nonsense", "neither copy passes")],
)
def test_what_this_version_cannot_read_is_refused_by_name(magic: bytes, words: str) -> None:
    disk = SimulatedFiles(1)

    async def story() -> None:
        states = await HardStates.open(disk)
        for _ in range(2):
            await states.save({0: HardState(7, 2)})
        await states.close()
        content = disk.content(NAME)
        assert content[:8] == content[COPY_BYTES : COPY_BYTES + 8] == MAGIC
        disk.put(NAME, content.replace(MAGIC, magic))
        with pytest.raises(FormatError, match=f"{NAME}: {words}"):
            await HardStates.open(disk)

    asyncio.run(story())


class OneAtATime:
    """A file whose writes take a while, and must not come together."""

    def __init__(self, file: File) -> None:
        self.read, self.size, self.sync, self.close = file.read, file.size, file.sync, file.close
        self._write = file.write
        self._writes = False

    async def write(self, position: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        assert not self._writes, "two writes at a time could tear both copies"
        self._writes = True
        await asyncio.sleep(0)
        await self._write(position, buffers, sync=sync)
        self._writes = False


def test_saves_that_come_together_are_written_one_after_the_other() -> None:
    """The write loop saves votes, and so do replicas that come, go and come back."""
    disk = SimulatedFiles(1)

    async def story() -> HardStates:
        file: Any = OneAtATime(await disk.open(NAME, create=True))

        async def opened(path: str, *, create: bool) -> Any:
            assert path == NAME
            return file

        files: Any = SimpleNamespace(open=opened)
        states = await HardStates.open(files, 1)
        await asyncio.gather(*(states.save({group: HardState(5, group)}) for group in range(1, 20)))
        return states

    assert asyncio.run(story()).sequence == 19
    assert read(disk) == HardState(5, 19)
