"""Which topics ask to be copied to the remote tier now, and what that lets move of files that were merged when they
did.

A file's retention class says what its topics asked for when it was merged. A topic that has its copying stopped since
(`remote.log.copy.disable`, or `remote.storage.enable=false`) keeps its files of that class on disk 2: a file moves only
while its range of queues, first to last, has a queue of a topic that asks. So a queue segment stops with its topic, and
a packed file with the last that asks among those that share it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import numpy
import numpy.typing

from mainstem.model import PARTITION_BITS, Topic
from mainstem.ports import Clock

TOPICS_PER_TURN = 5_000
"""Topics looked at in one turn of the event loop: about a millisecond."""

LOOK_SECONDS = 2.0
"""For so long it is not looked at the topics again."""

Numbers = numpy.typing.NDArray[numpy.int64]
Flags = numpy.typing.NDArray[numpy.bool_]


class CopyRule:
    """`asking`: the numbers of topics that are copied, ascending; None: no topic has its copying stopped, and classes
    tell all."""

    def __init__(self, asking: Numbers | None = None) -> None:
        self._asking = asking

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CopyRule):
            return NotImplemented
        if self._asking is None or other._asking is None:
            return self._asking is other._asking
        return numpy.array_equal(self._asking, other._asking)

    __hash__ = None  # type: ignore[assignment]  # it is compared, and no key

    def allows(self, first_queues: Numbers, last_queues: Numbers) -> Flags:
        """Of files with these first and last queues, those that may move if their class lets them."""
        if self._asking is None:
            return numpy.ones(len(first_queues), numpy.bool_)
        first, last = first_queues >> PARTITION_BITS, last_queues >> PARTITION_BITS
        found: Flags = self._asking.searchsorted(last, side="right") > self._asking.searchsorted(first)
        return found

    def allows_file(self, first_queue: int, last_queue: int) -> bool:
        return self._asking is None or bool(self.allows(numpy.array([first_queue]), numpy.array([last_queue]))[0])


class CopyingTopics:
    """Remembers the rule for a while, as it is asked for at every look for work."""

    def __init__(self, topics: Callable[[], Iterable[Topic]], clock: Clock) -> None:
        self._topics = topics
        self._clock = clock
        self._looked_at: float | None = None
        self._rule = CopyRule()

    async def rule(self) -> CopyRule:
        now = self._clock.monotonic()
        if self._looked_at is None or now - self._looked_at >= LOOK_SECONDS:
            self._rule = await rule_of(self._topics())
            self._looked_at = now
        return self._rule


async def rule_of(topics: Iterable[Topic]) -> CopyRule:
    """The rule that the settings of these topics make."""
    asking: list[int] = []
    stopped = False
    for number, topic in enumerate(list(topics), 1):
        settings = topic.settings
        if settings.remote_storage_enable and not settings.remote_log_copy_disable:
            asking.append(topic.number)
        else:
            stopped |= settings.remote_storage_enable or settings.remote_log_delete_on_disable
        if number % TOPICS_PER_TURN == 0:
            await asyncio.sleep(0)
    return CopyRule(numpy.array(sorted(asking), numpy.int64)) if stopped else CopyRule()
