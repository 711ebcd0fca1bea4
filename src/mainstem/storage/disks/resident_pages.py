"""Asks the operating system (mincore) whether it has a part of a file in memory, without reading any of it.

A read that must not wait (`RWF_NOWAIT`) does not serve for that: it starts reading the missing pages. Where the system
cannot be asked the answer is yes, so that the file is read in the usual way.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

_FAILED = ctypes.c_void_p(-1).value
_RESIDENT = b"\1"
"""The lowest bit of each page's byte; Linux leaves the others 0."""


def _library() -> Any:
    """The C library, called without letting go of the interpreter: a microsecond each."""
    library = ctypes.PyDLL(None)
    try:
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        library.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    except AttributeError:
        return None
    return library


_C = _library()


def all_resident(descriptor: int, position: int, length: int) -> bool:
    """Whether all pages of a stretch are in memory. `position` is a multiple of the page size."""
    if _C is None:
        return True
    address = _C.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, position)
    if address == _FAILED:
        return True
    pages = -(-length // mmap.PAGESIZE)
    found = ctypes.create_string_buffer(pages)
    try:
        asked = _C.mincore(address, length, found) == 0
    finally:
        _C.munmap(address, length)
    return not asked or found.raw.count(_RESIDENT) == pages
