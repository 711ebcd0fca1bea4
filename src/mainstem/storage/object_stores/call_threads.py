"""Threads for calls that may never return. None of them keeps the process from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class CallThreads(Executor):
    """As a ThreadPoolExecutor, for whose threads Python waits at its end, but of daemon threads. As there, the threads
    end when nobody has the pool any more and the calls that it was given are over."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._free = threading.Semaphore(0)
        """Threads that wait for a call, as long as there may be more threads; more than that afterwards."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                found = fn(*args, **kwargs)
            except BaseException as error:  # it is the caller's
                future.set_exception(error)
            else:
                future.set_result(found)

        self._calls.put(call)
        with self._lock:
            if self._threads < self._threads_max and not self._free.acquire(blocking=False):
                self._threads += 1
                name = f"{self._name}-{self._threads}"
                threading.Thread(target=_work, args=(self._calls, self._free), name=name, daemon=True).start()
        return future

    def __del__(self) -> None:
        for _ in range(self._threads):
            self._calls.put(None)


def _work(calls: SimpleQueue[Callable[[], None] | None], free: threading.Semaphore) -> None:
    """Make calls until there is none instead of one. Between two of them the thread holds neither, nor the pool."""
    while True:
        call = calls.get()
        if call is None:
            return
        call()
        del call
        free.release()
