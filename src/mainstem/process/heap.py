"""Keeps the garbage collector away from objects that live as long as the node, and full collections out of requests.

A full collection visits every object, and holds the event loop meanwhile: 95 ms over a million of them. Most objects
of a node are modules and topics, which never become garbage by themselves. So nothing is collected while the node
starts (`cli/serve.py` begins with that, before the first import), the objects of the start are then frozen (left out
of collections for good), and so are topics whenever many were created. A frozen object is still freed when no
reference to it is left; only cycles of frozen objects stay. After a start those are some two thousand of 80,000
objects, which is cheaper than to search them all (a twentieth of a second, a tenth of the start).

Requests are left out by their messages themselves (`protocol/message_class.py`). The collector collects all else while
it is young, whenever that is due, and what outlives the middle generation is frozen at once: ten thousand connections
are three hundred thousand objects, and a collection that visited them all would be a turn of 165 ms. So a full
collection has nothing to visit, most of the time. Garbage in cycles that were frozen before they became garbage stays
meanwhile. When as much may have been frozen as would be a pity to leave, a quiet moment thaws all, collects it once,
and freezes what lives again."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

from mainstem.nameserver.state.commands import Event, TopicCreated

FREEZE_EVERY_TOPICS = 2_000
"""Objects between freezes, some thousand: too few for a full collection to come about in between."""

YOUNG_OBJECTS = 10_000
"""Allocations between collections of the youngest: requests are no cycles and free themselves, so searching
those in flight for garbage is nearly always in vain (a twentieth of the CPU of small requests at Python's
700). Some megabytes of cyclic garbage at most."""

MIDDLE_AFTER_YOUNG = 2
"""Python's 10 and 10 let 200,000 objects gather for one collection of the middle generation: 20 to 60 ms in
which a long request, which makes as many, delays all others."""

MIDDLE_OBJECTS = (MIDDLE_AFTER_YOUNG + 2) * YOUNG_OBJECTS
"""A collection of the middle generation visits no more, and comes about no sooner."""

THAW_AFTER_MIDDLE = 100
"""So many of the middle generation, and all is thawed and collected wherever the loop is then: no more garbage is ever
left than four million objects had room for, or a quarter of what lives."""

QUIET_THAW_AFTER_MIDDLE = 25
"""So many, and the first quiet moment thaws: a million objects. Ten thousand connections that stay are a third of
that; with half of it, twenty thousand that come would bring about the long turn that freezing them spares."""

FULL_AFTER_MIDDLE = 100
"""The collector's own rule for the oldest generation, which has nothing in it while a node runs."""

QUIET_BYTES_MAX = 1024 * 1024
"""A moment is quiet while requests hold no more than this: it takes a hundred times as much for a full collection to
be long because of them."""

LOOK_SECONDS = 1.0
"""Between looks for a quiet moment. A look costs less than a microsecond."""

GROWN_SHARE = 4
"""The living objects must have grown by one part in so many since all was thawed last: for each new object a few old
ones are visited at the most, however many there are."""

MIDDLE_GENERATION = 1
"""Collected before a freeze, so that no garbage is frozen; takes less than a millisecond."""


class Heap:
    """Sets the garbage collector of this process. `start` first, `started` when the node is ready, `keep` from then
    on. `held_by_requests` gives bytes."""

    def __init__(self) -> None:
        self._created_since = 0
        self._middle_collections = 0
        """Since all was thawed last."""
        self._lived = 0
        """Objects that were left then."""
        self._thawed = False
        """They are to be counted: in a turn of its own, as that passes each once more."""

    def start(self) -> None:
        gc.disable()

    def started(self) -> None:
        """The node is ready, or its start has failed."""
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, MIDDLE_AFTER_YOUNG, FULL_AFTER_MIDDLE)
        gc.enable()

    async def keep(self, held_by_requests: Callable[[], int]) -> None:
        """Freeze what outlives the middle generation, and look for quiet moments, until cancelled. The function gives
        bytes."""
        gc.callbacks.append(self.collected)
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                self.look(held_by_requests())
        finally:
            gc.callbacks.remove(self.collected)

    def collected(self, phase: str, info: dict[str, int]) -> None:
        """Listens to the collector: what the middle generation was collected of has become old, and is frozen. Takes
        less than a microsecond."""
        if phase == "stop" and info["generation"] == MIDDLE_GENERATION:
            self._middle_collections += 1
            gc.freeze()

    def look(self, held_by_requests: int) -> None:
        """Collect what is frozen, too, if that is due and the moment is quiet, or if it is overdue; the look after it
        counts what lives."""
        is_quiet = held_by_requests <= QUIET_BYTES_MAX
        if self._thawed and is_quiet:
            self._thawed = False
            self._lived = gc.get_freeze_count()
            return
        if self._middle_collections < (QUIET_THAW_AFTER_MIDDLE if is_quiet else THAW_AFTER_MIDDLE):
            return
        if self._middle_collections * MIDDLE_OBJECTS * GROWN_SHARE < self._lived:
            return
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._middle_collections = 0
        self._thawed = True

    def more_stays(self) -> None:
        """Freeze the modules imported since. Takes microseconds, and may be called in any thread."""
        gc.freeze()

    def topic_changed(self, event: Event) -> None:
        """Listens to the nameserver: freezes topics when many were created."""
        if not isinstance(event, TopicCreated):
            return
        self._created_since += 1
        if self._created_since >= FREEZE_EVERY_TOPICS:
            self._created_since = 0
            gc.collect(MIDDLE_GENERATION)
            gc.freeze()
