"""Gives memory that nothing uses back to the machine.

The C library's allocator keeps what was freed below the smallest piece in use, in an arena for each of several threads:
5 GB of 7 for good, after two thousand connections had closed that did not read their responses; a third of a node's
memory after it had split, merged and read what many queues hold. It gives back what it is asked to. So when a phase of
work that took memory is over, and a good part of that is free, it is asked, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Between looks. A look costs some microseconds while memory stays as it is."""

FREE_BYTES_MIN = 32 * 1024 * 1024
"""Worth giving back: the machine takes some milliseconds for that, and as many to hand it out again."""

GROWING_BYTES = 1024 * 1024
"""Memory that has grown by more since the last look is being used."""

ASKING_SHARE = 10_000
"""Asking the allocator what is free takes at most one part in so many of the time: it walks over all free pieces, and
the event loop, which asks, stands meanwhile. In a node that publishes at half load that is 1 to 2 ms: every ten to
twenty seconds, not every second."""

SECONDS_MIN = 5.0
"""Between two times: where memory comes and goes all the time it is handed out again at most so often."""


ARENAS_MAX = 4
"""Of glibc's allocator. It makes eight for each core, so that threads do not wait for each other; the threads of a node
hold the interpreter's lock while they allocate, and each arena keeps what was freed in it. With a million stored queues
that was 30 MB of 316; two arenas give back 18 more."""

_M_ARENA_MAX = -8
"""Of `mallopt`, in glibc's `malloc.h`."""


def use_few_arenas() -> None:
    """Have the allocator of this process use few arenas from now on, unless MALLOC_ARENA_MAX says how many."""
    mallopt = getattr(
        ctypes.CDLL(None), "mallopt", None
    )  # only glibc's knows arenas; others pass over what they do not
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, ARENAS_MAX)


def give_memory_back(given: Callable[[], object] = lambda: None) -> None:
    """Have the allocator give unused memory back to the machine, in a thread of its own, which calls `given` then."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it, and only glibc needs it
    if trim is None:
        return

    def run() -> None:
        trim(0)
        given()
        log.debug("memory that nothing uses was given back to the machine")

    threading.Thread(target=run, name="give memory back", daemon=True).start()


class AllocatedMemory(ctypes.Structure):
    """`struct mallinfo2` of glibc, in bytes."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


class ProcessMemory(NamedTuple):
    """The facts about this process's memory, asked for when it is needed."""

    resident_bytes: Callable[[], int]
    free_bytes: Callable[[], int]
    """That the allocator has, and nothing uses. Some of it may have been given back."""


def process_memory() -> ProcessMemory | None:
    """That of this process; None where the machine or the C library does not tell."""
    statm, ask = Path("/proc/self/statm"), getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None or not statm.exists():
        return None
    ask.restype = AllocatedMemory
    return ProcessMemory(
        lambda: int(statm.read_bytes().split()[1]) * mmap.PAGESIZE, lambda: int(ask().fordblks)
    )  # fmt: skip


class FreeMemory:
    """Watches for memory to give back."""

    def __init__(
        self,
        memory: ProcessMemory | None,
        give_back: Callable[[Callable[[], object]], object] = give_memory_back,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory = memory
        self._give_back = give_back
        self._monotonic = monotonic
        self._resident = 0
        """At the last look."""
        self._left: int | None = None
        """Resident once memory had been given back, or the least since; None: nothing is known yet."""
        self._free_left = 0
        """Of the allocator, likewise: part of it may have been given back."""
        self._ask_at = 0.0
        self._given_at: float | None = None

    async def watch(self) -> None:
        """Look every second until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Have memory given back if more is resident, or free, than the last time left, no more of it than a moment
        ago, and enough of it is free."""
        if self._memory is None:
            return
        resident = self._memory.resident_bytes()
        grows = resident > self._resident + GROWING_BYTES
        self._resident = resident
        if self._left is None or resident < self._left:
            self._left = resident
        now = self._monotonic()
        if grows or now < self._ask_at or (self._given_at is not None and now - self._given_at < SECONDS_MIN):
            return
        free = self._memory.free_bytes()
        self._ask_at = now + ASKING_SHARE * (self._monotonic() - now)
        self._free_left = min(self._free_left, free)
        if free < FREE_BYTES_MIN or max(resident - self._left, free - self._free_left) < FREE_BYTES_MIN:
            return
        self._given_at, self._free_left = now, free
        self._give_back(self._given)

    def _given(self) -> None:
        if self._memory is not None:
            self._left = self._memory.resident_bytes()
