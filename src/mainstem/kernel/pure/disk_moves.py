"""Reads and writes of a disk, by threads that need the interpreter as rarely as can be.

A thread that comes back from the disk waits until it has the interpreter, which the event loop of a busy node holds for
tenths of a millisecond, and then holds the event loop up itself. Compiled, `DurableWriter` has a thread that never
needs it, and `fill_pieces` waits for it once, however many pieces there are. Here every step does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
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

STRETCH_SECONDS = 0.00005
"""Of the processor's time that a thread has between two rests: others wait for it, and for one piece."""

REST_SECONDS = 0.0004
"""So that a ninth of the processor is this thread's, where pieces are short."""


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
        self._over: deque[tuple[int, float]] = deque()
        self.zeros_seconds = 0.0
        """The processor time that the zeros of all writes took that `over` has told of."""
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
        over = [self._over.popleft() for _ in range(len(self._over))]
        self.zeros_seconds += sum(seconds for _error, seconds in over)
        return [error for error, _seconds in over]

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


def write_pieces(descriptor: int, position: int, buffers: Sequence[Buffer], piece_bytes: int, flags: int = 0) -> int:
    """Write buffers one behind the other, without sync, each call up to the next multiple of `piece_bytes` in the file,
    with the `flags` of `os.pwritev`. Returns how many bytes were written: fewer than there are where a call was cut
    short, or failed behind the first. Raises `OSError` where the first did."""
    views = [view for buffer in buffers if (view := memoryview(buffer).cast("B"))]
    written = 0
    while views:
        room = size = piece_bytes - (position + written) % piece_bytes
        piece: list[memoryview] = []
        while views and room and len(piece) < VECTOR_BUFFERS_MAX:
            view = views.pop(0)
            piece.append(view[:room])
            if len(view) > room:
                views.insert(0, view[room:])
            room -= len(piece[-1])
        try:
            now = os.pwritev(descriptor, piece, position + written, flags)
        except OSError:
            if written:
                return written
            raise
        written += now
        if now < size - room:
            break
    return written


def fill_pieces(descriptor: int, memory: Buffer, position: int, piece_bytes: int, page_bytes: int) -> int:
    """Fill memory from a place of a file on, `piece_bytes` in each read, up to the end of the file. Returns how many
    bytes there were. A read that ends in mid-page is the last. Between two of them the thread rests now and then, so
    that another one that wants the processor gets it. Raises `OSError`."""
    view = memoryview(memory).cast("B")
    filled = 0
    began = time.thread_time()
    while filled < len(view):
        count = os.preadv(descriptor, [view[filled : filled + piece_bytes]], position + filled)
        filled += count
        if not count or count % page_bytes:
            break
        if filled < len(view) and time.thread_time() - began >= STRETCH_SECONDS:
            time.sleep(REST_SECONDS)
            began = time.thread_time()
    return filled


def _work(given: SimpleQueue[_Write | None], over: deque[tuple[int, float]], wake: int) -> None:
    while (write := given.get()) is not None:
        error, began = 0, time.thread_time()
        try:
            if write.descriptor >= 0 and write.zeros:
                _write_zeros(write)
            elif write.descriptor >= 0:
                _write_durably(write)
        except OSError as raised:
            error = raised.errno or errno.EIO
        over.append((error, time.thread_time() - began if write.zeros else 0.0))
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
