"""Applies back-pressure from disk 1: slows producers down, then refuses them, as it fills, and accepts them as it
empties."""

from __future__ import annotations

import logging
import math

from mainstem.ports import Files
from mainstem.storage.config import StorageConfig
from mainstem.storage.journal.journal import Journal
from mainstem.storage.queues.message_store import LocalMessageStore
from mainstem.storage.write_groups.write_loop import WriteLoop

log = logging.getLogger(__name__)

THROTTLE_DELAY_SECONDS_MAX = 0.1
"""Pause per turn just before refusal: slow enough to be felt, far from any client's timeout."""

JOURNAL_THROTTLE_SHARE = 0.85
JOURNAL_REFUSE_SHARE = 0.95
"""Shares of `journal_bytes_max`: the room between them fills in seconds, time enough for the splitter to free some."""


SEGMENTS_KEPT_FREE = 2
"""Segments that must fit when produce is refused: one takes the backlog, one the control blocks behind it. Without the
latter no split could be recorded, and no segment freed again."""


class DiskWatch:
    """Measures the pressure on disk 1 and passes it on."""

    def __init__(
        self,
        files: Files,
        config: StorageConfig,
        journal: Journal,
        message_store: LocalMessageStore,
        write_loop: WriteLoop,
    ) -> None:
        self._files = files
        self._config = config
        self._journal = journal
        self._message_store = message_store
        self._write_loop = write_loop
        self.pressure = -math.inf
        """At the last check; 0 or less: none, as before the first one; up to 1: producers are slowed down; 1 or more:
        they are refused."""

    async def check(self) -> None:
        """Slow producers down, then refuse them, as disk 1 fills; accept them again as it empties."""
        self.pressure = pressure = await self._pressure()
        if pressure > 0:
            await self._journal.trim_pool()
        refusing = pressure >= 1
        if refusing != self._message_store.refusing:
            log.warning(
                "disk 1 is nearly full: produce is refused"
                if refusing
                else "disk 1 has room again: produce is accepted"
            )
        self._message_store.refusing = refusing
        self._write_loop.delay_seconds = max(0.0, min(pressure, 1.0)) * THROTTLE_DELAY_SECONDS_MAX

    async def _pressure(self) -> float:
        """As `pressure`, now."""
        total, free = await self._files.usage()
        refuse = min(self._config.disk_refuse_free_bytes, total // 40)
        refuse = max(refuse, SEGMENTS_KEPT_FREE * self._journal.segment_bytes)
        throttle = max(min(self._config.disk_throttle_free_bytes, total // 10), 2 * refuse)
        pressure = (throttle - free) / max(throttle - refuse, 1)
        if self._config.journal_bytes_max:
            share = self._journal.bytes_used() / self._config.journal_bytes_max
            over = share - JOURNAL_THROTTLE_SHARE
            pressure = max(pressure, over / (JOURNAL_REFUSE_SHARE - JOURNAL_THROTTLE_SHARE))
        return pressure
