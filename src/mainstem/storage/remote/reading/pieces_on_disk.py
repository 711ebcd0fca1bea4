"""Pieces of remote files, kept on disk 2 for those who read them again.

One file of slots of the same size, below `DIRECTORY`; a table in memory says what is in which slot, so that a start
begins with an empty cache. A piece that comes when all slots are taken is kept only if it came before: who passes
through a long history once puts nothing out. Eviction is segmented as in memory (`read_cache/held_chunks.py`): a piece
is on probation until it is read from here.

Each piece has a checksum, which is checked when it is read. One that fails is dropped and comes from the object store
again: bytes that went bad here are damage of nothing.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from mainstem.kernel import crc32c
from mainstem.lru import Lru
from mainstem.model import Buffer, Sample
from mainstem.ports import Clock, File, Files
from mainstem.supervised import Errands, Supervision

log = logging.getLogger(__name__)

DIRECTORY = "remote-cache"
PATH = f"{DIRECTORY}/pieces"

PROTECTED_SHARE = 0.8
"""The share of the slots for pieces that were read from here."""

UNWRITTEN_BYTES_MAX = 16 << 20
"""Bytes on their way to the disk; a piece beyond them is not kept."""

REMEMBERED_SHARE = 4
"""How many pieces are remembered that came and were not kept, per slot: one that comes again within so many is."""

PAUSE_SECONDS = 60.0
"""Nothing is kept for so long after the disk has failed a write, for lack of room for example."""


class KeptPiece(NamedTuple):
    """A stretch of a file in the remote tier; two that overlap are kept apart."""

    path: str
    position: int
    length: int


class _Kept(NamedTuple):
    slot: int
    crc: int


class PiecesOnDisk:
    """Made by `open`. Sizes in bytes."""

    def __init__(self, file: File, clock: Clock, slots: int, slot_bytes: int, supervision: Supervision | None) -> None:
        self._file = file
        self._clock = clock
        self.slot_bytes = slot_bytes
        self._slots = slots
        self._free = list(range(slots - 1, -1, -1))
        self._probation: OrderedDict[KeptPiece, _Kept] = OrderedDict()
        self._protected: OrderedDict[KeptPiece, _Kept] = OrderedDict()
        self._came_before: Lru[KeptPiece, bool] = Lru(REMEMBERED_SHARE * slots)
        self._writes = Errands(supervision, "piece to disk 2")
        self._writing: dict[KeptPiece, int] = {}
        """The slots of pieces that are being written, and are to be kept."""
        self._unwritten_bytes = 0
        self._paused_until = 0.0
        self.hits = 0
        self.misses = 0
        self.rotten = 0
        """Pieces that failed their checksums."""

    @classmethod
    async def open(
        cls, files: Files, clock: Clock, bytes_max: int, slot_bytes: int, supervision: Supervision | None = None
    ) -> PiecesOnDisk | None:
        """An empty cache of at most `bytes_max` on this disk; None where that has no room for one slot: what an earlier
        start left is removed then. Raises OSError."""
        slots = bytes_max // slot_bytes
        if not slots:
            await files.remove(PATH)
            return None
        file = await files.open(PATH, create=True)
        await file.size(truncate_to=0)
        return cls(file, clock, slots, slot_bytes, supervision)

    def __len__(self) -> int:
        """Pieces held."""
        return len(self._probation) + len(self._protected)

    async def read(self, key: KeptPiece) -> Buffer | None:
        """The bytes of a piece; None: it is not here."""
        kept = self._protected.get(key) or self._probation.get(key)
        if kept is None:
            self.misses += 1
            return None
        try:
            content = await self._file.read(kept.slot * self.slot_bytes, key.length, at_once=True)
        except OSError as error:
            log.warning("disk 2 cannot read what it keeps of %s at %d: %s", key.path, key.position, error)
            self._drop(key, kept)
            self.misses += 1
            return None
        if self._protected.get(key) is not kept and self._probation.get(key) is not kept:
            self.misses += 1
            return None  # its slot was given away meanwhile
        if len(content) != key.length or crc32c(content) != kept.crc:
            log.warning("what disk 2 keeps of %s at %d fails its checksum; it comes anew", key.path, key.position)
            self.rotten += 1
            self.misses += 1
            self._drop(key, kept)
            return None
        self._protect(key, kept)
        self.hits += 1
        return content

    def keep(self, key: KeptPiece, content: Buffer) -> None:
        """Write a piece to the disk, in the background, if there is a slot for it."""
        if key in self._writing or key in self._probation or key in self._protected:
            return
        too_much = self._unwritten_bytes + len(content) > UNWRITTEN_BYTES_MAX or len(content) > self.slot_bytes
        if too_much or self._clock.monotonic() < self._paused_until:
            return
        slot = self._slot_for(key)
        if slot is not None:
            self._writing[key] = slot
            self._unwritten_bytes += len(content)
            self._writes.start(self._write(key, slot, content))

    def forget(self, path: str) -> None:
        """Drop the pieces of a file that is gone, or whose bytes are others now; those being written are not kept."""
        for key in [key for key in self._writing if key.path == path]:
            del self._writing[key]
        for part in (self._probation, self._protected):
            for key, kept in [(key, kept) for key, kept in part.items() if key.path == path]:
                self._drop(key, kept)

    async def close(self) -> None:
        self._writes.cancel()
        await self._writes.ended()
        await self._file.close()

    def samples(self) -> Iterable[Sample]:
        held = len(self) * self.slot_bytes
        yield Sample("mainstem_remote_disk_cache_bytes", "gauge", "Disk 2 held by pieces of remote files.", held)
        what = "Pieces of remote files looked for on disk 2, by what was found."
        for found, count in (("hit", self.hits), ("miss", self.misses)):
            yield Sample("mainstem_remote_disk_cache_reads_total", "counter", what, count, (("found", found),))
        yield Sample(
            "mainstem_remote_disk_cache_rotten_total",
            "counter",
            "Pieces of remote files that failed their checksums on disk 2.",
            self.rotten,
        )

    # --- slots ----------------------------------------------------------------------------------------------

    def _slot_for(self, key: KeptPiece) -> int | None:
        if self._free:
            return self._free.pop()
        if self._came_before.pop(key) is None:
            self._came_before.put(key, True)
            return None
        if not self:
            return None  # all slots are being written
        _key, kept = (self._probation or self._protected).popitem(last=False)
        return kept.slot

    async def _write(self, key: KeptPiece, slot: int, content: Buffer) -> None:
        written = False
        try:
            await self._file.write(slot * self.slot_bytes, [content])
            written = True
        except OSError as error:
            log.warning("disk 2 keeps no pieces of remote files for %g s: %s", PAUSE_SECONDS, error)
            self._paused_until = self._clock.monotonic() + PAUSE_SECONDS
        finally:
            self._unwritten_bytes -= len(content)
            is_wanted = self._writing.get(key) == slot
            if is_wanted:
                del self._writing[key]
            if written and is_wanted:
                self._probation[key] = _Kept(slot, crc32c(content))
            else:
                self._free.append(slot)

    def _protect(self, key: KeptPiece, kept: _Kept) -> None:
        self._probation.pop(key, None)
        self._protected[key] = kept
        self._protected.move_to_end(key)
        while len(self._protected) > max(1, int(self._slots * PROTECTED_SHARE)):
            oldest, demoted = self._protected.popitem(last=False)
            self._probation[oldest] = demoted

    def _drop(self, key: KeptPiece, kept: _Kept) -> None:
        for part in (self._probation, self._protected):
            if part.get(key) is kept:
                del part[key]
                self._free.append(kept.slot)
