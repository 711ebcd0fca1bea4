"""A queue read from a replica, as a consumer does that names the rack of the replica's node."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from tests.simulation.cluster.clients import Clients
from tests.simulation.oracle import require

from mainstem.kernel import FetchPlan, PlannedTopic, Verdict
from mainstem.model import Outcome, QueueOffsets, QueueRead, QueueSlice, Tier, partition_of, topic_number_of
from mainstem.ports import joined
from mainstem.protocol import codec
from mainstem.protocol.messages.fetch import FetchResponse
from mainstem.storage.errors import StorageError
from mainstem.storage.reading.read_path import separated
from mainstem.storage.role import Storage

REPLICA_READS = "replica reads"
"""Named among the faults of a run: somebody reads from replicas."""

REPLICA_READS_SHARE = 0.25
"""Of the runs whose faults nobody names."""

VERSION = 12
HEAD_BYTES = 9
CODES = tuple(range(max(Verdict) + 1))
OUTCOMES = {Verdict[outcome.name]: outcome for outcome in Outcome if outcome.name in Verdict.__members__}


def begun(read: QueueRead, bytes_max: int, *, leader_epoch: int = -1) -> FetchPlan:
    """The plan of a fetch of one queue that replicas may serve, with a round begun."""
    plan = FetchPlan()
    plan.add_topic("any")
    plan.add_partition(partition_of(read.queue_id), read.offset, read.bytes_max, leader_epoch, -1)
    plan.from_followers = True
    topic = PlannedTopic(topic_number_of(read.queue_id), partition_of(read.queue_id) + 1)
    plan.begin(lambda key: topic, bytes_max)
    return plan


async def read_replica(storage: Storage, read: QueueRead, bytes_max: int) -> QueueSlice:
    """The answer of a node to a fetch of one queue, whether it leads the queue or follows."""
    plan = begun(read, bytes_max)
    storage.messages.read_at_once(plan)
    if not plan.settled:
        await storage.messages.read(plan, bytes_max)
    (row,) = plan.partitions()
    response = codec.read(FetchResponse, VERSION, joined(plan.response(VERSION, 0, CODES)), HEAD_BYTES)
    ((part,),) = [topic.partitions for topic in response.responses]
    records = part.records if isinstance(part.records, tuple) else (part.records or b"",)
    batches = separated(memoryview(some) for some in records)
    next_offset = read.offset
    if batches:
        next_offset = int.from_bytes(batches[-1][:8], "big") + int.from_bytes(batches[-1][23:27], "big") + 1
    offsets = QueueOffsets(row.log_start, row.high_watermark, row.high_watermark, -1, row.high_watermark)
    return QueueSlice(read.queue_id, OUTCOMES[Verdict(row.verdict)], batches, offsets, Tier.JOURNAL, next_offset)


class ReplicaReader:
    """Follows queues at nodes that do not lead them, now at one and now at another, as a consumer does that names its
    rack: each batch comes once and in order, and none that is not committed (B)."""

    def __init__(self, clients: Clients, queue_ids: Sequence[int], rng: random.Random) -> None:
        self._clients = clients
        self._queue_ids = queue_ids
        self._rng = rng
        self._next: dict[int, int] = {}

    async def run(self) -> None:
        while not self._clients.ending:
            await asyncio.sleep(self._rng.choice([0.0, 0.001, 0.005, 0.02]))
            await self.read(self._rng.choice(self._queue_ids))

    async def read(self, queue_id: int) -> None:
        """Read on at a replica, if there is one that may be read."""
        cluster, group = self._clients.cluster, self._clients.cluster.group_of(queue_id)
        able = [node for node in cluster.nodes.values() if node.serving is not None and not node.leads(group)]
        if not able:
            return
        node = self._rng.choice(able)
        assert node.serving is not None
        offset = self._next.get(queue_id, 0)
        read = QueueRead(queue_id, offset, self._rng.choice([1, 5000, 1 << 20]))
        found = await node.call(self._read(node.serving, read), patience=5)
        if found is None:
            return
        queue, what = cluster.history.queue(queue_id), f"the replica of node {node.node_id}"
        if found.outcome is Outcome.OFFSET_OUT_OF_RANGE:
            require(offset < queue.log_start, f"{what}: queue {queue_id:#x} at {offset}: {found.outcome}", "B")
            self._next[queue_id] = queue.log_start
            return
        if found.outcome is not Outcome.OK:
            return
        if found.batches and offset < queue.log_start:  # it moved while this was read
            offset = max(offset, int.from_bytes(found.batches[0][:8], "big"))
        cluster.history.check_read(what, queue_id, offset, found.batches, found.next_offset)
        end = found.offsets.high_watermark
        require(queue.deleted or end <= queue.end, f"{what}: queue {queue_id:#x} ends at {end}, not {queue.end}", "B")
        self._clients.replica_batches += len(found.batches)
        self._next[queue_id] = max(offset, found.next_offset)

    async def _read(self, storage: Storage, read: QueueRead) -> QueueSlice | None:
        try:
            return await read_replica(storage, read, 1 << 20)
        except (StorageError, OSError):
            return None
