"""Segments on a real disk that another process has leased or mapped, while the journal recycles them."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.storage.journal.sample_blocks import SMALL, data_block, next_is_taken, started

from mainstem.model import Sample
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.journal.encoding.format import SEGMENT_HEADER, SegmentHeader, segment_name
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal.segments.segment_files import DIRECTORY

HOLDER = """
import fcntl, mmap, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
assert os.fstat(descriptor).st_ino == os.stat(sys.argv[1]).st_ino
view = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
print("leased", flush=True)
for _line in sys.stdin:
    sys.stdout.write(view[:].hex() + "\\n")
    sys.stdout.flush()
"""


class Holder:
    """A process that holds a lease on a segment and can be asked for the bytes it has mapped."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "leased\n"

    def content(self) -> bytes:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return bytes.fromhex(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


async def write_on(journal: Journal, segments: int) -> None:
    """Write until so many more segments were begun."""
    first = journal.segments()[-1].sequence if journal.segments() else 0
    index = 1
    while not journal.segments() or journal.segments()[-1].sequence < first + segments:
        await journal.write([data_block(index, sizes=(7000,))])
        index += 1


def counters(journal: Journal) -> dict[str, float]:
    return {
        sample.name.removeprefix("mainstem_journal_segments_"): sample.value
        for sample in journal.samples()
        if isinstance(sample, Sample)
    }


def pooled(root: Path) -> list[str]:
    return [name for name in os.listdir(root / DIRECTORY) if name.endswith(".free")]


async def test_a_leased_segment_is_never_overwritten(tmp_path: Path) -> None:
    files = DiskFiles(tmp_path)
    journal = (await started(files)).journal
    await write_on(journal, 4)
    path = tmp_path / DIRECTORY / segment_name(2)
    before = path.read_bytes()
    holder = Holder(path)
    try:
        assert await journal.recycle(4) == [1, 2, 3]
        assert counters(journal)["leased_total"] == 1
        assert counters(journal)["recycled_total"] == 2
        assert len(pooled(tmp_path)) == 2
        assert not path.exists()
        await write_on(journal, 6)
        assert holder.content() == before, "the reader goes on with what it had"
    finally:
        holder.kill()
    await journal.close()
    await files.close()


async def test_a_lease_ends_with_its_process(tmp_path: Path) -> None:
    files = DiskFiles(tmp_path)
    journal = (await started(files)).journal
    await write_on(journal, 2)
    holder = Holder(tmp_path / DIRECTORY / segment_name(1))
    holder.kill()
    assert await journal.recycle(2) == [1]
    assert counters(journal)["leased_total"] == 0
    assert len(pooled(tmp_path)) == 1
    await journal.close()
    await files.close()


async def test_a_file_leased_over_a_restart_is_not_reused(tmp_path: Path) -> None:
    """The node is killed between renaming a segment and locking it, while a reader has it mapped."""
    files = DiskFiles(tmp_path)
    journal = (await started(files)).journal
    await write_on(journal, 3)
    await journal.close()
    path = tmp_path / DIRECTORY / segment_name(1)
    before = path.read_bytes()
    holder = Holder(path)
    try:
        os.rename(path, tmp_path / DIRECTORY / "9.free")
        journal = (await started(files)).journal
        assert pooled(tmp_path) == []
        await write_on(journal, 5)
        assert holder.content() == before
    finally:
        holder.kill()
    await journal.close()
    await files.close()


async def test_a_reader_that_comes_too_late_notices(tmp_path: Path) -> None:
    """It opened the file while it was a segment, and locks it when it is one again, under another name."""
    files = DiskFiles(tmp_path)
    journal = (await started(files)).journal
    await write_on(journal, 2)
    path = tmp_path / DIRECTORY / segment_name(1)
    descriptor = os.open(path, os.O_RDONLY)
    view = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    await next_is_taken(journal)  # the third
    await journal.recycle(2)
    await write_on(journal, 2)
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    inode = os.fstat(descriptor).st_ino
    assert not path.exists(), "the path no longer names it"
    assert inode == (tmp_path / DIRECTORY / segment_name(4)).stat().st_ino, "it was reused, as it may be"
    assert SegmentHeader.unpack(view[: SEGMENT_HEADER.size], "mapped").sequence == 4, "and says so first of all"
    assert len(view) == SMALL.segment_bytes
    view.close()
    os.close(descriptor)
    await journal.close()
    await files.close()
