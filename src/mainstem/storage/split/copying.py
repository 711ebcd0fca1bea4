"""Which topics ask to be copied to the remote tier now, and which files move for that.

A file's retention class says what its topics asked for when it was merged. A topic that has its copying stopped
(`remote.log.copy.disable`, or `remote.storage.enable=false`) keeps its files on disk 2 meanwhile, whatever their class;
one that asks again, or for the first time, has those moved as well that were merged when it did not. The manifest has
of each file its first and its last queue, and nothing of those between them, so the rule goes by the topics whose
numbers lie between theirs, both included:

    a file of a class that moves stays if one of these topics is known not to ask, and none of them asks
    one of another class moves if one of them asks, and none is known not to

So a queue segment goes by its topic, and a packed file that was merged for the tier stops with the last that asks among
those that share it. Topics that are not known (deleted, or not heard of yet) have no say. Internal and compacted topics
have no files in the tier. A file of another class that topics share moves if an index says that it has what the tier
lacks (`tier_gaps.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import numpy
import numpy.typing

from mainstem.model import PARTITION_BITS, Topic
from mainstem.ports import Clock
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.merging.merge_outputs import STAYING
from mainstem.storage.store_files.store_file import StoreFile

TOPICS_PER_TURN = 5_000
"""Topics looked at in one turn of the event loop: about a millisecond."""

LOOK_SECONDS = 2.0
"""For so long it is not looked at the topics again."""

Numbers = numpy.typing.NDArray[numpy.int64]
Flags = numpy.typing.NDArray[numpy.bool_]


class CopyRule:
    """The topics that are copied, and those that are not, by number; without any, classes tell all."""

    def __init__(self, asking: Iterable[int] = (), others: Iterable[int] = ()) -> None:
        self._asking, self._others = (numpy.array(sorted(numbers), numpy.int64) for numbers in (asking, others))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CopyRule):
            return NotImplemented
        return numpy.array_equal(self._asking, other._asking) and numpy.array_equal(self._others, other._others)

    __hash__ = None  # type: ignore[assignment]  # it is compared, and no key

    def changed_since(self, before: CopyRule) -> Numbers:
        """The topics of which the rules say different things, ascending; new and deleted ones are among them."""
        return numpy.union1d(
            numpy.setxor1d(self._asking, before._asking, assume_unique=True),
            numpy.setxor1d(self._others, before._others, assume_unique=True),
        )

    def allows(self, first_queues: Numbers, last_queues: Numbers) -> Flags:
        """Of files with these first and last queues, those that may move if their class lets them."""
        firsts, lasts = first_queues >> PARTITION_BITS, last_queues >> PARTITION_BITS
        return _has_some(self._asking, firsts, lasts) | ~_has_some(self._others, firsts, lasts)

    def asked(self, first_queues: Numbers, last_queues: Numbers) -> Flags:
        """Of files with these first and last queues, those between whose topics one asks."""
        return _has_some(self._asking, first_queues >> PARTITION_BITS, last_queues >> PARTITION_BITS)

    def asked_by_all(self, first_queues: Numbers, last_queues: Numbers) -> Flags:
        """Those of them between whose topics none is known not to ask."""
        firsts, lasts = first_queues >> PARTITION_BITS, last_queues >> PARTITION_BITS
        return _has_some(self._asking, firsts, lasts) & ~_has_some(self._others, firsts, lasts)

    def are_asking(self, queue_ids: QueueIds) -> Flags:
        """Per queue, whether its topic asks."""
        return numpy.isin((queue_ids >> numpy.uint64(PARTITION_BITS)).astype(numpy.int64), self._asking)

    def moves(self, file: StoreFile) -> bool:
        """Whether a file is to move by what is known of it without its index."""
        queues = numpy.array([file.first_queue]), numpy.array([file.last_queue])
        if not file.is_merged or file.retention_class in STAYING:
            return False
        return bool((self.allows if file.may_move else self.asked_by_all)(*queues)[0])

    def may_fill(self, file: StoreFile) -> bool:
        """Whether a file may have something that is to move."""
        queues = numpy.array([file.first_queue]), numpy.array([file.last_queue])
        return file.is_merged and file.retention_class not in STAYING and bool(self.asked(*queues)[0])

    def allows_all(self, files: Sequence[StoreFile]) -> bool:
        """Whether a topic of each of these files asks, or nothing is known of their topics."""
        firsts = numpy.array([file.first_queue for file in files], numpy.int64)
        return bool(self.allows(firsts, numpy.array([file.last_queue for file in files], numpy.int64)).all())


def _has_some(numbers: Numbers, firsts: Numbers, lasts: Numbers) -> Flags:
    """Per stretch of numbers, both ends included, whether one of these (ascending) lies in it."""
    found: Flags = numbers.searchsorted(firsts) < numbers.searchsorted(lasts, side="right")
    return found


class CopyingTopics:
    """Remembers the rule for a while, as it is asked for at every look for work."""

    def __init__(self, topics: Callable[[], Iterable[Topic]], clock: Clock) -> None:
        self._topics = topics
        self._clock = clock
        self._looked_at: float | None = None
        self.last = CopyRule()
        """The rule of the last look."""

    async def rule(self) -> CopyRule:
        now = self._clock.monotonic()
        if self._looked_at is None or now - self._looked_at >= LOOK_SECONDS:
            self.last = await rule_of(self._topics())
            self._looked_at = now
        return self.last


async def rule_of(topics: Iterable[Topic]) -> CopyRule:
    """The rule that the settings of these topics make."""
    asking, others = list[int](), list[int]()
    for number, topic in enumerate(list(topics), 1):
        settings = topic.settings
        copied = settings.remote_storage_enable and not settings.remote_log_copy_disable
        (asking if copied else others).append(topic.number)
        if number % TOPICS_PER_TURN == 0:
            await asyncio.sleep(0)
    return CopyRule(asking, others)
