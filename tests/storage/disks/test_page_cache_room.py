"""When small writes may be made by the event loop though nobody promises that they do not wait."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mainstem.storage.disks.page_cache_room import (
    LOOK_SECONDS,
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    ROOM_BYTES_MIN,
    SLOW_BYTES,
    SLOW_SECONDS,
    PageCacheRoom,
    room_of_linux,
)


class Cache:
    """A page cache with a clock."""

    def __init__(self) -> None:
        self.bytes = 2 * ROOM_BYTES_MIN
        self.now = 0.0
        self.looks = 0
        self.room = PageCacheRoom(self.look, lambda: self.now)

    def look(self) -> int:
        self.looks += 1
        return self.bytes


def test_what_is_written_between_two_looks_counts() -> None:
    cache = Cache()
    assert cache.room.is_there()
    cache.room.took(ROOM_BYTES_MIN, 0.0)
    assert cache.room.is_there()
    cache.room.took(1, 0.0)
    assert not cache.room.is_there()
    assert cache.looks == 1
    cache.now = LOOK_SECONDS
    assert cache.room.is_there()
    cache.bytes = ROOM_BYTES_MIN - 1
    cache.now = 2 * LOOK_SECONDS
    assert not cache.room.is_there(), "somebody else dirties it"


def test_after_slow_writes_there_is_a_pause_that_grows_until_writes_are_fast_for_as_long() -> None:
    cache = Cache()
    pauses = []
    for _ in range(12):
        assert cache.room.is_there()
        cache.room.took(1, SLOW_SECONDS)
        began = cache.now
        while not cache.room.is_there():
            cache.now += PAUSE_SECONDS / 4
        pauses.append(cache.now - began)
    assert pauses[:3] == [PAUSE_SECONDS, 2 * PAUSE_SECONDS, 4 * PAUSE_SECONDS]
    assert pauses[-1] == PAUSE_SECONDS_MAX
    cache.now += 2 * PAUSE_SECONDS_MAX
    assert cache.room.is_there()
    cache.room.took(1, SLOW_SECONDS)
    cache.now += PAUSE_SECONDS
    assert cache.room.is_there(), "the long ones are forgotten"


def test_much_may_take_longer_than_little() -> None:
    cache = Cache()
    assert cache.room.is_there()
    cache.room.took(3 * SLOW_BYTES, 2.9 * SLOW_SECONDS)
    cache.room.took(1, 0.9 * SLOW_SECONDS)
    assert cache.room.is_there()
    cache.room.took(3 * SLOW_BYTES, 3 * SLOW_SECONDS)
    assert not cache.room.is_there()


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_linux_tells_how_much_may_be_dirty() -> None:
    counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    thresholds = int(counts["nr_dirty_threshold"]) + int(counts["nr_dirty_background_threshold"])
    room = room_of_linux()
    assert room <= thresholds // 4 * os.sysconf("SC_PAGE_SIZE"), "half of their mean at most"
    assert room or int(counts["nr_dirty"]) + int(counts["nr_writeback"]) > thresholds // 8
