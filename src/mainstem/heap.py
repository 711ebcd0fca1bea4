"""Keeps the garbage collector away from what lives as long as the node does.

A full collection looks at every object there is, and holds the event loop meanwhile: 95 ms over a million of them.
Most objects of a node are modules and topics, which never become garbage by themselves. So nothing is collected while
the node starts, what is there then is frozen (left out of collections for good), and so are topics whenever many
were created. Frozen objects are still freed when nobody refers to them any more; only cycles among them stay.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import threading

from mainstem.nameserver.commands import Event, TopicCreated

log = logging.getLogger(__name__)

FREEZE_EVERY_TOPICS = 2_000
"""Some thousand objects: too few for a full collection to come about in between."""

YOUNG_OBJECTS = 20_000
"""Allocations between collections of the youngest: requests are no cycles and free themselves, so that looking for
garbage among those in flight is nearly all for nothing (a twentieth of the CPU of small requests at Python's 700).
Some megabytes of cyclic garbage at most."""

MIDDLE_AFTER_YOUNG = 2
FULL_AFTER_MIDDLE = 50
"""Python's 10 and 10 let 200,000 objects gather for one collection of the middle generation: 20 to 60 ms in which a
long request, which makes as many, holds everybody up. So it looks at 60,000 at the most; full ones are as rare."""

YOUNG_GENERATIONS = 1
"""Collected before a freeze, so that no garbage is frozen; takes less than a millisecond."""


def give_memory_back() -> None:
    """Have the allocator give the machine what nothing uses, in a thread of its own: what lies below something in use,
    however small, it keeps otherwise (5 GB of 7 for good, after two thousand connections had closed that did not read
    their responses)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it, and only glibc needs it
    if trim is None:
        return

    def run() -> None:
        trim(0)
        log.debug("memory that nothing uses was given back to the machine")

    threading.Thread(target=run, name="give memory back", daemon=True).start()


class Heap:
    """The collector of this process. `start` first, `started` when the node is ready."""

    def __init__(self) -> None:
        self._created_since = 0

    def start(self) -> None:
        gc.disable()

    def started(self) -> None:
        """The node is ready, or is not going to be."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, MIDDLE_AFTER_YOUNG, FULL_AFTER_MIDDLE)
        gc.enable()

    def topic_changed(self, event: Event) -> None:
        """A listener of the nameserver."""
        if not isinstance(event, TopicCreated):
            return
        self._created_since += 1
        if self._created_since >= FREEZE_EVERY_TOPICS:
            self._created_since = 0
            gc.collect(YOUNG_GENERATIONS)
            gc.freeze()
