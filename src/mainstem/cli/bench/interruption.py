"""Ctrl-C during a measurement: the first ends it with the summary so far, the second ends the waiting for what is
still in flight."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """A context in which SIGINT and SIGTERM are counted instead of ending the process."""

    def __init__(self) -> None:
        self._count = 0
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def came(self) -> bool:
        return self._count > 0

    @property
    def came_twice(self) -> bool:
        return self._count > 1

    def __enter__(self) -> Interruption:
        self._previous = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
