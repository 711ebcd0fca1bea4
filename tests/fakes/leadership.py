"""Leaders, epochs and replicas, as the other fakes know them of queues: each queue is a write group of its own."""

from __future__ import annotations

from collections.abc import Collection

import numpy
import numpy.typing
from tests.fakes.memory_store import MemoryStore
from tests.fakes.metadata import FakeMetadata

from mainstem.errors import LeaderMissing
from mainstem.model import WriteGroupNodes


class FakeLeadership:
    """`ports.Leadership`. Tests may set `replica_nodes` and `out_of_sync` (nodes that do not keep up) by queue id,
    `unconfirmed` (queues that no majority confirms to be led here) and `leaderless`, and read `confirmations`."""

    def __init__(self, metadata: FakeMetadata, store: MemoryStore, node_id: int = 1) -> None:
        self._metadata = metadata
        self.store = store
        self._node_id = node_id
        self.replica_nodes: dict[int, tuple[int, ...]] = {}
        self.out_of_sync: dict[int, set[int]] = {}
        self.unconfirmed: set[int] = set()
        self.confirmations: list[int] = []
        self.leaderless = False

    def group_of(self, queue_id: int) -> int:
        return queue_id

    def has_moved(self, queue_id: int) -> bool:
        return False

    def groups_of(self, queue_ids: numpy.typing.NDArray[numpy.uint64]) -> numpy.typing.NDArray[numpy.int64]:
        return queue_ids.astype(numpy.int64)

    def replicas(self, group: int) -> WriteGroupNodes:
        leader = self._metadata.leader(group)
        nodes = self.replica_nodes.get(group, () if leader < 0 else (leader,))
        (offsets,) = self.store.offsets([group]).result()
        late = self.out_of_sync.get(group, set())
        return WriteGroupNodes(
            leader,
            -1 if offsets is None else offsets.leader_epoch,
            nodes,
            tuple(node_id for node_id in nodes if node_id not in late),
        )

    def leads(self, group: int) -> bool:
        return self._metadata.leader(group) == self._node_id and group not in self.store.led_elsewhere

    def takes(self, group: int) -> bool:
        return self.leads(group)

    async def elected(self, group: int) -> None: ...

    def serves_here(self, queue_id: int) -> bool:
        return self.leads(queue_id)

    async def confirm(self, group: int) -> None:
        self.confirmations.append(group)
        if not self.leads(group) or group in self.unconfirmed:
            raise LeaderMissing(f"group {group:#x} is led elsewhere")

    def abreast(self) -> dict[int, list[int]]:
        found = {group: self.replicas(group).in_sync for group in self.store.queues if self.leads(group)}
        return {group: [node_id for node_id in nodes if node_id != self._node_id] for group, nodes in found.items()}

    def in_sync_fewest(self, classes: Collection[int]) -> int:
        counts = [len(self.replicas(group).in_sync) for group in self.store.queues if self.leads(group)]
        return min(counts, default=0)
