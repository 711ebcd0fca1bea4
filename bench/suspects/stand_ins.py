"""Stand-ins for a part of the splitter or of a reader: `python -m bench.suspects.stand_ins KIND …`, until killed.
Each takes one resource and as little of the others as it can.

- `burn` takes a core, and touches neither disk nor node.
- `write DIRECTORY MB_PER_S` writes files as a split does: past the page cache, a megabyte at a time, each synced whole.
- `read DIRECTORY MB_PER_S` reads the directory's files over and over, past the page cache.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PIECE = 1 << 20
FILE_BYTES = 64 << 20
FILES_KEPT = 8


def burn() -> None:
    while True:
        pass


def write(directory: Path, bytes_per_s: float) -> None:
    """Files are written once more when there are enough, each from its first byte on."""
    directory.mkdir(parents=True, exist_ok=True)
    piece = memoryview(mmap.mmap(-1, PIECE))
    piece[:] = os.urandom(PIECE)
    wait = _pacer(bytes_per_s)
    for number in _forever(FILES_KEPT):
        path = directory / f"stand-in-{number}"
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o644)
        try:
            for _ in range(FILE_BYTES // PIECE):
                os.write(descriptor, piece)
                wait(PIECE)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


def read(directory: Path, bytes_per_s: float) -> None:
    piece = memoryview(mmap.mmap(-1, PIECE))
    wait = _pacer(bytes_per_s)
    while True:
        for path in sorted(directory.rglob("*")):
            if not path.is_file() or path.stat().st_size < PIECE:
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
            try:
                while count := os.readv(descriptor, [piece]):
                    wait(count)
            finally:
                os.close(descriptor)


def _pacer(bytes_per_s: float) -> Callable[[int], None]:
    """Time in which it was stopped is not made up for."""
    due = time.monotonic()

    def wait(count: int) -> None:
        nonlocal due
        due = max(due + count / bytes_per_s, time.monotonic() - 0.02)
        time.sleep(max(0.0, due - time.monotonic()))

    return wait


def _forever(count: int) -> Iterator[int]:
    while True:
        yield from range(count)


def main() -> None:
    kind, *rest = sys.argv[1:]
    if kind == "burn":
        burn()
    else:
        {"write": write, "read": read}[kind](Path(rest[0]), float(rest[1]) * 1e6)


if __name__ == "__main__":
    main()
