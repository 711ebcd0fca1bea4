"""Looks at the room on disk 1, and at whose batches wait there for the splitter, for `DiskShares`."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping

from mainstem.errors import MainstemError
from mainstem.nameserver.lookups import MetadataLookups
from mainstem.security.quotas.disk_shares import BEGINS_AT, DiskShares
from mainstem.storage.role import Storage

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Between two looks at the room: as often as it is measured."""

OWNERS_EVERY = 5
"""Looks between two at whose batches wait: that is a pass over the rows of all that is to be split."""


class DiskSharesWatch:
    """Of a node that is a broker and has storage. `run` is a task."""

    def __init__(self, shares: DiskShares, storage: Storage, lookups: MetadataLookups) -> None:
        self._shares = shares
        self._storage = storage
        self._lookups = lookups
        self._looks = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        pressure = self._storage.disk_watch.pressure
        if pressure <= BEGINS_AT or not self._lookups.tenants():
            self._looks = 0
            self._shares.look(min(pressure, BEGINS_AT))
            return
        owners = await self._unsplit() if self._looks % OWNERS_EVERY == 0 else None
        self._looks += 1
        self._shares.look(pressure, owners)

    async def _unsplit(self) -> Mapping[str, int] | None:
        """Bytes by tenant; "" has the topics that are nobody's. None: a segment cannot be looked into now."""
        try:
            waiting = await self._storage.unsplit_topics.by_topic()
        except (MainstemError, OSError) as error:
            log.warning("it is not known whose batches fill disk 1: %s", error)
            return None
        found: Counter[str] = Counter()
        tenants = self._lookups.tenants()
        for number, waits in waiting.items():
            topic = self._lookups.topic_by_number(number)
            owner = None if topic is None else tenants.owner(topic.name)
            found["" if owner is None else owner.name] += waits.bytes
        return found
