"""Ways of a file from a disk into a socket, without a node: which costs the processor least.

    python -m bench.store.reads.reading_ways --mebibytes 512 --rounds 5

A file that is not in the page cache goes to a reader on another core, a MiB at a time, over the loopback: as a node
reads old data (past the page cache, checksum, `send`), by `sendfile` with the kernel reading ahead as it does by
itself, and by `sendfile` of what was asked for 8 MiB ahead; and by `sendfile` once more when the page cache has it all.
The ways take turns, round by round. A line each: the sender's milliseconds of processor time per megabyte and its
megabytes per second, medians, with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench import page_cache
from mainstem.kernel import crc32c
from mainstem.storage.disks.disk_reads import open_for_pieces

MEBIBYTE = 1 << 20
PIECE_BYTES = 256 << 10
"""Of one `send`: what a connection writes in a turn of a node's loop."""
EXTENT_BYTES = 64 << 10
"""Of one checksum."""
AHEAD_BYTES = 8 << 20

Way = Callable[[Path, int, socket.socket], None]


def checked(path: Path, size: int, peer: socket.socket) -> None:
    """Past the page cache into memory, where every extent is checked, and by a copy to the socket."""
    file = open_for_pieces(path, cold=True)
    try:
        for position in range(0, size, MEBIBYTE):
            chunk = memoryview(file.read_at_once(position, MEBIBYTE))
            for start in range(0, len(chunk), EXTENT_BYTES):
                crc32c(chunk[start : start + EXTENT_BYTES])
            for start in range(0, len(chunk), PIECE_BYTES):
                peer.sendall(chunk[start : start + PIECE_BYTES])
    finally:
        os.close(file.descriptor)


def sent(path: Path, size: int, peer: socket.socket, *, ahead: bool = False) -> None:
    """From the page cache, where the kernel puts it, to the socket without a copy and without a look at it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        position = 0
        while position < size:
            if ahead and position % MEBIBYTE == 0:
                os.posix_fadvise(descriptor, position + AHEAD_BYTES, MEBIBYTE, os.POSIX_FADV_WILLNEED)
            left = min(PIECE_BYTES, MEBIBYTE - position % MEBIBYTE, size - position)
            position += os.sendfile(peer.fileno(), descriptor, position, left)
    finally:
        os.close(descriptor)


def sent_ahead(path: Path, size: int, peer: socket.socket) -> None:
    sent(path, size, peer, ahead=True)


WAYS: dict[str, tuple[Way, bool]] = {
    "read, checked and sent, as a node does": (checked, True),
    "sendfile, the kernel reads ahead": (sent, True),
    "sendfile, asked for 8 MiB ahead": (sent_ahead, True),
    "sendfile, in the page cache": (sent, False),
}
"""And whether the file is evicted first."""


def measured(way: Way, path: Path, size: int, cores: tuple[int, int]) -> tuple[float, float]:
    """Milliseconds of processor time per MB of who sends, and MB per second."""
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if not child:
        _take_all(listener.getsockname()[1], cores[1])
    peer, _address = listener.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    os.sched_setaffinity(threading.get_native_id(), {cores[0]})
    cpu, clock = time.thread_time(), time.perf_counter()
    way(path, size, peer)
    spent, seconds = time.thread_time() - cpu, time.perf_counter() - clock
    peer.close()
    listener.close()
    os.waitpid(child, 0)
    return 1e9 * spent / size, size / 1e6 / seconds


def _take_all(port: int, core: int) -> None:
    """In a process of its own: read all there is and drop it in the kernel, as the bench's load does."""
    os.sched_setaffinity(0, {core})
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while connection.recv(PIECE_BYTES, socket.MSG_TRUNC):
            pass
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="on the disk to read from; a temporary one unless said")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    pair = (cores[0], cores[-1])
    size = options.mebibytes * MEBIBYTE
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        path = Path(directory) / "file"
        with path.open("wb") as file:
            for _ in range(options.mebibytes):
                file.write(os.urandom(MEBIBYTE))
        for _ in range(options.rounds):
            for name, (way, cold) in WAYS.items():
                if cold:
                    page_cache.evict(path.parent)
                else:
                    path.read_bytes()
                found[name].append(measured(way, path, size, pair))
    for name, rounds in found.items():
        costs, rates = zip(*rounds, strict=True)
        print(f"{name:40}{_spread(costs, 3)} ms/MB {_spread(rates, 0)} MB/s")


def _spread(values: tuple[float, ...], digits: int) -> str:
    return f"{statistics.median(values):9.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


if __name__ == "__main__":
    main()
