"""Queues of a pass, looked up in what a file has."""

from __future__ import annotations

import numpy

from mainstem.storage.compacting.compact_plan import QUEUE_ROW
from mainstem.storage.compacting.pass_places import PassQueues


def test_a_queue_of_the_pass_is_compacted_below_its_clean_end_and_no_other_one_is() -> None:
    queues = numpy.zeros(2, QUEUE_ROW)
    queues["queue_id"], queues["end"] = [3, 7], [10, 20]
    lookup = PassQueues(queues)
    asked = numpy.array([2, 3, 5, 7, 9], numpy.uint64)
    assert lookup.ends(asked).tolist() == [0, 10, 0, 20, 0]
    assert lookup.compacted(asked, numpy.array([0, 10, 0, 19, 0])).tolist() == [False, False, False, True, False]


def test_of_no_queue_at_all_nothing_is_compacted() -> None:
    """The markers of all queues of a pass stay where each of them has been in another write group."""
    lookup = PassQueues(numpy.zeros(0, QUEUE_ROW))
    assert lookup.ends(numpy.array([3, 7], numpy.uint64)).tolist() == [0, 0]
