"""Who leads the queues: the node that leads a queue's write group, under an epoch that is the group's term, both as
this node knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy
import numpy.typing

from mainstem.storage.placement import Placement
from mainstem.storage.queue_store.extent_index import QueueIds
from mainstem.storage.write_group import WriteGroup

Numbers = numpy.typing.NDArray[numpy.int32]


class GroupLeadership:
    """`ports.Leadership` of a node. `leader_of` names a group's leader where this node has no part in it."""

    def __init__(
        self,
        node_id: int,
        placement: Placement,
        groups: Sequence[WriteGroup],
        leader_of: Callable[[int], int] = lambda group: -1,
    ) -> None:
        self._node_id = node_id
        self._leader_of = leader_of
        self._placement = placement
        self._groups = groups

    def of(self, queue_ids: QueueIds) -> tuple[Numbers, Numbers]:
        leaders = numpy.array([self.leader(group.group) for group in self._groups], numpy.int32)
        terms = numpy.array([group.term for group in self._groups], numpy.int32)
        groups = self._placement.groups_of(queue_ids)
        return leaders[groups], terms[groups]

    def leader(self, number: int) -> int:
        """The node that leads a group, -1: none is known."""
        group = self._groups[number]
        if group.leads:
            return self._node_id
        if group.core is None:
            return self._leader_of(number)
        return group.leader_id or -1
