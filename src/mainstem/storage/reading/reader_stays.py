"""Remembers in which file of many queues the last response to each reader ended, so that the next one goes on there.

A response takes what it has room for. Its reader's partitions lie in the files of several write groups, and the first
that has not had its turn mostly lies in another file than that where the response ended. A reader that went there at
once would come back to the first file when the chunk that it had half read, and those read ahead of it, had left
memory: the disk would read them twice.

So a reader stays in a file while that has something for it, for `STAY_RESPONSES_MAX` responses at most. Then the
partition that comes first in its plan has its turn, as it has in each response in which the file has not enough.
"""

from __future__ import annotations

from mainstem.lru import Lru
from mainstem.model import QueueRead

STAY_RESPONSES_MAX = 8
"""Responses in a row that the partition whose turn it is may have to wait for: 128 MiB with the usual size, which a
reader of a thousand queues of half a megabyte has in the file of one write group of four. Apache Kafka's reader of a
thousand partitions that are far behind waits for twenty responses of 50 MiB until the last has had its turn."""

READERS_MAX = 4096
"""Readers that are remembered, some hundred bytes each. A forgotten one begins with the partition whose turn it is."""


class ReaderStay:
    """A reader's last place in a file of several queues."""

    __slots__ = ("_responses", "place")

    def __init__(self) -> None:
        self.place: QueueRead | None = None
        """One of the partitions that were read together in the file; None: the reader is in no such file."""
        self._responses = 0
        """Those in a row that have begun with the place."""

    def begin(self) -> QueueRead | None:
        """Begin a response. Returns the place that it begins with; None: with the partition whose turn it is."""
        if self._responses >= STAY_RESPONSES_MAX:
            self.place = None
        self._responses += 1
        return self.place

    def turn_taken(self) -> None:
        """Note that the partition whose turn it was has been served."""
        self._responses = 0


class ReaderStays:
    """The stays of readers, by their connections."""

    def __init__(self) -> None:
        self._stays: Lru[int, ReaderStay] = Lru(READERS_MAX)

    def of(self, reader: int) -> ReaderStay:
        """The stay of a reader; of none (0) a new one each time."""
        stay = self._stays.get(reader)
        if stay is None:
            stay = ReaderStay()
            if reader:
                self._stays.put(reader, stay)
        return stay
