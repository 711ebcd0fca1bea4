"""The cost of new files to the machine itself: processor time of writing them into the page cache, and of doing it
again.

    python -m bench.store.new_files --mebibytes 2560 --passes 3

One line per pass, one figure per piece: microseconds of processor time per MiB. A pass writes its pieces as new files
and removes them, so the next pass gets the same memory back. If a piece of the first pass costs ten times one of the
second, the machine is a virtual one whose memory the host gives when it is first touched: any system that writes new
files pays that, at a moment that depends on what ran before. Nothing is synced; the disk is not what is measured."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

PIECE_MEBIBYTES = 256
MEBIBYTE = 1 << 20


def written(path: Path, mebibytes: int) -> float:
    """Microseconds of processor time for each MiB of a new file."""
    content = bytes(MEBIBYTE)
    begun = time.thread_time()
    with path.open("xb", buffering=0) as file:
        for _ in range(mebibytes):
            file.write(content)
    return (time.thread_time() - begun) * 1e6 / mebibytes


def one_pass(directory: Path, mebibytes: int, piece: int = PIECE_MEBIBYTES) -> list[float]:
    """The figure of each piece of `mebibytes` in all; what was written is removed."""
    files = [directory / str(first) for first in range(0, mebibytes, piece)]
    try:
        return [written(file, piece) for file in files]
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=2_560, help="of each pass")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="on the disk to ask about; a temporary one unless said")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for number in range(options.passes):
            figures = one_pass(Path(directory), options.mebibytes)
            print(f"pass {number + 1}, µs per MiB:", " ".join(f"{figure:.0f}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
