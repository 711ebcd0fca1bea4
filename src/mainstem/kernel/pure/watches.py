"""Watches know which readers wait for which queues to get committed batches.

A watch is one reader's: it fires once, when enough bytes have been committed to its queues together, or when one of
them changed in another way. The table marks the watched queues, so that applying a block reports only their batches. A
queue without a watch costs nothing.

Pure-Python twin of the compiled watches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from mainstem.kernel.layout import COMMITTED_END, ENTRIES, NO_SLOT, WATCHED
from mainstem.kernel.pure.fetch_plan import FetchPlan
from mainstem.kernel.pure.queue_table import QueueTable
from mainstem.model import topic_number_of

L = TypeVar("L")


class Watch(Generic[L]):
    """The watch of one reader. Made by `Watches.begin`."""

    __slots__ = ("fired", "listener", "missing", "queue_ids")

    def __init__(self, queue_ids: list[int], missing: int, listener: L) -> None:
        self.queue_ids = queue_ids
        self.missing = missing
        self.fired = False
        self.listener = listener


class Watches(Generic[L]):
    """All watches over the queues of a table."""

    def __init__(self, table: QueueTable) -> None:
        self._table = table
        self._by_queue: dict[int, dict[Watch[L], None]] = {}

    def __len__(self) -> int:
        """Watches of queues: a watch of two queues counts twice."""
        return sum(map(len, self._by_queue.values()))

    def begin(self, queues: FetchPlan | Mapping[int, int], bytes_min: int, listener: L) -> Watch[L] | None:
        """Watch the queues of a plan that were read in this round, or queues by id, from the high watermark on that
        was found or is given. At least one byte has to come. None when one of the queues is further already, or
        gone."""
        ends = queues.ends() if isinstance(queues, FetchPlan) else queues
        slots = {}
        for queue_id, end in ends.items():
            slot = slots[queue_id] = self._table.find(queue_id)
            if slot == NO_SLOT or self._table.get(slot, COMMITTED_END) > end:
                return None
        watch = Watch(list(ends), max(bytes_min, 1), listener)
        for queue_id, slot in slots.items():
            self._by_queue.setdefault(queue_id, {})[watch] = None
            self._table.set(slot, ENTRIES, self._table.get(slot, ENTRIES) | WATCHED)
        return watch

    def end(self, watch: Watch[L]) -> None:
        """Forget a watch; one that is forgotten already is no error."""
        queue_ids, watch.queue_ids = watch.queue_ids, []
        for queue_id in queue_ids:
            others = self._by_queue[queue_id]
            del others[watch]
            if not others:
                del self._by_queue[queue_id]
                slot = self._table.find(queue_id)
                if slot != NO_SLOT:
                    self._table.set(slot, ENTRIES, self._table.get(slot, ENTRIES) & ~WATCHED)

    def committed(self, batches: Iterable[tuple[int, int]]) -> list[L]:
        """(queue id, bytes) of batches that have just been applied. Returns the listeners of the watches that fire,
        in no particular order."""
        found: list[L] = []
        for queue_id, size in batches:
            for watch in self._by_queue.get(queue_id, ()):
                watch.missing -= size
                self._fire(watch, watch.missing <= 0, found)
        return found

    def changed(self, queue_ids: Iterable[int]) -> list[L]:
        """The listeners of the watches of these queues, which changed in another way: they fire."""
        found: list[L] = []
        for queue_id in queue_ids:
            for watch in self._by_queue.get(queue_id, ()):
                self._fire(watch, True, found)
        return found

    def topic_gone(self, topic_number: int) -> list[L]:
        """The listeners of the watches of a topic's queues: they fire."""
        return self.changed([queue_id for queue_id in self._by_queue if topic_number_of(queue_id) == topic_number])

    @staticmethod
    def _fire(watch: Watch[L], enough: bool, found: list[L]) -> None:
        if enough and not watch.fired:
            watch.fired = True
            found.append(watch.listener)
