"""Says in the store that a cluster lives, also while it writes nothing else there, so that nobody adopts it meanwhile.

The leader of write group 0 replaces the record of the cluster's owner (`owner_record.py`) again and again, so that
whoever has read it sees that it changed. A leader that finds a later term there leaves it alone. It is deposed and does
not know it yet, or its cluster was adopted, in a term behind all that it had. Nothing of the running cluster depends on
the record, and nothing waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from mainstem.model import Sample
from mainstem.ports import ObjectStore
from mainstem.storage.errors import StorageError
from mainstem.storage.remote.chain.owner_record import FoundOwner, OwnerRecord, read_owner, replace_owner
from mainstem.storage.store_files.object_names import owner_object
from mainstem.storage.write_groups.write_group import WriteGroup

log = logging.getLogger(__name__)

BEAT_SECONDS = 15.0
"""An operator who adopts waits for one beat and some more. A store that charges for it takes less than a dollar a month
for four small writes a minute."""

LOOK_SECONDS = 1.0
"""A new leader writes so soon: whoever adopts waits for one beat, however many leaders there are meanwhile."""

SEEN_TO_TELL = 2
"""A leader that was deposed finds a later term once, before it hears of it; beats later it is an adoption."""


class OwnerBeats:
    """Writes the record, while this node leads write group 0 and the store has anything of the cluster."""

    def __init__(
        self,
        store: ObjectStore,
        groups: Sequence[WriteGroup],
        is_there: Callable[[], bool],
        node_id: int,
        now_ms: Callable[[], int],
    ) -> None:
        """`store` is the cluster's folder; `is_there`: whether the store has anything to be adopted."""
        self._store = store
        self._groups = groups
        self._is_there = is_there
        self._node_id = node_id
        self._now_ms = now_ms
        self._written: FoundOwner | None = None
        """The record that this node wrote last; None: it is read before the next is written."""
        self._due = 0.0
        """When the next beat comes, by the event loop's clock…"""
        self._tried = -1
        """…of a leader of this term."""
        self._later_seen = 0
        """How often in a row the record was of a later term."""
        self._failure = ""
        self.beats_written = 0

    async def run(self) -> None:
        """Write the record again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self._is_due():
                continue
            self._tried, self._due = self._groups[0].term, asyncio.get_running_loop().time() + BEAT_SECONDS
            try:
                await self.beat()
            except (StorageError, OSError) as error:
                if type(error).__name__ != self._failure:
                    log.warning("the object store is not told now that this cluster lives, but later: %s", error)
                self._failure = type(error).__name__
            else:
                self._failure = ""

    def _is_due(self) -> bool:
        if not self._groups or not self._groups[0].serving or not self._is_there():
            return False
        return self._groups[0].term != self._tried or asyncio.get_running_loop().time() >= self._due

    async def beat(self) -> None:
        """Write the record once, if nobody with a later term has. Raises `StorageError`."""
        term = self._groups[0].term
        found, self._written = self._written, None  # after an error nobody knows what is there
        if found is None or found.number or found.record is None or found.record.term != term:
            mine = found.record if found is not None else None
            found = await read_owner(self._store)
            if found.record is not None and found.record.term > term:
                self._leave_it(found.record, term)
                return
            self._later_seen = 0
            if found.record != mine:
                found = found._replace(record=None)
        beats = found.record.beats if found.record is not None and found.record.term == term else 0
        record = OwnerRecord(term, beats + 1, self._node_id, self._now_ms())
        written = await replace_owner(self._store, found, record)
        if written is None:  # another leader's, an adoption's, or this one's, whose answer was lost
            return
        self._written = written
        self.beats_written += 1
        if found.lower:
            await self._store.delete([owner_object(number) for number in found.lower])

    def _leave_it(self, found: OwnerRecord, term: int) -> None:
        """The record is of a later term than that of this node, which believes to lead."""
        self._later_seen += 1
        if self._later_seen == SEEN_TO_TELL:
            log.error(
                "the object store says that node %d goes on with this cluster, in term %d; here it is in term %d. Two "
                "clusters write to one folder, and break each other. Stop the nodes of one of them, for good",
                found.node_id,
                found.term,
                term,
            )

    @property
    def adopted_elsewhere(self) -> bool:
        return self._later_seen >= SEEN_TO_TELL

    def samples(self) -> Iterator[Sample]:
        yield Sample(
            "mainstem_remote_owner_beats_total",
            "counter",
            "Times this node told the object store that its cluster lives",
            self.beats_written,
        )
        yield Sample(
            "mainstem_remote_adopted_elsewhere",
            "gauge",
            "1: the object store says that another cluster goes on with this one's messages",
            int(self.adopted_elsewhere),
        )
