"""Reads and writes of a disk, by threads that need the interpreter as rarely as can be.

A thread that comes back from the disk waits until it has the interpreter, which the event loop of a busy node holds for
tenths of a millisecond, and then holds the event loop up itself. Compiled, `DurableWriter` has a thread that never
needs it, and `fill_pieces` waits for it once, however many pieces there are. Here every step does.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Iterable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

from mainstem.kernel.layout import VECTOR_BUFFERS_MAX
from mainstem.model import Buffer

VECTOR_BYTES_MAX = 1 << 30
"""A single write of 2 GiB or more is cut short by the kernel; this stays clear of it."""

NO_PROMISE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


ZEROS_PIECE_BYTES = 128 * 1024
"""Zeros written at once: 20 µs of copying, 0.3 ms where the memory has to be found first."""


class _Write(NamedTuple):
    descriptor: int
    position: int
    buffers: Sequence[Buffer]
    whole_file: bool
    zeros: int = 0
    """Above 0: so many are written in place of the buffers, without sync."""


class DurableWriter:
    """A thread that makes durable writes, or writes zeros, one after the other. It starts with the first; `close` ends
    it, and the next write starts another. All calls are for one thread at a time."""

    def __init__(self, name: str = "disk-commit", nice: int = 0) -> None:
        """`nice` is added to the nice value of whoever has the thread start; compiled alone, as a thread that needs the
        interpreter must not wait for the processor while it has it."""
        self._name = name
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """A descriptor, which is readable while `over` has something to tell, and now and then when it has nothing."""
        self._given: SimpleQueue[_Write | None] = SimpleQueue()
        self._over: deque[int] = deque()
        self._thread: Thread | None = None

    def __del__(self) -> None:
        if self._thread is None:
            os.close(self.wake)

    def begin(self, descriptor: int, position: int, buffers: Iterable[Buffer], whole_file: bool = False) -> None:
        """Have buffers written, one behind the other, and on the disk; with `whole_file` also all that was written to
        the file before. The buffers, and what is in them, stay as they are until `over` has told of the write.
        `descriptor` below 0: nothing is done, behind what was given before."""
        if self._thread is None:
            self._start()
        self._given.put(_Write(descriptor, position, [memoryview(buffer) for buffer in buffers], whole_file))

    def begin_zeros(self, descriptor: int, position: int, count: int) -> None:
        """Have zeros written, without sync, in pieces: a thread that wants the processor waits for one of these."""
        if self._thread is None:
            self._start()
        self._given.put(_Write(descriptor, position, (), False, count))

    def over(self) -> list[int]:
        """The writes that are over since the last call, in the order in which they began: 0, or the errno of each."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake)
        return [self._over.popleft() for _ in range(len(self._over))]

    def _start(self) -> None:
        # a process that ends without `close` must not wait for it for ever
        work = (self._given, self._over, self.wake)
        self._thread = Thread(target=_work, args=work, name=self._name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, once what it was given is over; `over` tells of it still."""
        if self._thread is not None:
            self._given.put(None)
            self._thread.join()
            self._thread = None


def sync_file(descriptor: int) -> None:
    """Return once all that was written to a file is on the disk. Raises OSError. Compiled, the disk is given a piece of
    the file at a time, so that another thread that wants the processor waits for one of these."""
    os.fdatasync(descriptor)


def fill_pieces(descriptor: int, memory: Buffer, position: int, piece_bytes: int, page_bytes: int) -> int:
    """Fill memory from a place of a file on, `piece_bytes` in each read, up to the end of the file. Returns how many
    bytes there were. A read that ends in mid-page is the last. Raises `OSError`."""
    view = memoryview(memory).cast("B")
    filled = 0
    while filled < len(view):
        count = os.preadv(descriptor, [view[filled : filled + piece_bytes]], position + filled)
        filled += count
        if not count or count % page_bytes:
            break
    return filled


def _work(given: SimpleQueue[_Write | None], over: deque[int], wake: int) -> None:
    while (write := given.get()) is not None:
        error = 0
        try:
            if write.descriptor >= 0 and write.zeros:
                _write_zeros(write)
            elif write.descriptor >= 0:
                _write_durably(write)
        except OSError as raised:
            error = raised.errno or errno.EIO
        over.append(error)
        del write  # its buffers are not held until the next comes
        os.eventfd_write(wake, 1)


def _write_zeros(write: _Write) -> None:
    zeros = memoryview(bytes(min(write.zeros, ZEROS_PIECE_BYTES)))
    for done in range(0, write.zeros, ZEROS_PIECE_BYTES):
        write_all(write.descriptor, write.position + done, [zeros[: write.zeros - done]])
        os.sched_yield()


def _write_durably(write: _Write) -> None:
    """In one system call where that can be."""
    size = sum(memoryview(buffer).nbytes for buffer in write.buffers)
    if not write.whole_file and len(write.buffers) <= VECTOR_BUFFERS_MAX and 0 < size <= VECTOR_BYTES_MAX:
        try:
            if os.pwritev(write.descriptor, write.buffers, write.position, os.RWF_DSYNC) == size:
                return
        except OSError as error:  # any other comes from the disk
            if error.errno not in NO_PROMISE:
                raise
    write_all(write.descriptor, write.position, write.buffers)
    os.fdatasync(write.descriptor)


def write_all(descriptor: int, position: int, buffers: Sequence[Buffer]) -> None:
    """Write buffers one behind the other, without sync. Raises `OSError`."""
    if len(buffers) == 1 and os.pwrite(descriptor, buffers[0], position) == memoryview(buffers[0]).nbytes:
        return  # as nearly always; a write that is cut short is made again
    views = [view for buffer in buffers if (view := memoryview(buffer).cast("B"))]
    first = 0
    while first < len(views):
        last, size = first, 0
        while last < len(views) and last - first < VECTOR_BUFFERS_MAX and size < VECTOR_BYTES_MAX:
            size += len(views[last])
            last += 1
        written = os.pwritev(descriptor, views[first:last], position)
        if not written:
            raise OSError(errno.EIO, "the disk took no byte of a write")
        position += written
        while first < last and written >= len(views[first]):
            written -= len(views[first])
            first += 1
        if written:
            views[first] = views[first][written:]
