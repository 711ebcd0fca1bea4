"""Keeps the garbage collector away from objects that live as long as the node.

A full collection visits every object, and holds the event loop meanwhile: 95 ms over a million of them. Most objects
of a node are modules and topics, which never become garbage by themselves. So nothing is collected while the node
starts (`cli/serve.py` begins with that, before the first import), the objects of the start are then frozen (left out
of collections for good), and so are topics whenever many were created. A frozen object is still freed when no
reference to it is left; only cycles of frozen objects stay. After a start those are some two thousand of 80,000
objects, which is cheaper than to search them all (a twentieth of a second, a tenth of the start).
"""

from __future__ import annotations

import ctypes
import gc
import logging
import threading

from mainstem.nameserver.state.commands import Event, TopicCreated

log = logging.getLogger(__name__)

FREEZE_EVERY_TOPICS = 2_000
"""Objects between freezes, some thousand: too few for a full collection to come about in between."""

YOUNG_OBJECTS = 10_000
"""Allocations between collections of the youngest: requests are no cycles and free themselves, so searching
those in flight for garbage is nearly always in vain (a twentieth of the CPU of small requests at Python's
700). Some megabytes of cyclic garbage at most."""

MIDDLE_AFTER_YOUNG = 2
FULL_AFTER_MIDDLE = 100
"""Python's 10 and 10 let 200,000 objects gather for one collection of the middle generation: 20 to 60 ms in
which a long request, which makes as many, delays all others. With this value a collection visits 30,000 at
the most."""

YOUNG_GENERATIONS = 1
"""The generation collected before a freeze, so that no garbage is frozen; takes less than a millisecond."""


def give_memory_back() -> None:
    """Have the allocator give unused memory back to the machine, in a thread of its own. By itself it keeps
    all memory below the smallest used piece (5 GB of 7 for good, after two thousand connections had closed
    that did not read their responses)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it, and only glibc needs it
    if trim is None:
        return

    def run() -> None:
        trim(0)
        log.debug("memory that nothing uses was given back to the machine")

    threading.Thread(target=run, name="give memory back", daemon=True).start()


class Heap:
    """Sets the garbage collector of this process. `start` first, `started` when the node is ready."""

    def __init__(self) -> None:
        self._created_since = 0

    def start(self) -> None:
        gc.disable()

    def started(self) -> None:
        """The node is ready, or its start has failed."""
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, MIDDLE_AFTER_YOUNG, FULL_AFTER_MIDDLE)
        gc.enable()

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
