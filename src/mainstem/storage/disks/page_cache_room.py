"""Whether a small write without sync would wait for the disk, where the file system makes no promise about that.

ext4 refuses `RWF_NOWAIT` for writes to the page cache (Linux 6.18), so that each small write would go to a thread and
back, which costs several times the write. Linux makes a writer wait once more pages are dirty than the mean of its two
thresholds (`balance_dirty_pages`, mm/page-writeback.c). `/proc/vmstat` shows both and how many are dirty. While less
than half of that is dirty, what is written between two looks fills no such gap. A control group may have narrower
thresholds of its own, which show nowhere: a write that took long is a sign of that, or of a disk that is waited for in
some other way, and small writes go to the thread for a while then.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

LOOK_SECONDS = 0.1
"""A look costs 30 µs."""

ROOM_BYTES_MIN = 256 << 20
"""More than a disk and its neighbours dirty between two looks."""

SLOW_SECONDS = 0.02
"""A write that took longer has waited, and not for its turn among the interpreter's threads alone (5 ms), where it has
no more than…"""

SLOW_BYTES = 2 * 1024 * 1024
"""…so much; of more each of these may take as long. Memory that the host has to give takes 15 ms."""

PAUSE_SECONDS, PAUSE_SECONDS_MAX = 1.0, 300.0
"""How long writes go to the thread after a slow one: twice as long each time, until they were fast for as long."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_COUNTS = re.compile(rb"^nr_(dirty|writeback|dirty_threshold|dirty_background_threshold) (\d+)$", re.MULTILINE)


def room_of_linux() -> int:
    """The bytes that may be written before writers wait, by half of what Linux allows; 0: not known."""
    try:
        with open("/proc/vmstat", "rb", buffering=0) as file:
            counts = dict(_COUNTS.findall(file.read()))
        dirty = int(counts[b"dirty"]) + int(counts[b"writeback"])
        free_run = (int(counts[b"dirty_threshold"]) + int(counts[b"dirty_background_threshold"])) // 2
    except (OSError, KeyError):
        return 0
    return max(0, (free_run // 2 - dirty) * _PAGE_BYTES)


class PageCacheRoom:
    """One for all files that a process writes to a disk."""

    def __init__(
        self, room: Callable[[], int] = room_of_linux, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`room` gives the bytes that may be written now."""
        self._room_now = room
        self._monotonic = monotonic
        self._room = 0
        self._look_at = self._again_at = float("-inf")
        self._pause = PAUSE_SECONDS

    def is_there(self) -> bool:
        """Whether a small write waits for nothing."""
        now = self._monotonic()
        if now < self._again_at:
            return False
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._room = self._room_now()
        return self._room >= ROOM_BYTES_MIN

    def took(self, size: int, seconds: float) -> None:
        """A write of so many bytes took so long."""
        self._room -= size
        if seconds < SLOW_SECONDS * max(1.0, size / SLOW_BYTES):
            return
        now = self._monotonic()
        if now - self._again_at > self._pause:
            self._pause = PAUSE_SECONDS
        self._again_at = now + self._pause
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)
