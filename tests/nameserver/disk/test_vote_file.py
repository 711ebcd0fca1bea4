"""Term and vote: never forgotten, never mixed up, damaged copies healed by the whole one."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
from tests.fakes.files import PowerLoss, SimulatedFiles

from mainstem.nameserver.disk.room import Room
from mainstem.nameserver.disk.vote_file import SLOT_BYTES, SLOT_STRIDE_BYTES, DirectoryOwner, Vote, VoteFile
from mainstem.nameserver.errors import MetadataCorrupt, MetadataUnavailable

OWNER = DirectoryOwner(3, bytes(range(16)))
PATH = "metadata/vote"


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def read(disk: SimulatedFiles) -> Vote:
    file = await VoteFile.open(disk)
    assert file.owner == OWNER
    await file.close()
    return file.vote


async def written(disk: SimulatedFiles, *votes: Vote) -> None:
    file = await VoteFile.create(disk, OWNER, Vote(0, None, 0))
    for vote in votes:
        await file.write(vote)
    await file.close()


def test_read_back() -> None:
    disk = SimulatedFiles()
    run(written(disk, Vote(4, 2, 17), Vote(5, None, 18)))
    assert run(read(disk)) == Vote(5, None, 18)


async def votes(disk: SimulatedFiles, cut_after: int, answered: list[Vote]) -> None:
    """`answered` ends with the newest that was, and the one under way behind it."""
    file = await VoteFile.create(disk, OWNER, answered[0])
    disk.cut_power(after=cut_after)
    for term in range(1, 6):
        answered.append(Vote(term, term % 3 + 1, 0))
        await file.write(answered[-1])
        answered[:-1] = []


def test_the_power_may_go_at_every_step() -> None:
    for cut_after in range(1, 40):
        for seed in range(6):
            disk = SimulatedFiles(seed)
            answered = [Vote(0, None, 0)]

            try:
                run(votes(disk, cut_after, answered))
            except PowerLoss:
                disk.crash()
            assert run(read(disk)) in answered[-2:]


@pytest.mark.parametrize("killed_at", range(1, 8))
def test_what_a_killed_process_left_unsynced_is_no_second_copy_yet(killed_at: int) -> None:
    """The machine goes on, the next process finds two copies that look the same, and the power tears the first of them
    when it is written next: then the other one is all there is."""

    async def cut_off(disk: SimulatedFiles, after: int, term: int, known: list[Vote]) -> None:
        file = await VoteFile.open(disk)
        known.append(file.vote)
        disk.cut_power(after=after)
        await file.write(Vote(term, 1, 0))

    for cut_after in range(1, 7):
        disk, known = SimulatedFiles(1), list[Vote]()
        run(written(disk, Vote(1, 1, 0)))
        with suppress(PowerLoss):
            run(cut_off(disk, killed_at, 2, []))
        disk.crash(keep_all=True)
        first = disk.content(PATH)[:SLOT_BYTES]
        with suppress(PowerLoss):
            run(cut_off(disk, cut_after, 3, known))
        is_being_written = disk.content(PATH)[:SLOT_BYTES] != first
        disk.crash(keep_bytes=0)
        if is_being_written:
            disk.flip(PATH, 8 * 20)
        assert run(read(disk)).term >= known[0].term


def test_one_damaged_copy_costs_nothing_and_is_healed() -> None:
    randomness = random.Random(1)
    for slot in (0, SLOT_STRIDE_BYTES):
        for _ in range(40):
            disk = SimulatedFiles()
            run(written(disk, Vote(9, 1, 5)))
            disk.flip(PATH, (slot + randomness.randrange(SLOT_BYTES)) * 8 + randomness.randrange(8))
            assert run(read(disk)) == Vote(9, 1, 5)
            disk.flip(PATH, (SLOT_STRIDE_BYTES - slot + 20) * 8)
            assert run(read(disk)) == Vote(9, 1, 5)


def test_a_damaged_copy_brings_no_older_vote_back_where_the_power_went_right_after_the_promise() -> None:
    for slot in (0, SLOT_STRIDE_BYTES):
        for at in range(0, SLOT_BYTES * 8, 5):
            disk = SimulatedFiles(1)
            run(written(disk, Vote(8, 2, 4), Vote(9, 1, 5)))
            disk.crash(keep_bytes=0)
            disk.flip(PATH, slot * 8 + at)
            assert run(read(disk)) == Vote(9, 1, 5)


def test_a_file_of_zeros_is_called_damaged() -> None:
    disk = SimulatedFiles()
    run(written(disk, Vote(9, 1, 5)))
    disk.put(PATH, bytes(len(disk.content(PATH))))
    with pytest.raises(MetadataCorrupt, match="zeros only: it was damaged"):
        run(read(disk))


def test_two_damaged_copies_are_refused() -> None:
    disk = SimulatedFiles()
    run(written(disk, Vote(9, 1, 5)))
    disk.flip(PATH, 8 * 20)
    disk.flip(PATH, 8 * (SLOT_STRIDE_BYTES + 30))
    with pytest.raises(MetadataCorrupt, match="neither copy"):
        run(read(disk))


def test_after_a_failed_sync_nothing_is_promised_any_more() -> None:
    async def scenario() -> None:
        disk = SimulatedFiles()
        file = await VoteFile.create(disk, OWNER, Vote(1, None, 0))
        disk.fail("sync", nth=2)
        for _ in range(2):
            with pytest.raises(MetadataUnavailable):
                await file.write(Vote(2, 1, 0))
        assert file.vote == Vote(1, None, 0)

    run(scenario())


async def no_pause(_seconds: float) -> None:
    await asyncio.sleep(0)


async def votes_on_a_full_disk(disk: SimulatedFiles, answered: list[Vote]) -> None:
    file = await VoteFile.open(disk)
    room = Room(no_pause, lambda: None)
    for term in range(answered[-1].term + 1, answered[-1].term + 5):
        answered.append(Vote(term, term % 3 + 1, 0))
        await file.write(answered[-1], room.wait)
        answered[:-1] = []
    await file.close()


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_what_finds_no_room_is_written_again_and_the_power_may_go_at_every_step(operation: str) -> None:
    randomness = random.Random(2)
    for cut_after in range(1, 24):
        for seed in range(12):
            disk = SimulatedFiles(seed)
            run(written(disk, Vote(1, 1, 0)))
            answered = [Vote(1, 1, 0)]
            for nth in sorted(randomness.sample(range(1, 12), 3)):
                disk.fail(operation, path=PATH, nth=nth, error=randomness.choice([errno.ENOSPC, errno.EDQUOT]))
            disk.cut_power(after=cut_after)
            with suppress(PowerLoss):
                run(votes_on_a_full_disk(disk, answered))
            disk.crash(keep_bytes=randomness.choice([None, SLOT_BYTES // 2]))
            assert run(read(disk)) in answered[-2:]


def test_the_power_may_go_again_while_the_copies_are_made_the_same() -> None:
    for cut_after in range(1, 26):
        for seed in range(4):
            disk = SimulatedFiles(seed)
            answered = [Vote(0, None, 0)]
            with suppress(PowerLoss):
                run(votes(disk, cut_after, answered))
            disk.crash()
            for second_cut in range(1, 6):
                again = disk.clone(10 * seed + second_cut)
                again.cut_power(after=second_cut)
                with suppress(PowerLoss):
                    run(read(again))
                again.crash(keep_bytes=SLOT_BYTES // 2)
                assert run(read(again)) in answered[-2:]
