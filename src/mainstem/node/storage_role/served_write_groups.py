"""The steps that a node takes when it begins to serve a write group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from mainstem.model import Topic
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.storage.errors import NotTheLeader, StorageFailed
from mainstem.storage.queues.queue_admin import LocalQueueAdmin

log = logging.getLogger(__name__)

SETTLING_PAUSE_SECONDS = 0.5
"""Seconds between two tries while the metadata has no leader."""


class ServedWriteGroups:
    """Settles the queues of each write group that this node begins to serve."""

    def __init__(
        self,
        topics: Callable[[], Iterable[Topic]],
        was_deleted: Callable[[int], bool],
        current: Callable[[], Awaitable[None]],
    ) -> None:
        """`current` returns once this node knows all changes of the metadata made before the call."""
        self._topics = topics
        self._was_deleted = was_deleted
        self._current = current
        self._new: set[int] = set()
        self._wake = asyncio.Event()
        self._listeners: list[Callable[[int, bool], None]] = []

    def subscribe(self, listener: Callable[[int, bool], None]) -> None:
        """From now on `listener` is called with every change within the turn in which it happens."""
        self._listeners.append(listener)

    def changed(self, group: int, serving: bool) -> None:
        for listener in self._listeners:
            listener(group, serving)
        if serving:
            self._new.add(group)
            self._wake.set()
        else:
            self._new.discard(group)

    async def settle(self, queues: LocalQueueAdmin) -> None:
        """Settle the queues of all newly served write groups, by metadata that is at least as new: older
        metadata, as a node begins with, would bring back deleted queues. Raises `MetadataUnavailable`."""
        while self._new:
            group = self._new.pop()
            try:
                await self._current()
                await queues.settle(group, self._topics(), self._was_deleted)
            except NotTheLeader:  # not any more
                continue
            except MetadataUnavailable:
                self._new.add(group)
                raise

    async def run(self, queues: LocalQueueAdmin) -> None:
        """Settle each newly served write group, until cancelled or the disk fails."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.settle(queues)
            except MetadataUnavailable as error:
                log.debug("queues of newly led write groups are settled later: %s", error)
                await asyncio.sleep(SETTLING_PAUSE_SECONDS)
                self._wake.set()
            except StorageFailed:
                return
