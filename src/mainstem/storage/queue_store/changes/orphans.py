"""Finds orphans: files that the manifest does not name, left by splitters and merges that died or were refused. A
split that is decided and waits to be written to the manifest holds its files, however long that takes.

Age is counted from when this process first saw the file, by the monotonic clock: a file's own times say
nothing when clocks jump, and after a start every file has its whole grace again. Only names that a splitter
or a merge gives are ever touched. The directories of queue segments are many, and are looked through less often.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Container

from mainstem.ports import Clock, Files
from mainstem.storage.store_files.store_file import (
    PACKED_DIRECTORY,
    QUEUES_DIRECTORY,
    RUNS_DIRECTORY,
    TEMPORARY_INFIX,
    owner_of,
    paths_of,
)

PATHS_PER_TURN = 1_000
"""Files looked up in the manifest in one turn of the event loop: some milliseconds."""

LOOKS_PER_GRACE = 2
"""How often the directories of queue segments are listed within the grace of a file."""


class Orphans:
    """Finds the files that nothing recorded will name any more."""

    def __init__(self, files: Files, clock: Clock, grace_seconds: float) -> None:
        self._files = files
        self._clock = clock
        self._grace_seconds = grace_seconds
        self._seen: dict[str, float] = {}
        """By path, since when a file that nobody names has been there."""
        self._segment_paths: list[str] = []
        self._looked_at: float | None = None
        self.merging_since: Callable[[], float | None] = lambda: None
        """Tells since when merges have been under way: what came since may be theirs, whatever it is called."""
        self._held: Counter[str] = Counter()

    def hold(self, name: str) -> None:
        """Keep a file for a decided split that will name it. Several splits may hold the same file."""
        self._held[name] += 1

    def let_go(self, name: str) -> None:
        """End one hold: its split is in the manifest."""
        self._held[name] -= 1
        if not self._held[name]:
            del self._held[name]

    def is_held(self, name: str) -> bool:
        return name in self._held

    def spare(self, name: str) -> None:
        """Begin the file's grace anew, because a split is about to name it."""
        self._seen.update(dict.fromkeys(paths_of(name), self._clock.monotonic()))

    def is_due(self, path: str, named: Container[str]) -> bool:
        """Whether a file of this path may go, as nobody names it, and nobody will."""
        if self._is_named(path, named) or owner_of(path) in self._held:
            return False
        seen, since = self._seen[path], self.merging_since()
        if since is not None and seen >= since and not path.startswith(RUNS_DIRECTORY):
            return False
        return self._clock.monotonic() - seen >= self._grace_seconds

    async def due(self, named: Container[str]) -> list[str]:
        """The paths of the files whose grace is over."""
        self.merging_since()  # merges whose lease is over end with that, and let go of what they held
        present = [
            f"{directory}/{name}"
            for directory in (RUNS_DIRECTORY, PACKED_DIRECTORY)
            for name in await self._files.names(directory)
        ]
        present += await self._segments()
        unnamed: list[str] = []
        for first in range(0, len(present), PATHS_PER_TURN):
            unnamed += [path for path in present[first : first + PATHS_PER_TURN] if not self._is_named(path, named)]
            await asyncio.sleep(0)
        now = self._clock.monotonic()
        self._seen = {path: self._seen.get(path, now) for path in unnamed}
        return [path for path in self._seen if self.is_due(path, named)]

    def _is_named(self, path: str, named: Container[str]) -> bool:
        owner = owner_of(path)
        return owner is None or (owner in named and TEMPORARY_INFIX not in path)

    async def _segments(self) -> list[str]:
        now = self._clock.monotonic()
        if self._looked_at is not None and now - self._looked_at < self._grace_seconds / LOOKS_PER_GRACE:
            return self._segment_paths
        paths = [QUEUES_DIRECTORY]
        for _level in ("topic", "partition", "merge", "file"):
            above, paths = paths, []
            for directory in above:
                with contextlib.suppress(NotADirectoryError):  # a file that nobody here has put there
                    paths += [f"{directory}/{name}" for name in await self._files.names(directory)]
        self._segment_paths, self._looked_at = paths, now
        return paths
