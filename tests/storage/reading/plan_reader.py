"""A reader of many queues, with the plans of its fetches, and the small node that it reads from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec
from tests.fakes.files import SimulatedFiles
from tests.kernel.fetch.fetch_world import asking, at, number_of, records_of
from tests.storage.small_node import QUEUE, SmallNode, new_batch, topic

from mainstem import kernel
from mainstem.ports import joined
from mainstem.protocol import codec
from mainstem.protocol.messages.fetch import FetchResponse
from mainstem.storage.role import Storage

QUEUES = 12
CODES = tuple(range(100, 200))
CHUNK_BYTES = 64 << 10
DISK_BYTES = "mainstem_read_cache_disk_bytes_total"
AHEAD_CHUNKS = "mainstem_read_cache_ahead_chunks_total"


def prepare(node: SmallNode) -> None:
    node.topics = [topic(1, QUEUES), topic(2, QUEUES)]
    node.groups = 3
    node.journal_config = msgspec.structs.replace(node.journal_config, segment_bytes=256 << 10)
    node.store_config = msgspec.structs.replace(
        node.store_config, read_cache_bytes=4 << 20, read_chunk_bytes=CHUNK_BYTES
    )
    node.config = msgspec.structs.replace(node.config, checkpoint_seconds=0.1)


async def publish(node: SmallNode, rounds: int, queues: Sequence[int] = range(QUEUES), size: int = 2000) -> None:
    """A batch for each of the queues, again and again."""
    for number in range(rounds):
        await node.append(*(new_batch(QUEUE + queue, size + 10 * number + queue) for queue in queues))


class Reader:
    """Fetches partitions of topic 1 from where it is, as a consumer does. `connection`: its number, 0 for none."""

    def __init__(
        self,
        node: SmallNode,
        partitions: Sequence[int] = range(QUEUES),
        bytes_max: int = 1 << 20,
        *,
        connection: int = 0,
    ) -> None:
        self.node = node
        self.connection = connection
        self.offsets = dict.fromkeys(partitions, 0)
        self.bytes_max = bytes_max
        self.found: dict[int, list[bytes]] = {partition: [] for partition in partitions}

    def plan(self, partition_bytes: int = 1 << 20) -> kernel.FetchPlan:
        asked = asking(12, (1, [at(queue, offset, partition_bytes) for queue, offset in self.offsets.items()]))
        plan = kernel.scan_fetch(memoryview(codec.write(asked, 12)), 0, 12).plan
        plan.reader = self.connection
        plan.begin(lambda key: kernel.PlannedTopic(number_of(key), self.node.topics[0].partitions), self.bytes_max)
        return plan

    async def fetch(self, partition_bytes: int = 1 << 20) -> int:
        """Bytes that came back."""
        store = self.node.storage.messages
        plan = self.plan(partition_bytes)
        store.read_at_once(plan)
        if not plan.settled:
            assert await store.read(plan, self.bytes_max) == []
        assert plan.settled
        came = plan.bytes
        frame = joined(plan.response(12, 5, CODES))
        for part in codec.read(FetchResponse, 12, frame, 9).responses[0].partitions:
            assert part.error_code == 0 or part.error_code == CODES[kernel.Verdict.STORAGE_FAILED], part.error_code
            self._take(part.partition_index, records_of(part))
        return came

    def _take(self, partition: int, records: bytes) -> None:
        position = 0
        while position < len(records):
            length = int.from_bytes(records[position + 8 : position + 12], "big") + 12
            batch = records[position : position + length]
            assert int.from_bytes(batch[:8], "big") == self.offsets[partition]
            self.offsets[partition] += 1
            self.found[partition].append(batch)
            position += length

    async def read_all(self, partition_bytes: int = 1 << 20) -> None:
        while await self.fetch(partition_bytes):
            pass


@dataclasses.dataclass
class Merging:
    """A node as those that merge know it."""

    storage: Storage
    serving: Storage | None
    disk2: SimulatedFiles
    manifest_path: str
    is_handing_in: bool = False


def read_so_far(node: SmallNode, name: str) -> float:
    return next(sample.value for sample in node.storage.queue_store.cache.samples() if sample.name == name)
