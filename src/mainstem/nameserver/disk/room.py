"""A writer waits for a disk without room: it writes the refused bytes again, to the same place, until the disk takes
them.

That is safe for lack of room (`NO_ROOM`) alone, and only if the writer writes again *all* bytes of that file that
were not yet known to be on disk, not merely the missing ones: a refused write may be there in part, and a refused
sync (by a file system that looks for room only then) may have dropped any page that waited for it, so that the next
sync succeeds without that page. Bytes that are written again make their pages dirty again, and the sync behind them
promises what a first one promises. After every other error nobody knows what the disk does with the bytes it holds
(docs/decisions/0018-the-metadata-waits-for-room.md).
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
PAUSE_SECONDS = 0.25
"""Between two attempts: a write of some hundred bytes costs next to nothing."""

Attempt = Callable[[], Awaitable[None]]
Wait = Callable[[str, int, Attempt], Awaitable[None]]
"""A way to write: takes the file, the bytes (0: many, not counted), and the attempt, which it may repeat.
Raises OSError, as the attempt does."""

log = logging.getLogger(__name__)


async def at_once(path: str, size: int, attempt: Attempt) -> None:
    """The `Wait` that does not wait: for a start or a stop."""
    await attempt()


class Room:
    """Room on disk 1, for the metadata quorum's member on this node: lets writes wait, and says so in the
    log."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]], missing: Callable[[], None]) -> None:
        """`missing` is called whenever a write begins to wait."""
        self.missed_by: set[str] = set()
        """The files to which a write waits."""
        self._sleep = sleep
        self._missing = missing

    async def wait(self, path: str, size: int, attempt: Attempt) -> None:
        """A `Wait` that waits as long as it takes. One writer per file."""
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
