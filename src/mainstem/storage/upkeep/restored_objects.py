"""Files of the object store that were damaged or lost, and whose objects somebody has restored: they are whole again.

While a file is noted as damaged no merge takes it, and what memory and disk 1 hold of it may be its damaged bytes. So
each such file is read whole and checked once, and then whenever one of its objects has changed, appeared or gone. One
that was found whole is forgotten: a read that had begun before may note it anew.
"""

from __future__ import annotations

import logging

from mainstem.ports import ObjectStore
from mainstem.storage.errors import OutOfReach
from mainstem.storage.object_stores.errors import ObjectAbsent
from mainstem.storage.remote.reading.remote_history import RemoteHistory
from mainstem.storage.store_files.object_names import file_objects
from mainstem.storage.verifying.file_check import check_file
from mainstem.storage.verifying.findings import KAFKA_INDEX_ADVICE
from mainstem.storage.verifying.object_reading import ObjectsAsFiles

log = logging.getLogger(__name__)

FILES_PER_ROUND = 100
"""Each costs a request per object. A node with more damaged files waits a round for the next ones."""

Tags = tuple[str | None, ...]
"""Of a file's objects; None: there is none."""


class RestoredObjects:
    """Looks after the damaged files that readers of a node have met."""

    def __init__(self, store: ObjectStore, history: RemoteHistory) -> None:
        """`store`: the cluster's folder."""
        self._store = store
        self._history = history
        self._checked: dict[str, Tags] = {}
        """The state of the objects when a file was checked last, the one that waits longest first."""

    async def run(self) -> None:
        """One round. While the store is out, it ends early."""
        files = self._history.stored.manifest.files
        damaged = {damage.name for damage in self._history.damaged.all()}
        self._checked = {name: tags for name, tags in self._checked.items() if name in damaged}
        never = sorted(damaged - self._checked.keys())
        for name in [*never, *self._checked][:FILES_PER_ROUND]:
            group = min(self._history.stored.manifest.counts_for(name), default=None)
            file = files.get(name)
            if group is None or file is None:
                continue
            try:
                tags = await self._tags(group, name)
                before = self._checked.pop(name, None)
                self._checked[name] = tags
                if tags == before:
                    continue
                found = await check_file(ObjectsAsFiles(self._store, group), name, file)
            except OutOfReach as error:
                log.debug("damaged files are looked at later: %s", error)
                self._checked.pop(name, None)
                return
            if all(one.advice == KAFKA_INDEX_ADVICE for one in found):
                del self._checked[name]
                await self._history.whole_again(name, "every byte of its objects was read, and passes its checks")

    async def _tags(self, group: int, name: str) -> Tags:
        tags: list[str | None] = []
        for one in file_objects(group, name):
            try:
                tags.append((await self._store.info(one)).tag)
            except ObjectAbsent:
                tags.append(None)
        return tuple(tags)
