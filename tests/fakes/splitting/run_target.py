"""The place in which the writers of store files write, on a simulated disk."""

from __future__ import annotations

from collections.abc import Callable

from tests.fakes.files import SimulatedFiles

from mainstem.model import Buffer
from mainstem.storage.store_files.store_file import TEMPORARY_INFIX, path_of


class SimulatedTarget:
    """`RunTarget` onto a simulated disk: a finished file is durable at once, and there is ENOSPC when it has no room.
    `leaves`: what is abandoned lies there under a temporary name, as if the process had died instead."""

    def __init__(self, files: SimulatedFiles, path: str, *, leaves: bool = False) -> None:
        self._files = files
        self._path = path
        self._leaves = leaves
        self._content: bytearray | None = bytearray()

    def write(self, buffer: Buffer) -> None:
        assert self._content is not None, f"{self._path} is finished or abandoned"
        self._content += buffer

    def finish(self) -> None:
        assert self._content is not None, f"{self._path} is finished or abandoned"
        self._files.require_room(len(self._content), self._path)
        self._files.put(self._path, bytes(self._content))
        self._content = None

    def abandon(self) -> None:
        if self._content is not None and self._leaves:
            self._files.put(f"{self._path}{TEMPORARY_INFIX}1", bytes(self._content))
        self._content = None


def dying_writers(files: SimulatedFiles) -> Callable[[str], SimulatedTarget]:
    """Opens files by their names in the queue store, whose unfinished ones lie there afterwards."""
    return lambda name: SimulatedTarget(files, path_of(name), leaves=True)
