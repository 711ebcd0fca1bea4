"""Memory of large reads: lent to one at a time, for as long as a view of it lives, and lent again."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.storage.disks import disk_reads
from mainstem.storage.disks.chunk_memory import CHUNK_BYTES, ChunkMemory
from mainstem.storage.disks.disk_reads import DirectReads, PiecewiseReads


def address(view: memoryview) -> int:
    import numpy

    return int(numpy.frombuffer(view, numpy.uint8).ctypes.data)


@pytest.mark.parametrize("size", [1, 4096, CHUNK_BYTES - 1, CHUNK_BYTES])
def test_memory_of_the_size_asked_for_begins_at_a_page(size: int) -> None:
    memory = ChunkMemory()
    views = [memory.lend(size) for _ in range(5)]
    assert [len(view) for view in views] == [size] * 5
    assert all(address(view) % 4096 == 0 for view in views)
    assert not any(view.readonly for view in views)


def test_a_chunk_is_lent_again_once_the_last_view_of_it_is_gone() -> None:
    memory = ChunkMemory()
    chunk = memory.lend(CHUNK_BYTES)
    where = address(chunk)
    part = chunk[1000:2000].toreadonly()
    del chunk
    others = [memory.lend(CHUNK_BYTES) for _ in range(8)]
    assert where not in map(address, others)
    assert memory.lent_count == 9
    del part
    assert memory.lent_count == 8
    again = [memory.lend(CHUNK_BYTES) for _ in range(8)]
    assert where in map(address, again)
    assert memory.lent_count == 16


def test_what_is_lent_is_nobody_elses_whatever_comes_back_meanwhile() -> None:
    chance = random.Random(70)
    memory = ChunkMemory(spare_chunks_max=4)
    held: list[tuple[memoryview, bytes]] = []
    for number in range(2_000):
        if held and chance.random() < 0.5:
            view, content = held.pop(chance.randrange(len(held)))
            assert bytes(view) == content
            del view
        else:
            size = chance.randrange(1, 2_000)
            content = number.to_bytes(4, "big") * (size // 4 + 1)
            view = memory.lend(size)
            view[:] = content[:size]
            start = chance.randrange(size)
            held.append((view[start:], content[start:size]))
            del view
        assert memory.lent_count == len(held)
        assert memory.spare_count <= 4
    assert all(bytes(view) == content for view, content in held)


def is_on_huge_pages(view: memoryview) -> bool:
    """Whether Linux was asked for huge pages there (proc(5), smaps: `hg`)."""
    where, inside = address(view), False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            first, last = (int(place, 16) for place in name.split("-"))
            inside = first <= where < last
        elif inside and name == "VmFlags:":
            return "hg" in rest.split()
    raise AssertionError(f"{where:#x} is not mapped")


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a system without huge pages")
def test_new_memory_for_small_steps_is_on_usual_pages_and_goes_first() -> None:
    memory = ChunkMemory()
    stepwise = [memory.lend(CHUNK_BYTES, in_small_steps=True) for _ in range(2)]
    at_once = memory.lend(CHUNK_BYTES)
    assert [is_on_huge_pages(view) for view in [*stepwise, at_once]] == [False, False, True]
    del at_once
    again = memory.lend(CHUNK_BYTES, in_small_steps=True)
    assert is_on_huge_pages(again), "what is there already takes nobody's time"
    others = [again, memory.lend(CHUNK_BYTES)]
    stepwise.clear()
    assert memory.spare_count == 2
    third = memory.lend(CHUNK_BYTES)
    assert is_on_huge_pages(third)
    assert memory.spare_count == 2, "one on usual pages went for a huge one, of which half is spare"
    del again, others, third
    last = [memory.lend(CHUNK_BYTES, in_small_steps=True) for _ in range(5)]
    assert [is_on_huge_pages(view) for view in last] == [True] * 4 + [False], "those on huge pages go first"


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a system without huge pages")
@pytest.mark.parametrize("kind", [PiecewiseReads, DirectReads])
def test_what_is_read_in_pieces_lies_on_usual_pages_and_what_is_read_at_once_on_huge_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[PiecewiseReads | DirectReads]
) -> None:
    monkeypatch.setattr(disk_reads, "_chunks", ChunkMemory())
    (tmp_path / "file").write_bytes(bytes(2 * CHUNK_BYTES))
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        reads = kind(descriptor)
        pieces = memoryview(reads.read_into_chunk(0, CHUNK_BYTES))
        at_once = memoryview(reads.read_at_once(CHUNK_BYTES, CHUNK_BYTES))
        assert [is_on_huge_pages(view) for view in (pieces, at_once)] == [False, True]
    finally:
        os.close(descriptor)


def test_threads_that_lend_and_drop_share_nothing() -> None:
    memory = ChunkMemory(spare_chunks_max=2)
    wrong: list[int] = []
    begun = threading.Barrier(4)

    def work(number: int) -> None:
        begun.wait(PATIENCE_SECONDS)
        before = None
        for _ in range(500):
            view = memory.lend(8_192)
            view[:] = bytes([number]) * 8_192
            if before is not None and bytes(before) != bytes([number]) * 8_192:
                wrong.append(number)
            before = view

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert memory.lent_count == 0
    assert memory.spare_count == 2
