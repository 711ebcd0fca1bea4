"""Finds orphans: files in the directory of runs that the manifest does not name, left by splitters that died or never
committed. A commit that is decided and waits to be written to the manifest holds its files, however long that takes.

Age is counted from when this process first saw the file, by the monotonic clock: a file's own times say
nothing when clocks jump, and after a start every file has its whole grace again. Only names that a splitter
gives are ever touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from mainstem.ports import Clock, Files
from mainstem.storage.queue_store.store_file import RUN_SUFFIX, RUNS_DIRECTORY, TEMPORARY_INFIX


class Orphans:
    """Finds the files that no commit will name any more."""

    def __init__(self, files: Files, clock: Clock, grace_seconds: float) -> None:
        self._files = files
        self._clock = clock
        self._grace_seconds = grace_seconds
        self._seen: dict[str, float] = {}
        self._held: Counter[str] = Counter()

    def hold(self, name: str) -> None:
        """Keep a file for a decided commit that will name it. Several commits may hold the same file."""
        self._held[name] += 1

    def let_go(self, name: str) -> None:
        """End one hold: its commit is in the manifest."""
        self._held[name] -= 1
        if not self._held[name]:
            del self._held[name]

    def is_held(self, name: str) -> bool:
        return name in self._held

    def spare(self, name: str) -> None:
        """Begin the file's grace anew, because a commit is about to name it."""
        self._seen[name] = self._clock.monotonic()

    def is_due(self, name: str) -> bool:
        return name not in self._held and self._clock.monotonic() - self._seen[name] >= self._grace_seconds

    async def due(self, named: Container[str]) -> list[str]:
        """The files whose grace is over."""
        present = [name for name in await self._files.names(RUNS_DIRECTORY) if is_run_name(name)]
        now = self._clock.monotonic()
        self._seen = {name: self._seen.get(name, now) for name in present if name not in named}
        return [name for name in self._seen if self.is_due(name)]


def is_run_name(name: str) -> bool:
    """Whether this is the name of a run, or of a run being written."""
    return name.endswith(RUN_SUFFIX) or f"{RUN_SUFFIX}{TEMPORARY_INFIX}" in name
