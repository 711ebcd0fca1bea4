"""`ports.Files` in memory, with power cuts: what was not forced to disk may be lost, kept or torn.

`cut_after` counts operations that change something; the one that brings it to zero raises `PowerCut` after its
bytes reached the page cache, and so does every later one. `after_power_cut` is the disk as the next start finds
it. `failure`, when set, is raised by every write instead.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from mainstem.model import Buffer
from mainstem.ports import DiskUsage


class PowerCut(Exception):
    """The machine went dark."""


class MemoryDisk:
    def __init__(self, durable: dict[str, bytes] | None = None) -> None:
        self.durable: dict[str, bytes] = dict(durable or {})
        self.content: dict[str, bytearray] = {path: bytearray(data) for path, data in self.durable.items()}
        self.pending: dict[str, list[tuple[int, bytes]]] = {}
        self.locked: set[str] = set()
        self.cut_after: int | None = None
        self.failure: OSError | None = None
        self.changes = 0

    # Files

    async def open(self, path: str, *, create: bool = False) -> MemoryFile:
        if path not in self.content:
            if not create:
                raise FileNotFoundError(path)
            self.content[path] = bytearray()
        return MemoryFile(self, path)

    async def names(self, directory: str) -> list[str]:
        prefix = directory + "/"
        return sorted({path[len(prefix) :].split("/")[0] for path in self.content if path.startswith(prefix)})

    async def rename(self, source: str, target: str) -> None:
        self.content[target] = self.content.pop(source)
        self.durable[target] = self.durable.pop(source, b"")
        self.pending[target] = self.pending.pop(source, [])
        self.changed()

    async def remove(self, path: str) -> None:
        self.changed()
        self.content.pop(path, None)
        self.durable.pop(path, None)
        self.pending.pop(path, None)

    async def usage(self) -> DiskUsage:
        return DiskUsage(1 << 30, (1 << 30) - sum(map(len, self.content.values())))

    # under the test's control

    def changed(self) -> None:
        self.changes += 1
        if self.cut_after is not None:
            self.cut_after -= 1
            if self.cut_after <= 0:
                raise PowerCut

    def force(self, path: str) -> None:
        self.durable[path] = bytes(self.content[path])
        self.pending[path] = []

    def after_power_cut(self, randomness: random.Random) -> MemoryDisk:
        survived: dict[str, bytes] = {}
        for path in self.content:
            if path not in self.durable and randomness.random() < 0.5:
                continue
            data = bytearray(self.durable.get(path, b""))
            for position, written in self.pending.get(path, []):
                kept = written[: randomness.choice((0, len(written), randomness.randint(0, len(written))))]
                if len(data) < position:
                    data.extend(bytes(position - len(data)))
                data[position : position + len(kept)] = kept
            survived[path] = bytes(data)
        return MemoryDisk(survived)


class MemoryFile:
    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._locked = False

    async def read(self, position: int, length: int) -> bytes:
        return bytes(self._disk.content[self._path][position : position + length])

    async def write(self, position: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        if self._disk.failure is not None:
            raise self._disk.failure
        data = b"".join(buffers)
        content = self._disk.content[self._path]
        if len(content) < position:
            content.extend(bytes(position - len(content)))
        content[position : position + len(data)] = data
        self._disk.pending.setdefault(self._path, []).append((position, data))
        self._disk.changed()
        if sync:
            self._disk.force(self._path)

    async def sync(self) -> None:
        if self._disk.failure is not None:
            raise self._disk.failure
        self._disk.changed()
        self._disk.force(self._path)

    async def size(self, *, truncate_to: int | None = None) -> int:
        content = self._disk.content[self._path]
        if truncate_to is not None:
            del content[truncate_to:]
            content.extend(bytes(truncate_to - len(content)))
        return len(content)

    async def lock(self, *, exclusive: bool) -> bool:
        if self._path in self._disk.locked:
            return False
        self._disk.locked.add(self._path)
        self._locked = True
        return True

    async def close(self) -> None:
        if self._locked:
            self._disk.locked.discard(self._path)
