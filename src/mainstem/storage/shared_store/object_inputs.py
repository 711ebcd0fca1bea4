"""Reads the inputs of merges and compactions from a shared store.

A request takes longer than the bytes that it brings, so that there are to be few: the end of each index comes with its
last `TAIL_READ_BYTES`, which is all of most, and is kept for the second look at it; those of the next inputs are on
their way by then. Of a window, all ranges of all objects are asked for at once, and the store makes one request of
those that lie near each other (`ObjectStore.read`).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from mainstem.lru import Lru
from mainstem.model import Buffer
from mainstem.ports import ObjectRange
from mainstem.storage.errors import FormatError
from mainstem.storage.merging.merge_inputs import WINDOW_BYTES_MAX, InputEnds, InputPiece
from mainstem.storage.object_stores.errors import ObjectAbsent, ObjectTooShort
from mainstem.storage.shared_store.blocking_store import BlockingStore, ObjectReads

TAIL_READ_BYTES = 256 << 10
"""The index of a run of 64 MiB, unless its queues are many: 4,096 rows."""

TAILS_BYTES_MAX = 64 << 20
"""Of ends that are kept: those of 256 inputs."""

AHEAD = 8
"""Inputs whose ends are on their way at a time."""


class _Tail:
    """The end of an object."""

    def __init__(self, size: int, content: Buffer) -> None:
        self.size = size
        self.content = memoryview(content)
        self.begins = size - len(self.content)


class ObjectInputs:
    """`InputReader` of objects. Raises `ObjectStoreError` where the store does not answer."""

    def __init__(
        self, store: BlockingStore, names: Sequence[str] = (), *, tail_read_bytes: int = TAIL_READ_BYTES
    ) -> None:
        """`names`: the objects of indexes, in the order in which they are asked for."""
        self._store = store
        self._tail_read_bytes = tail_read_bytes
        self._names = list(names)
        self._places = {name: place for place, name in enumerate(names)}
        self._begun: dict[str, Future[tuple[int, Buffer]]] = {}
        self._tails: Lru[str, _Tail] = Lru(TAILS_BYTES_MAX, weight=lambda tail: len(tail.content))

    def tail(self, path: str, size: int) -> tuple[int, bytes]:
        """As `InputReader.tail`. Raises FormatError where there is no such object, or it became shorter meanwhile."""
        assert size <= self._tail_read_bytes
        found = self._tail(path)
        return found.size, bytes(found.content[max(0, len(found.content) - size) :])

    def window_bytes(self, inputs: int) -> int:
        """As many as there may be: each window waits for the store once."""
        return WINDOW_BYTES_MAX

    def read(self, pieces: Sequence[InputPiece]) -> None:
        by_name: dict[str, list[int]] = {}
        for number, (path, position, into) in enumerate(pieces):
            if not self._from_tail(path, position, into):
                by_name.setdefault(path, []).append(number)
        if not by_name:
            return
        reads = [
            ObjectReads(name, [ObjectRange(pieces[number].position, len(pieces[number].into)) for number in numbers])
            for name, numbers in by_name.items()
        ]
        for numbers, found in zip(by_name.values(), self._store.read_all(reads), strict=True):
            if isinstance(found, ObjectAbsent | ObjectTooShort):
                raise InputEnds(str(found), numbers[0]) from found
            if isinstance(found, BaseException):
                raise found
            for number, content in zip(numbers, found, strict=True):
                pieces[number].into[:] = content

    def close(self) -> None:
        """Wait for what is on its way."""
        for begun in self._begun.values():
            begun.exception()
        self._begun.clear()

    def _tail(self, path: str) -> _Tail:
        found = self._tails.get(path)
        if found is not None:
            return found
        place = self._places.get(path, len(self._names))
        for name in [path, *self._names[place + 1 : place + AHEAD]]:
            if name not in self._begun and name not in self._tails:
                self._begun[name] = self._store.begin_reading(name, self._tail_read_bytes)
        try:
            found = _Tail(*self._begun.pop(path).result())
        except (ObjectAbsent, ObjectTooShort) as error:
            raise FormatError(str(error)) from error
        self._tails.put(path, found)
        return found

    def _from_tail(self, path: str, position: int, into: memoryview) -> bool:
        """Fill the buffer, if the end that is kept of the object has all of it."""
        found = self._tails.peek(path)
        if found is None or position < found.begins or position + len(into) > found.size:
            return False
        into[:] = found.content[position - found.begins : position - found.begins + len(into)]
        return True
