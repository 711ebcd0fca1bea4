"""Says in the store that a cluster lives, also while it writes nothing else there, so that nobody adopts it meanwhile.

    owner     one object in the cluster's folder: term, beats, node and time

The leader of write group 0 replaces it again and again, by its tag, so that whoever has read it sees that it changed.
An adoption replaces it once, by the tag that it read first, with the term in which its nodes will begin and no beat: it
fails where the cluster has written in between. A leader that finds a later term there leaves it alone. It is deposed
and does not know it yet, or its cluster was adopted, in a term behind all that it had.

A store that cannot compare and replace (HDFS) keeps the first record, which then says nothing. Nothing of the running
cluster depends on the record, and nothing waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from mainstem.model import Buffer, Sample
from mainstem.ports import ObjectRange, ObjectStore
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.object_stores.errors import ObjectAbsent, ObjectChanged, ObjectExists, ReplaceUnsupported
from mainstem.storage.remote.chain.chain_format import frame, only_frame
from mainstem.storage.store_files.object_names import OWNER
from mainstem.storage.write_groups.write_group import WriteGroup

log = logging.getLogger(__name__)

BEAT_SECONDS = 15.0
"""An operator who adopts waits for one beat and some more. A store that charges for it takes less than a dollar a month
for four small writes a minute."""

LOOK_SECONDS = 1.0
"""A new leader writes so soon: whoever adopts waits for one beat, however many leaders there are meanwhile."""

SEEN_TO_TELL = 2
"""A leader that was deposed finds a later term once, before it hears of it; beats later it is an adoption."""

OWNER_MAGIC = b"MSROWNR1"


class OwnerRecord(msgspec.Struct, frozen=True, array_like=True):
    term: int
    """Of write group 0."""
    beats: int
    """How often the leader has written since it leads; 0: an adoption wrote it."""
    node_id: int
    written_ms: int
    """By the clock of whoever wrote it: for people only."""


class FoundOwner(NamedTuple):
    record: OwnerRecord | None
    """None: it is not there, or damaged."""
    tag: str | None
    """None: it is not there."""


def encode_owner(record: OwnerRecord) -> bytes:
    return frame(OWNER_MAGIC, record)


def decode_owner(content: Buffer, where: str) -> OwnerRecord:
    """Raises `FormatError` naming `where`."""
    return only_frame(content, OWNER_MAGIC, OwnerRecord, where)


async def read_owner(store: ObjectStore) -> FoundOwner:
    """The record in a cluster's folder. Raises `StorageError`."""
    try:
        info = await store.info(OWNER)
        (content,) = await store.read(OWNER, [ObjectRange(0, info.size_bytes)])
    except ObjectAbsent:
        return FoundOwner(None, None)
    try:
        return FoundOwner(decode_owner(content, OWNER), info.tag)
    except FormatError as error:
        log.warning("who owns this folder of the object store is not known: %s", error)
        return FoundOwner(None, info.tag)


async def take_over(store: ObjectStore, read_first: FoundOwner, record: OwnerRecord) -> OwnerRecord | None:
    """Have a record of an adoption take the place of the one that was read first. Returns what somebody else has
    written in between, other than the same adoption on another node; None: nobody has. Raises `StorageError`."""
    if read_first.record is not None and _is_same_adoption(read_first.record, record):
        now = await read_owner(store)
        return None if now.tag == read_first.tag else now.record
    try:
        await store.write(OWNER, encode_owner(record), replaces=read_first.tag)
    except ReplaceUnsupported:
        return None
    except (ObjectExists, ObjectChanged):
        now = await read_owner(store)
        return None if now.record is None or _is_same_adoption(now.record, record) else now.record
    return None


def _is_same_adoption(found: OwnerRecord, record: OwnerRecord) -> bool:
    return not found.beats and found.term == record.term


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
        self._term = -1
        """In which this node wrote the record; -1: it is read before it is written."""
        self._beats = 0
        self._tag: str | None = None
        self._replaces = True
        """Whether the store can compare and replace."""
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
        if not self._replaces:
            return
        term = self._groups[0].term
        if self._term != term:
            self._term = -1
            found = await read_owner(self._store)
            if found.record is not None and found.record.term > term:
                self._leave_it(found.record, term)
                return
            self._later_seen = 0
            self._beats, self._tag = 0, found.tag
        record = OwnerRecord(term, self._beats + 1, self._node_id, self._now_ms())
        self._term = -1  # after an error nobody knows what is there
        try:
            info = await self._store.write(OWNER, encode_owner(record), replaces=self._tag)
        except ReplaceUnsupported:
            self._replaces = False
            return
        except (ObjectExists, ObjectChanged):  # another leader's, an adoption's, or this one's, whose answer was lost
            return
        self._term, self._beats, self._tag = term, record.beats, info.tag
        self.beats_written += 1

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
