"""Looks at the room on disk 1, here and at those who follow what this node leads, and at whose batches wait for the
splitter, for `DiskShares`."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping

from mainstem.errors import MainstemError
from mainstem.nameserver.lookups import MetadataLookups
from mainstem.security.quotas.disk_shares import BEGINS_AT, DiskShares, fillers
from mainstem.storage.role import Storage

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Between two looks at the room: as often as it is measured."""

OWNERS_EVERY = 5
"""Looks between two at whose batches wait: that is a pass over the rows of all that is to be split."""


class DiskSharesWatch:
    """Of a node with storage. `run` is a task."""

    def __init__(self, shares: DiskShares, storage: Storage, lookups: MetadataLookups) -> None:
        self._shares = shares
        self._storage = storage
        self._lookups = lookups
        self._looks = 0
        self._found: frozenset[str] = frozenset()
        """The tenants that have filled this node's own disk, as they were found last."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    def own(self) -> tuple[float, frozenset[str]]:
        """The pressure on this node's own disk, and who has filled it, for the leaders of what lies there."""
        return self._storage.disk_watch.pressure, self._found

    async def look(self) -> None:
        own = self._storage.disk_watch.pressure
        followers, found_there = self._lookups.followers_pressure()
        pressure = max(own, followers)
        if pressure <= BEGINS_AT or not self._lookups.tenants():
            self._looks, self._found = 0, frozenset()
            self._shares.look(min(pressure, BEGINS_AT))
            return
        looks_up = self._looks % OWNERS_EVERY == 0
        self._looks += 1
        if not looks_up:
            self._shares.look(pressure)
            return
        unsplit = await self._unsplit() if own > BEGINS_AT else {}
        if unsplit is not None:
            self._found = fillers(unsplit)
        self._shares.look(pressure, self._found | found_there)

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
