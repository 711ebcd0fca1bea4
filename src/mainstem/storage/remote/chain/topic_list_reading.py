"""Reads from the store alone which topics a cluster has: the newest list, by the head or by what is listed."""

from __future__ import annotations

from typing import NamedTuple

from mainstem.ports import ObjectRange, ObjectStore
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.object_stores.errors import ObjectAbsent
from mainstem.storage.remote.chain.chain_reading import ATTEMPTS, whole_object
from mainstem.storage.remote.chain.topic_list_format import TopicList, decode_topic_head, decode_topic_list
from mainstem.storage.store_files.object_names import TOPIC_HEAD, TOPIC_LISTS, topic_list_object


class KnownHead(NamedTuple):
    version: int
    """0: it is not there, or damaged."""
    tag: str | None
    """None: it is not there."""
    fault: str
    """Its damage; empty: there is none."""


async def read_topic_list(store: ObjectStore) -> TopicList | None:
    """The newest list of topics in a cluster's folder; None: it has none. Raises `FormatError` naming the object that
    is damaged, and `StorageError`."""
    for _ in range(ATTEMPTS):
        version = max([(await read_topic_head(store)).version, *await listed_versions(store)])
        if not version:
            return None
        try:
            name = topic_list_object(version)
            return decode_topic_list(await whole_object(store, name), name, version)
        except ObjectAbsent:
            continue
    raise StorageError(f"{TOPIC_LISTS}: no list of topics stays long enough to be read; try again")


async def read_topic_head(store: ObjectStore) -> KnownHead:
    """The hint at the newest list. Raises `StorageError`."""
    try:
        info = await store.info(TOPIC_HEAD)
        (content,) = await store.read(TOPIC_HEAD, [ObjectRange(0, info.size_bytes)])
    except ObjectAbsent:
        return KnownHead(0, None, "")
    try:
        return KnownHead(decode_topic_head(content, TOPIC_HEAD), info.tag, "")
    except FormatError as error:
        return KnownHead(0, info.tag, str(error))


async def listed_versions(store: ObjectStore) -> list[int]:
    """The versions of the lists that are there, rising; a store may list one late. Raises `StorageError`."""
    versions: list[int] = []
    page = await store.page_for_upkeep(TOPIC_LISTS)
    while page:
        versions += [int(entry.name.rpartition("/")[2]) for entry in page]
        page = await store.page_for_upkeep(TOPIC_LISTS, page[-1].name)
    return versions
