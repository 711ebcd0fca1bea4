"""The leader of a write group deletes what lies in the store of files that do not count.

Which names these are the log says (`remote_state.py`): nothing is listed, and nothing follows from what the store says.
None of them can ever count again, so a leader that does not know yet that it was deposed does no harm either.

    leaving    deleted once readers that had looked a file up are done with it
    intended   in a term that is over, or given up: deleted at once; and again a day after it was intended, since an
               executor may still have been uploading it

A name is forgotten, by a change in the log, behind the last deletion. While the store is out the names wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence

from mainstem.model import Sample
from mainstem.ports import ObjectStore
from mainstem.storage.errors import StorageError
from mainstem.storage.remote.decided.remote_state import Noted
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.store_files.object_names import file_objects
from mainstem.storage.write_groups.write_group import WriteGroup

log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
"""Deleting is in no hurry: objects cost by the month."""

READ_MS_MAX = 60_000
"""A reader is done with a file so long after it went: it looks a file up anew for each fetch."""

UPLOAD_MS_MAX = 86_400_000
"""An executor that began before a name was given up has ended so long after; its task has a lease of minutes."""

NAMES_AT_ONCE = 250
"""Files whose objects one request deletes: S3 takes 1,000 objects, and a queue segment has four."""


class RemoteUpkeep:
    """Deletes objects of the write groups that this node leads."""

    def __init__(self, tier: RemoteTier, store: ObjectStore, groups: Sequence[WriteGroup]) -> None:
        self._tier = tier
        self._store = store
        self._groups = groups
        self._deleted_once: dict[int, tuple[int, set[str]]] = {}
        """By write group: a term, and the names intended before whose objects were deleted in it, not for the last
        time."""
        self._to_come: dict[int, dict[str, int]] = {}
        """By write group: names noted at a time that is to come, as this node's clock was ahead before others told it
        the time, and when they were first looked at."""
        self.deleted_files = 0
        self._failure = ""

    async def run(self) -> None:
        """Look at all write groups again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                for group in self._groups:
                    if group.serving:
                        await self.look(group.group)
            except (StorageError, OSError) as error:
                if type(error).__name__ != self._failure:
                    log.warning("what does not count in the remote tier is not deleted now, but later: %s", error)
                self._failure = type(error).__name__
            else:
                self._failure = ""

    async def look(self, group: int) -> None:
        """Delete what is due of a write group that this node leads. Raises `StorageError` while the store is out."""
        tier, to_come = self._tier, self._to_come.get(group, {})
        term = self._groups[group].term
        for name in to_come.keys() - tier.intended(group).keys() - tier.leaving(group).keys():
            del to_come[name]
        abandoned = [
            name
            for name, noted in tier.intended(group).items()
            if noted.epoch == term and self._age_ms(group, name, noted) >= UPLOAD_MS_MAX
        ]
        if abandoned:
            await tier.abandon(group, abandoned)
            if self._groups[group].term != term:
                return  # what the next leader's log has of the term may let its names count
        last = [name for name, noted in tier.leaving(group).items() if self._age_ms(group, name, noted) >= READ_MS_MAX]
        once = []
        for name in self._over(group):
            if self._age_ms(group, name, tier.intended(group)[name]) >= UPLOAD_MS_MAX:
                last.append(name)
            else:
                once.append(name)
        await self._delete(group, once)
        self._deleted_once[group][1].update(once)
        for first in range(0, len(last), NAMES_AT_ONCE):
            names = last[first : first + NAMES_AT_ONCE]
            await self._delete(group, names)
            said = await tier.record(group, deleted=names)
            if said.startswith("refused"):
                return  # the next leader does it
            self.deleted_files += len(names)

    def _age_ms(self, group: int, name: str, noted: Noted) -> int:
        """How long ago a name was noted, as far as is known."""
        now_ms = self._tier.now_ms()
        if noted.since_ms <= now_ms:
            return now_ms - noted.since_ms
        return now_ms - self._to_come.setdefault(group, {}).setdefault(name, now_ms)

    def _over(self, group: int) -> list[str]:
        """Intended names that cannot count any more, except those whose objects were just deleted for the first
        time."""
        term = self._groups[group].term
        known = self._deleted_once.get(group)
        if known is None or known[0] != term:
            known = self._deleted_once[group] = term, set()
        intended = self._tier.intended(group)
        known[1].intersection_update(intended)
        return [
            name
            for name, noted in intended.items()
            if noted.epoch < term and (name not in known[1] or self._age_ms(group, name, noted) >= UPLOAD_MS_MAX)
        ]

    async def _delete(self, group: int, names: Sequence[str]) -> None:
        for first in range(0, len(names), NAMES_AT_ONCE):
            part = names[first : first + NAMES_AT_ONCE]
            await self._store.delete([one for name in part for one in file_objects(group, name)])

    def samples(self) -> Iterator[Sample]:
        yield Sample(
            "mainstem_remote_deleted_files_total",
            "counter",
            "Files that did not count, and of which nothing is left in the object store",
            self.deleted_files,
        )
