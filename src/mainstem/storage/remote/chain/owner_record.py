"""Keeps the record of who owns a cluster's folder in the store. Of all who read a record, one replaces it.

    owner             one object in the cluster's folder: term, beats, node and time
    owners/<number>   the same, where the store cannot compare and replace (HDFS): the highest number counts

The leader of write group 0 replaces the record again and again (`owner_beats.py`). An adoption replaces it once, and
only what it read first. An object is replaced by its tag. In a store that cannot do that the next number is created,
once; the leader deletes lower ones, and leaves the last but one. So somebody slow may create a number that was there
already: it is not the highest then, and counts for nothing.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec

from mainstem.model import Buffer
from mainstem.ports import ObjectRange, ObjectStore
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.object_stores.errors import ObjectAbsent, ObjectChanged, ObjectExists, ReplaceUnsupported
from mainstem.storage.remote.chain.chain_format import frame, only_frame
from mainstem.storage.store_files.object_names import OWNER, OWNERS, owner_object

log = logging.getLogger(__name__)

OWNER_MAGIC = b"MSROWNR1"

READ_ATTEMPTS = 3
"""An object that was listed is deleted two beats later."""


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
    number: int = 0
    """In `owners`; 0: it is the one object."""
    lower: tuple[int, ...] = ()
    """The numbers that are there besides, in their order."""


def encode_owner(record: OwnerRecord) -> bytes:
    return frame(OWNER_MAGIC, record)


def decode_owner(content: Buffer, where: str) -> OwnerRecord:
    """Raises `FormatError` naming `where`."""
    return only_frame(content, OWNER_MAGIC, OwnerRecord, where)


async def read_owner(store: ObjectStore) -> FoundOwner:
    """The record in a cluster's folder. Raises `StorageError`."""
    for _ in range(READ_ATTEMPTS):
        *lower, number = await _numbers(store) or [0]
        name = owner_object(number) if number else OWNER
        try:
            info = await store.info(name)
            (content,) = await store.read(name, [ObjectRange(0, info.size_bytes)])
        except ObjectAbsent:
            if not number:
                return FoundOwner(None, None)
            continue
        record = None
        try:
            record = decode_owner(content, name)
        except FormatError as error:
            log.warning("who owns this folder of the object store is not known: %s", error)
        return FoundOwner(record, info.tag, number, tuple(lower))
    raise StorageError(f"{OWNERS}: objects are listed again and again that are gone")


async def _numbers(store: ObjectStore) -> list[int]:
    """The numbers in `owners`, in their order."""
    found: list[int] = []
    page = await store.page_for_upkeep(OWNERS)
    while page:
        names = (one.name.rpartition("/")[2] for one in page)
        found += [int(name) for name in names if name.isdecimal()]
        page = await store.page_for_upkeep(OWNERS, page[-1].name)
    return found


async def replace_owner(store: ObjectStore, found: FoundOwner, record: OwnerRecord) -> FoundOwner | None:
    """Have a record take the place of the one that was found. None: somebody else has, meanwhile. A record
    under a number counts if none is higher. Raises `StorageError`."""
    content = encode_owner(record)
    try:
        if not found.number:
            try:
                info = await store.write(OWNER, content, replaces=found.tag)
            except ReplaceUnsupported:
                pass
            else:
                return FoundOwner(record, info.tag)
        number = found.number + 1
        info = await store.write(owner_object(number), content)
    except (ObjectExists, ObjectChanged):
        return None
    lower = (*found.lower, found.number) if found.number else ()
    return FoundOwner(record, info.tag, number, lower)


async def take_over(store: ObjectStore, read_first: FoundOwner, record: OwnerRecord) -> OwnerRecord | None:
    """Have a record of an adoption take the place of the one that was read first. Returns what somebody else has
    written in between, other than the same adoption on another node; None: nobody has. Raises `StorageError`."""
    if read_first.record is not None and _is_same_adoption(read_first.record, record):
        now = await read_owner(store)
        return None if (now.number, now.tag) == (read_first.number, read_first.tag) else now.record
    written = await replace_owner(store, read_first, record)
    if written is not None and not written.number:
        return None
    now = await read_owner(store)
    return None if now.record is None or _is_same_adoption(now.record, record) else now.record


def _is_same_adoption(found: OwnerRecord, record: OwnerRecord) -> bool:
    return not found.beats and found.term == record.term
