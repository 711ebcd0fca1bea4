"""Leaders and epochs of many queues, as the other fakes know them of one."""

from __future__ import annotations

import numpy
import numpy.typing
from tests.fakes.memory_store import MemoryStore
from tests.fakes.metadata import FakeMetadata


class FakeLeadership:
    """`ports.Leadership`."""

    def __init__(self, metadata: FakeMetadata, store: MemoryStore) -> None:
        self._metadata = metadata
        self._store = store

    def of(
        self, queue_ids: numpy.typing.NDArray[numpy.uint64]
    ) -> tuple[numpy.typing.NDArray[numpy.int32], numpy.typing.NDArray[numpy.int32]]:
        leaders = [self._metadata.leader(queue_id) for queue_id in queue_ids.tolist()]
        epochs = [
            -1 if offsets is None else offsets.leader_epoch for offsets in self._store.offsets(queue_ids.tolist())
        ]
        return numpy.array(leaders, numpy.int32), numpy.array(epochs, numpy.int32)
