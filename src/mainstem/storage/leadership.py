"""Who leads the queues: the node that leads a queue's write group, under an epoch that is the group's term, both as
this node knows it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import numpy.typing

from mainstem.storage.placement import Placement
from mainstem.storage.queue_store.extent_index import QueueIds
from mainstem.storage.write_group import WriteGroup

Numbers = numpy.typing.NDArray[numpy.int32]


class GroupLeadership:
    """`ports.Leadership` of a node."""

    def __init__(self, placement: Placement, groups: Sequence[WriteGroup]) -> None:
        self._placement = placement
        self._groups = groups

    def of(self, queue_ids: QueueIds) -> tuple[Numbers, Numbers]:
        leaders = numpy.array([group.leader_id or -1 for group in self._groups], numpy.int32)
        terms = numpy.array([group.term for group in self._groups], numpy.int32)
        groups = self._placement.groups_of(queue_ids)
        return leaders[groups], terms[groups]
