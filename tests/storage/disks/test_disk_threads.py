"""Whose thread does what on a real disk: commits wait for nobody, the event loop waits for no disk."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_SECONDS

from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.disks.disk_thread import DiskThread
from mainstem.storage.journal.journal_map import JournalMap
from mainstem.storage.state import checkpoint as checkpoints
from mainstem.storage.state.queue_image import QueueImage
from mainstem.storage.store_files.run_target import LocalRunTarget


async def busy(thread: DiskThread) -> tuple[threading.Event, asyncio.Task[bool]]:
    """Have a thread of the disk wait until the event is set."""
    over = threading.Event()
    task = asyncio.get_running_loop().create_task(thread.run(over.wait))
    await asyncio.sleep(0)
    return over, task


def test_a_checkpoint_is_written_while_the_thread_of_commits_is_busy(tmp_path: Path) -> None:
    """Its syncs would delay the journal's otherwise."""
    state = checkpoints.State(position=1 << 32, durable=1 << 32, groups={}, journal_map=JournalMap(1).dump(), splits=[])

    async def story() -> None:
        files = DiskFiles(tmp_path)
        over, task = await busy(files.commits)
        try:
            image = QueueImage([], [bytes(24) * 100_000] * 4)
            await asyncio.wait_for(checkpoints.save(files, state, image), PATIENCE_SECONDS)
        finally:
            over.set()
            await task
        loaded = await checkpoints.load(files)
        assert loaded is not None
        assert (loaded.state.position, len(loaded.queues)) == (1 << 32, 9_600_000)
        await files.close()

    asyncio.run(story())


@pytest.mark.parametrize("promises", [False, True], ids=["a thread", "at once where the kernel can"])
def test_a_small_write_without_sync_is_whole_and_never_made_by_the_loop_unless_that_cannot_wait(
    tmp_path: Path, promises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwritev = os.pwritev

    def refused(descriptor: int, buffers: Any, position: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return pwritev(descriptor, buffers, position)

    if not promises:
        monkeypatch.setattr(os, "pwritev", refused)

    async def story() -> None:
        files = DiskFiles(tmp_path)
        file = await files.open("journal/one", create=True)
        over, task = await busy(files.copies)
        writing = asyncio.get_running_loop().create_task(file.write(3, [b"abc", b"def"]))
        for _ in range(5):
            await asyncio.sleep(0)
        at_once = writing.done()
        assert not (at_once and not promises), "the loop wrote it, whatever the disk was doing"
        over.set()
        await asyncio.gather(task, writing)
        assert await file.read(0, 20) == b"\0\0\0abcdef"
        await file.close()
        await files.close()

    asyncio.run(story())


def test_the_directory_of_runs_is_as_durable_as_the_first_run_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    target = LocalRunTarget(tmp_path / "store" / "runs", "one.run")
    target.abandon()
    assert {str(tmp_path), str(tmp_path / "store")} <= set(synced), "both were made"
