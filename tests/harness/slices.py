"""How long threads keep the processor at a time, as the system tells it."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from pathlib import Path

_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275, "riscv64": 275}
_ATTRIBUTES = struct.Struct("IIQiIQQQ")
_RUNTIME = 5


def has_slices() -> bool:
    """Whether threads have slices of their own here: since Linux 6.12."""
    if sys.platform != "linux" or platform.machine() not in _SCHED_GETATTR:
        return False
    return tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 12)


def slice_of(thread_id: int) -> float:
    """Seconds."""
    room = ctypes.create_string_buffer(_ATTRIBUTES.size)
    number = ctypes.c_long(_SCHED_GETATTR[platform.machine()])
    assert not ctypes.CDLL(None).syscall(number, thread_id, room, _ATTRIBUTES.size, 0)
    return float(_ATTRIBUTES.unpack(room.raw)[_RUNTIME]) / 1e9


def slices_of(name: str) -> list[float]:
    """Of this process's threads that have told the system this name."""
    found = []
    for thread in Path("/proc/self/task").iterdir():
        if (thread / "comm").read_text() == f"{name}\n":
            found.append(slice_of(int(thread.name)))
    return found
