"""Memory that nothing uses goes back to the machine when a phase of work is over."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mainstem.process.free_memory import (
    ARENAS_MAX,
    FREE_BYTES_MIN,
    LOOK_SECONDS,
    SECONDS_MIN,
    FreeMemory,
    ProcessMemory,
    process_memory,
)

MIB = 1 << 20


class Machine:
    def __init__(self) -> None:
        self.resident = 100 * MIB
        self.free = 0
        self.now = 0.0
        self.given = 0
        self.watch = FreeMemory(
            ProcessMemory(lambda: self.resident, lambda: self.free), self._give_back, lambda: self.now
        )

    def _give_back(self, given: Callable[[], object]) -> None:
        self.given += 1
        self.resident -= self.free
        given()

    def look(self, resident: int, free: int) -> bool:
        """Whether a look a second later has memory given back."""
        self.now += 1.0
        self.resident, self.free = resident, free
        before = self.given
        self.watch.look()
        return self.given > before


def test_memory_goes_back_when_a_phase_is_over_and_much_of_it_is_free() -> None:
    machine = Machine()
    assert not machine.look(100 * MIB, 0)
    assert not machine.look(300 * MIB, 190 * MIB), "it grows"
    assert machine.look(300 * MIB, 190 * MIB)
    assert machine.resident == 110 * MIB
    for _ in range(20):
        assert not machine.look(110 * MIB, 190 * MIB), "what was given back counts as free for the allocator"
    assert machine.look(110 * MIB, 230 * MIB), "what was in use has become free"


def test_what_is_in_use_is_left_alone() -> None:
    machine = Machine()
    assert not machine.look(100 * MIB, 0)
    for _ in range(20):
        assert not machine.look(900 * MIB, FREE_BYTES_MIN - 1)
    for number in range(1, 20):
        assert not machine.look((900 + 2 * number) * MIB, 500 * MIB), "it grows"
    assert machine.look((900 + 2 * 19) * MIB, 500 * MIB)


def test_memory_that_comes_and_goes_is_given_back_now_and_then() -> None:
    machine = Machine()
    machine.look(100 * MIB, 0)
    given = sum(machine.look(400 * MIB, 200 * MIB) for _ in range(100))
    assert 1 < given <= 100 / SECONDS_MIN


def test_the_allocator_is_asked_for_a_small_part_of_the_time() -> None:
    now, asked = 0.0, 0

    def free_bytes() -> int:
        nonlocal now, asked
        now += 0.002
        asked += 1
        return 0

    watch = FreeMemory(ProcessMemory(lambda: 100 * MIB, free_bytes), monotonic=lambda: now)
    while now < 3600.0:
        now += LOOK_SECONDS
        watch.look()
    assert 1 < asked < 3600 / 10, "each time the event loop stands for two milliseconds"


def test_a_machine_that_does_not_tell_is_left_alone() -> None:
    FreeMemory(None, lambda _given: pytest.fail("nothing is known")).look()


FREED = """
import ctypes, time
from mainstem.process.free_memory import FreeMemory, process_memory
memory = process_memory()
watch = FreeMemory(memory)
watch.look()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
pieces = [libc.malloc(8192) for _ in range(20_000)]
for piece in pieces:
    ctypes.memset(piece, 1, 8192)
full = memory.resident_bytes()
for number, piece in enumerate(pieces):
    if number % 100:  # the rest stay, so that nothing above them goes back by itself
        libc.free(piece)
kept = memory.resident_bytes()
for _ in range(3_000):
    watch.look()
    if memory.resident_bytes() < kept - 100_000_000:
        break
    time.sleep(0.01)
print(full - kept, kept - memory.resident_bytes())
"""


@pytest.mark.skipif(process_memory() is None, reason="the C library does not tell what it has")
def test_the_allocator_of_this_machine_gives_back_what_it_kept() -> None:
    assert hasattr(ctypes.CDLL(None), "malloc_trim")
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, timeout=60, check=True)
    by_itself, given_back = map(int, done.stdout.split())
    assert by_itself < 10_000_000
    assert given_back > 100_000_000


ALLOCATING = """
import ctypes, sys, threading
from mainstem.process.free_memory import use_few_arenas
if sys.argv[1] == "few":
    use_few_arenas()
libc, told = ctypes.CDLL(None), sys.argv[2]
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
barrier = threading.Barrier(8)

def allocate():
    barrier.wait()
    held = [libc.malloc(5_000) for _ in range(20)]
    barrier.wait()
    for one in held:
        libc.free(one)

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc.fopen.restype, libc.malloc_info.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
libc.fclose.argtypes = (ctypes.c_void_p,)
file = libc.fopen(told.encode(), b"w")
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="only glibc tells of arenas")
def test_threads_share_few_arenas(tmp_path: Path) -> None:
    def arenas(kind: str, **variables: str) -> int:
        told = tmp_path / kind
        inherited = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
        command = [sys.executable, "-c", ALLOCATING, kind, str(told)]
        subprocess.run(command, check=True, env=inherited | variables)
        return told.read_text().count("<heap nr=")

    assert arenas("as usual") > ARENAS_MAX
    assert arenas("few") <= ARENAS_MAX
    assert arenas("few", MALLOC_ARENA_MAX="3") == 3, "whoever starts the process has the last word"
