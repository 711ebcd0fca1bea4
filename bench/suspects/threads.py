"""The node's threads by name: processor time, and how long they waited for a processor that others had."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Spent(NamedTuple):
    """In seconds."""

    ran: float
    waited: float
    """Ready to run, and on no processor."""
    turns: int
    """The number of times that it was given a processor."""

    def __add__(self, other: Spent) -> Spent:  # type: ignore[override]
        return Spent(self.ran + other.ran, self.waited + other.waited, self.turns + other.turns)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.ran - other.ran, self.waited - other.waited, self.turns - other.turns)


NOTHING = Spent(0.0, 0.0, 0)


def loop_of(pid: int) -> Spent:
    """Of the event loop, which is the first thread of its process."""
    return _spent(Path(f"/proc/{pid}/task/{pid}"))


def others_of(pid: int) -> Spent:
    total = NOTHING
    for name in os.listdir(f"/proc/{pid}/task"):
        if int(name) != pid:
            total += _spent(Path(f"/proc/{pid}/task/{name}"))
    return total


def of_processes(pids: Iterable[int]) -> Spent:
    total = NOTHING
    for pid in pids:
        try:
            total += loop_of(pid) + others_of(pid)
        except OSError:
            continue  # it has just ended
    return total


def _spent(task: Path) -> Spent:
    try:
        ran, waited, turns = (task / "schedstat").read_text().split()
    except FileNotFoundError:
        return NOTHING
    return Spent(int(ran) / 1e9, int(waited) / 1e9, int(turns))
