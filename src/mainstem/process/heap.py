"""Keeps the garbage collector away from objects that live as long as the node, and full collections out of requests.

A full collection visits every object, and holds the event loop meanwhile: 95 ms over a million of them. Most objects
of a node are modules and topics, which never become garbage by themselves. So nothing is collected while the node
starts (`cli/serve.py` begins with that, before the first import), the objects of the start are then frozen (left out
of collections for good), and so are topics whenever many were created. A frozen object is still freed when no
reference to it is left; only cycles of frozen objects stay. After a start those are some two thousand of 80,000
objects, which is cheaper than to search them all (a twentieth of a second, a tenth of the start).

Requests are left out by their messages themselves (`protocol/message_class.py`). The collector collects all else while
it is young, whenever that is due; of the full collections, which visit everything that is not frozen, most are made
while requests hold little."""

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

FULL_AFTER_MIDDLE = 100
"""So many of the middle generation, and a full collection comes about wherever the loop is then: no more garbage is
ever left than four million objects had room for, or a quarter of what lives."""

QUIET_FULL_AFTER_MIDDLE = 10
"""So many, and the first quiet moment has a full collection, so that the other kind hardly ever comes."""

QUIET_BYTES_MAX = 1024 * 1024
"""A moment is quiet while requests hold no more than this: it takes a hundred times as much for a full collection to
be long because of them."""

LOOK_SECONDS = 1.0
"""Between looks for a quiet moment. A look costs less than a microsecond."""

FULL_GENERATIONS = 2
GROWN_SHARE = 4
"""The living objects must have grown by one part in so many since the last full collection, as Python has it: for each
new object a full collection then visits a few old ones at the most, however many there are."""

YOUNG_GENERATIONS = 1
"""The generation collected before a freeze, so that no garbage is frozen; takes less than a millisecond."""


class Heap:
    """Sets the garbage collector of this process. `start` first, `started` when the node is ready, `keep` from then
    on. `held_by_requests` gives bytes."""

    def __init__(self, held_by_requests: Callable[[], int] = lambda: 0) -> None:
        self._held_by_requests = held_by_requests
        self._created_since = 0
        self._lived = 0
        """Objects that the last full collection in a quiet moment left."""
        self._collected = False
        """They are to be counted: in a turn of its own, as that visits each once more."""

    def start(self) -> None:
        gc.disable()

    def started(self) -> None:
        """The node is ready, or its start has failed."""
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, MIDDLE_AFTER_YOUNG, FULL_AFTER_MIDDLE)
        gc.enable()

    async def keep(self, held_by_requests: Callable[[], int]) -> None:
        """Look for quiet moments until cancelled. The function gives bytes."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look(held_by_requests())

    def look(self, held_by_requests: int) -> None:
        """Make a full collection if one is due soon and the moment is quiet; the look after it counts what lives."""
        if held_by_requests > QUIET_BYTES_MAX:
            return
        if self._collected:
            self._collected = False
            self._lived = len(gc.get_objects(FULL_GENERATIONS))
            return
        middle_collections = gc.get_count()[FULL_GENERATIONS]
        if middle_collections < QUIET_FULL_AFTER_MIDDLE:
            return
        grown_max = middle_collections * MIDDLE_OBJECTS
        if grown_max * GROWN_SHARE < self._lived:
            return
        gc.collect()
        self._collected = True

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
            gc.collect(YOUNG_GENERATIONS)
            gc.freeze()
