"""A disk that has no room is waited for: what it refuses is written again, the same bytes to the same place, until it
takes them.

That is safe for lack of room (`NO_ROOM`) alone, and only for who writes again *all* that was not yet known to be on
disk in that file, not merely what is missing of it: a write that was refused may be there in part, and a sync that was
refused (a file system that looks for room as late as that) may have dropped any page that waited for it, so that the
next sync succeeds without it. Bytes that are written again make their pages dirty again, and the sync behind them
promises what a first one promises. Every other error leaves open what the disk does with anything it holds
(docs/decisions/0018-the-metadata-waits-for-room.md).
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
PAUSE_SECONDS = 0.25
"""Between two attempts: a write of some hundred bytes costs nobody anything."""

Attempt = Callable[[], Awaitable[None]]
Wait = Callable[[str, int, Attempt], Awaitable[None]]
"""How something is written: file, bytes (0: many, not counted), and what to do, once or several times. Raises OSError,
as the attempt does."""

log = logging.getLogger(__name__)


async def at_once(path: str, size: int, attempt: Attempt) -> None:
    """The `Wait` that does not: where nothing can wait, at a start or a stop."""
    await attempt()


class Room:
    """Of disk 1, as the member of the metadata group on this node finds it."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]], missing: Callable[[], None]) -> None:
        """`missing` is called whenever something begins to wait."""
        self.missed_by: set[str] = set()
        """The files that something waits to be written to."""
        self._sleep = sleep
        self._missing = missing

    async def wait(self, path: str, size: int, attempt: Attempt) -> None:
        """`Wait`, for as long as it takes. One writer per file."""
        try:
            while not await self._fits(path, size, attempt):
                await self._sleep(PAUSE_SECONDS)
        finally:
            self.missed_by.discard(path)

    async def _fits(self, path: str, size: int, attempt: Attempt) -> bool:
        try:
            await attempt()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            if path not in self.missed_by:
                self._begin(path, size, error)
            return False
        if self.missed_by == {path}:
            log.warning("%s is written: there is room on disk 1 again, and the metadata goes on", path)
        return True

    def _begin(self, path: str, size: int, error: OSError) -> None:
        if not self.missed_by:
            log.warning(
                "no room on disk 1 for %s%s (%s): the metadata of this node waits until there is, then goes on by "
                "itself; free space where write_dir is, or raise the quota",
                f"{size} bytes of " if size else "",
                path,
                error.strerror,
            )
        self.missed_by.add(path)
        self._missing()
