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
    """As a ThreadPoolExecutor, for whose threads Python waits at its end, but of daemon threads."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._free = 0
        """Threads that wait for a call, less the calls that wait for a thread."""

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

        with self._lock:
            self._free -= 1
            begins = self._free < 0 and self._threads < self._threads_max
            if begins:
                self._threads += 1
                self._free += 1
        self._calls.put(call)
        if begins:
            threading.Thread(target=self._run, name=f"{self._name}-{self._threads}", daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            self._calls.get()()
            with self._lock:
                self._free += 1
