"""The leader of a write group writes what counts in the remote tier to the store as well: for a second cluster, and for
one whose disks 1 are lost. Nothing of the running cluster reads it, or waits for it.

    chain/<number>     the change, created once; all who lead write the same bytes
    images/<number>    all that counts with that change, now and then
    head               a hint at both

Changes are written in their order: where change n is, all since the newest image before it are. A leader that cannot go
on there, because an earlier one left a gap or this one could not hold the changes that the store was too slow for,
begins with an image. The leader deletes what two images make superfluous. It lists images, and looks for the first
change, when it begins: an earlier one may have been lost before it deleted, and HDFS keeps the first head for good.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial

from mainstem.model import Sample
from mainstem.ports import ObjectRange, ObjectStore
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.object_stores.errors import (
    ObjectAbsent,
    ObjectChanged,
    ObjectExists,
    ReplaceUnsupported,
)
from mainstem.storage.remote.chain.chain_format import (
    Head,
    decode_head,
    encode_change,
    encode_head,
    encode_image,
)
from mainstem.storage.remote.chain.chain_reading import first_listed_change, listed_images
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.store_files.object_names import change_object, head_object, image_object
from mainstem.storage.write_groups.control import RemoteChanged
from mainstem.storage.write_groups.write_group import WriteGroup

log = logging.getLogger(__name__)

PAUSE_SECONDS = 2.0
"""Changes of so long share a head, and an outage is met so often."""

HELD_MAX = 128
"""Changes of a write group that wait for the store, of 8 KiB at most, on each replica: a MiB. Behind more comes an
image."""

CHANGES_PER_IMAGE = 1_000
"""A reader of the chain reads at most two times as many changes."""


class _Written:
    """The knowledge that a leader has of a write group's chain, in one term."""

    def __init__(self, term: int, head: Head, tag: str | None, images: list[int]) -> None:
        self.term = term
        self.head = head
        self.tag = tag
        """Of the head's object; None: there is none."""
        self.told = head
        self.images = images
        """The numbers of those that are there."""


class RemoteChain:
    """Writes the chains of the write groups that this node leads."""

    def __init__(
        self,
        tier: RemoteTier,
        store: ObjectStore,
        groups: Sequence[WriteGroup],
        *,
        changes_per_image: int = CHANGES_PER_IMAGE,
        held_max: int = HELD_MAX,
    ) -> None:
        self._changes_per_image = changes_per_image
        self._held_max = held_max
        self._tier = tier
        self._store = store
        self._groups = groups
        self._held: dict[int, deque[RemoteChanged]] = {}
        """Changes that may not be in the store yet, the newest ones."""
        self._written: dict[int, _Written] = {}
        self._failure = ""
        self.changes_written = 0
        self.images_written = 0
        tier.watch(self._changed)

    def _changed(self, group: int, change: RemoteChanged) -> None:
        """Take note of a change that was applied, led here or not: the next leader may be this one."""
        self._held.setdefault(group, deque(maxlen=self._held_max)).append(change)

    async def run(self) -> None:
        """Write what is new, again and again, until cancelled."""
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                for group in self._groups:
                    if group.serving:
                        await self.follow(group.group)
            except (StorageError, OSError) as error:
                if type(error).__name__ != self._failure:
                    log.warning("the remote tier's chain is not written now, but later: %s", error)
                self._failure = type(error).__name__
            else:
                self._failure = ""

    async def follow(self, group: int) -> None:
        """Write the changes of a write group that are not in the store yet. Raises `StorageError`."""
        term, number = self._groups[group].term, self._tier.position(group).number
        if not number:
            return
        written = self._written.get(group)
        if written is None or written.term != term:
            written = self._written[group] = await self._begin(group, term)
        held = {change.number: change for change in self._held.get(group, ())}
        while written.head.number < number:
            change = held.get(written.head.number + 1)
            if change is None:  # a snapshot took its place, or it was too many
                await self._write_image(group, written)
                break
            await self._create(change_object(group, change.number), encode_change(group, change))
            written.head = Head(group, change.number, written.head.image, written.head.kept_from)
            self.changes_written += 1
        if written.head.number - written.head.image >= self._changes_per_image:
            await self._write_image(group, written)
        if written.head != written.told:
            await self._tell(group, written)

    # --- beginning ------------------------------------------------------------------------------------------

    async def _begin(self, group: int, term: int) -> _Written:
        """Find out how far the chain is."""
        head, tag = await self._head(group)
        images = await listed_images(self._store, group)
        image = max([head.image, *images])
        first = await first_listed_change(self._store, group)
        kept_from = head.kept_from if first is None else min(first, image or first)
        number = max(head.number, image)
        while await self._is_there(change_object(group, number + 1)):
            number += 1
        return _Written(term, Head(group, number, image, kept_from), tag, images)

    async def _head(self, group: int) -> tuple[Head, str | None]:
        name = head_object(group)
        try:
            info = await self._store.info(name)
            (content,) = await self._store.read(name, [ObjectRange(0, info.size_bytes)])
            return decode_head(content, name, group), info.tag
        except ObjectAbsent:
            return Head(group, 0, 0, 1), None
        except FormatError as error:
            log.warning("the head of the remote tier's chain is written anew: %s", error)
            return Head(group, 0, 0, 1), info.tag

    async def _is_there(self, name: str) -> bool:
        try:
            await self._store.info(name)
        except ObjectAbsent:
            return False
        return True

    # --- writing --------------------------------------------------------------------------------------------

    async def _create(self, name: str, content: bytes) -> None:
        try:
            await self._store.write(name, content)
        except ObjectExists as error:
            (there,) = await self._store.read(name, [ObjectRange(0, len(content))])
            if bytes(there) != content:
                raise StorageError(
                    f"{name}: says something else than the log does; is the folder another cluster's?"
                ) from error

    async def _write_image(self, group: int, written: _Written) -> None:
        """Write all that counts, and delete what the image before last, and this one, make superfluous."""
        position, notes, spans = await self._tier.image(group)

        async def parts() -> AsyncIterator[bytes]:
            for frame in encode_image(group, position, notes, spans.file_count, spans.described()):
                yield frame
                await asyncio.sleep(0)

        await self._store.write_parts(image_object(group, position.number), parts)
        self.images_written += 1
        written.images = sorted({*written.images, position.number})
        head = written.head
        written.head = Head(group, position.number, position.number, head.image or head.kept_from)
        await self._tell(group, written)
        gone = range(head.kept_from, written.head.kept_from)
        for first in range(gone.start, gone.stop, CHANGES_PER_IMAGE):
            part = range(first, min(first + CHANGES_PER_IMAGE, gone.stop))
            await self._store.delete(list(map(partial(change_object, group), part)))
        await self._store.delete([image_object(group, one) for one in written.images if one < written.head.kept_from])
        written.images = [one for one in written.images if one >= written.head.kept_from]

    async def _tell(self, group: int, written: _Written) -> None:
        """Write the head, where the store can replace it."""
        content, name = encode_head(written.head), head_object(group)
        try:
            info = await self._store.write(name, content, replaces=written.tag)
        except ReplaceUnsupported:
            pass
        except (ObjectExists, ObjectChanged):  # an earlier leader's, or this one's, whose answer was lost
            self._written.pop(group, None)
            return
        else:
            written.tag = info.tag
        written.told = written.head

    # --- statistics -----------------------------------------------------------------------------------------

    def behind(self) -> int:
        """Changes of the write groups that this node leads which the store does not have, as far as is known: all of a
        write group whose chain was not looked at in this term yet."""
        count = 0
        for group in self._groups:
            if group.serving:
                written = self._written.get(group.group)
                known = written.head.number if written is not None and written.term == group.term else 0
                count += max(0, self._tier.position(group.group).number - known)
        return count

    def samples(self) -> Iterator[Sample]:
        yield Sample(
            "mainstem_remote_chain_behind_changes",
            "gauge",
            "Changes of the remote tier that the object store was not told of yet",
            self.behind(),
        )
        yield Sample(
            "mainstem_remote_chain_changes_total",
            "counter",
            "Changes of the remote tier written to the object store",
            self.changes_written,
        )
        yield Sample(
            "mainstem_remote_chain_images_total",
            "counter",
            "Images of the remote tier written to the object store",
            self.images_written,
        )
