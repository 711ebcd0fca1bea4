"""The leader of write group 0 writes to the store which topics the cluster has, for a second cluster, and for one whose
disks 1 are lost. Nothing of the running cluster reads it, or waits for it.

    topics/lists/<version>     all topics as of an entry of the metadata's log, created once
    topics/head                a hint at the newest list

A list is written when topics have changed. Its version is the metadata's own, so that a node which is behind, or was
deposed and does not know it yet, writes an older list or none, and never hides a newer one. The two newest lists stay.
A cluster that never moved anything to the store, and has no topic that asks for it, writes none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

from mainstem.model import Sample, TopicsAsOf
from mainstem.ports import ObjectRange, ObjectStore
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.object_stores.errors import (
    ObjectAbsent,
    ObjectChanged,
    ObjectExists,
    ObjectTooShort,
    ReplaceUnsupported,
)
from mainstem.storage.remote.chain.chain_reading import whole_object
from mainstem.storage.remote.chain.topic_list_format import (
    ListedTopic,
    TopicList,
    decode_topic_list,
    encode_topic_head,
    encode_topic_list,
    listed,
)
from mainstem.storage.remote.chain.topic_list_reading import listed_versions, read_topic_head
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.store_files.object_names import TOPIC_HEAD, topic_list_object
from mainstem.storage.write_groups.write_group import WriteGroup

log = logging.getLogger(__name__)

PAUSE_SECONDS = 5.0
"""Topics that are created one by one share a list: with 200,000 of them it has 25 MB."""

KEPT_LISTS = 2
"""A reader finds the newest by the head, a moment before the next one comes."""


class _Written:
    """The knowledge that a leader has of the lists in the store, in one term."""

    def __init__(self, term: int, versions: list[int], head: int, tag: str | None) -> None:
        self.term = term
        self.versions = versions
        """Of the lists that are there, rising."""
        self.doubtful: set[int] = set()
        """Versions that were to be written, and of which nobody knows whether they are there."""
        self.head = head
        """The version that the head has."""
        self.tag = tag
        """Of the head's object; None: there is none."""
        self.said: TopicsAsOf | None = None
        """The content of the newest list, or a later version of the same; None: that is not known."""


class TopicListWriter:
    """Writes the lists of topics, while this node leads write group 0."""

    def __init__(
        self,
        tier: RemoteTier,
        store: ObjectStore,
        groups: Sequence[WriteGroup],
        topics_as_of: Callable[[], Awaitable[TopicsAsOf]],
    ) -> None:
        """`store` is the cluster's folder."""
        self._tier = tier
        self._store = store
        self._groups = groups
        self._topics_as_of = topics_as_of
        self._written: _Written | None = None
        self._failure = ""
        self.lists_written = 0

    async def run(self) -> None:
        """Write what is new, again and again, until cancelled."""
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                if self._groups and self._groups[0].serving:
                    await self.follow()
            except (StorageError, OSError) as error:
                if type(error).__name__ != self._failure:
                    log.warning("the list of topics is not written to the object store now, but later: %s", error)
                self._failure = type(error).__name__
            else:
                self._failure = ""

    @property
    def has_begun(self) -> bool:
        """Whether the store has lists of the cluster, as far as this node has written or looked for them."""
        return self._written is not None

    async def follow(self) -> None:
        """Write the topics, if the store does not have them as they are. Raises `StorageError`."""
        term, now = self._groups[0].term, await self._topics_as_of()
        written = self._written
        if written is None or written.term != term:
            if not self._wanted(now):
                return
            written = self._written = await self._begin(term, now)
        if written.said is None or not _same(written.said, now):
            if written.versions and written.versions[-1] > now.version:
                return  # this node is behind the one that wrote it
            await self._write(written, now)
        written.said = now
        if written.head < written.versions[-1]:
            await self._tell(written)
        await self._delete_old(written)

    def _wanted(self, now: TopicsAsOf) -> bool:
        """Whether the store has, or may soon have, anything of this cluster."""
        return any(self._tier.position(group.group).number for group in self._groups) or any(
            topic.settings.remote_storage_enable for topic in now.topics
        )

    async def _begin(self, term: int, now: TopicsAsOf) -> _Written:
        """Find out which lists there are, and whether the newest says what is true now."""
        head = await read_topic_head(self._store)
        if head.fault:
            log.warning("the head of the lists of topics is written anew: %s", head.fault)
        versions = await listed_versions(self._store)
        if head.version > max(versions, default=0):
            versions.append(head.version)
        written = _Written(term, versions, head.version, head.tag)
        newest = await self._newest(versions)
        if newest is not None and newest.version <= now.version and await _says(newest, now):
            written.said = now
        return written

    async def _newest(self, versions: Sequence[int]) -> TopicList | None:
        if not versions:
            return None
        name = topic_list_object(versions[-1])
        try:
            return decode_topic_list(await whole_object(self._store, name), name, versions[-1])
        except (ObjectAbsent, FormatError) as error:
            log.warning("the list of topics is written anew: %s", error)
            return None

    async def _write(self, written: _Written, now: TopicsAsOf) -> None:
        frames: list[bytes] = []
        for part in encode_topic_list(now):
            frames.append(part)
            await asyncio.sleep(0)
        name, content = topic_list_object(now.version), b"".join(frames)
        written.said = None
        written.doubtful.add(now.version)
        try:
            await self._store.write(name, content)
        except ObjectExists as error:
            if not await self._has(name, content):
                raise StorageError(
                    f"{name}: says something else than the metadata does; is the folder another cluster's?"
                ) from error
        else:
            self.lists_written += 1
        written.doubtful.discard(now.version)
        if now.version not in written.versions:
            written.versions.append(now.version)

    async def _has(self, name: str, content: bytes) -> bool:
        try:
            (there,) = await self._store.read(name, [ObjectRange(0, len(content))])
        except ObjectTooShort:
            return False
        return bytes(there) == content

    async def _tell(self, written: _Written) -> None:
        """Write the head, where the store can replace it."""
        version = written.versions[-1]
        try:
            info = await self._store.write(TOPIC_HEAD, encode_topic_head(version), replaces=written.tag)
        except ReplaceUnsupported:
            pass
        except (ObjectExists, ObjectChanged):  # another leader's, or this one's, whose answer was lost
            self._written = None
            return
        else:
            written.tag = info.tag
        written.head = version

    async def _delete_old(self, written: _Written) -> None:
        old = [*written.versions[:-KEPT_LISTS], *sorted(written.doubtful)]
        if old and self._written is written:
            await self._store.delete([topic_list_object(version) for version in old])
            del written.versions[:-KEPT_LISTS]
            written.doubtful.clear()

    # --- statistics -----------------------------------------------------------------------------------------

    def samples(self) -> Iterator[Sample]:
        yield Sample(
            "mainstem_remote_topic_lists_total",
            "counter",
            "Lists of the cluster's topics written to the object store",
            self.lists_written,
        )


def _same(one: TopicsAsOf, other: TopicsAsOf) -> bool:
    """Whether both say the same, of whatever version."""
    return one.version == other.version or one._replace(version=0) == other._replace(version=0)


async def _says(found: TopicList, now: TopicsAsOf) -> bool:
    """Whether a list that was read says what is true now."""
    if (found.next_number, found.write_groups, len(found.topics), found.slots) != (
        now.next_number,
        now.write_groups,
        len(now.topics),
        now.slots,
    ):
        return False
    there: dict[int, ListedTopic] = {topic.number: topic for topic in found.topics}
    for number, topic in enumerate(now.topics, 1):
        if there.get(topic.number) != listed(topic):
            return False
        if number % 1_000 == 0:
            await asyncio.sleep(0)
    return True
