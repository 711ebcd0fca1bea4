"""How much of a directory's files the page cache holds, and making it let go of them.

Counted per file with mincore(2), so that memory which a system takes through the page cache is seen without needing
a control group, and other users of the machine are not counted. Evicting first writes back what is dirty; pages that
a living process has mapped stay.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

_WINDOW = 1 << 30
"""Mapped at once: bounds the vector of mincore to 256 KiB."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_FAILED = ctypes.c_void_p(-1).value


def resident_bytes(directory: Path) -> int:
    """Bytes of all files below `directory` that are in memory."""
    total = 0
    for path in _files(directory):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue  # removed meanwhile
        try:
            total += _resident(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
    return total


def evict(directory: Path, spare: tuple[str, ...] = ()) -> None:
    """Write back and drop the cached pages of all files below `directory`, except of names that end in `spare`."""
    for path in _files(directory):
        if spare and path.endswith(spare):
            continue
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _resident(descriptor: int, length: int) -> int:
    pages = 0
    for start in range(0, length, _WINDOW):
        size = min(_WINDOW, length - start)
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, start)
        if address == _FAILED:
            continue
        vector = ctypes.create_string_buffer((size + mmap.PAGESIZE - 1) // mmap.PAGESIZE)
        if _libc.mincore(address, size, vector) == 0:
            pages += vector.raw.count(b"\1")
        _libc.munmap(address, size)
    return pages * mmap.PAGESIZE


def _files(directory: Path) -> Iterator[str]:
    for parent, _, names in os.walk(directory):
        for name in names:
            yield os.path.join(parent, name)
