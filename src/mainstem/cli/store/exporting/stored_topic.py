"""A topic in an object store, read without any node, for `store adopt --export`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from uuid import UUID

from mainstem.cli.store.exporting.queue_copy import Integers, check_batches, whole_batches
from mainstem.model import queue_id_of
from mainstem.ports import ObjectStore
from mainstem.storage.remote.chain.topic_list_format import ListedTopic
from mainstem.storage.remote.survey.store_survey import PartitionSurvey
from mainstem.storage.remote.survey.stored_queues import StoredQueues


class StoredTopic:
    """Implements `queue_copy.PartitionSource`."""

    def __init__(
        self,
        runner: asyncio.Runner,
        folder: ObjectStore,
        topic: ListedTopic,
        partitions: Mapping[int, PartitionSurvey],
        queues: StoredQueues,
    ) -> None:
        """`runner` carries out what `folder`, the cluster's, is asked."""
        self.topic = topic.name
        self._runner = runner
        self._folder = folder
        self._topic = topic
        self._partitions = partitions
        self._queues = queues

    @property
    def topic_id(self) -> UUID:
        return self._topic.topic_id

    def bounds(self, partition: int) -> tuple[int, int]:
        found = self._partitions.get(partition)
        return (found.first_offset, found.end_offset) if found is not None else (0, 0)

    def batches(self, partition: int, first: int, end: int) -> Iterator[tuple[memoryview, Integers]]:
        """Raises `FormatError` naming the object that is damaged, `StorageError`, CommandFailed."""
        offset = first
        for stretch in self._queues.stretches(queue_id_of(self._topic.number, partition)):
            if int(stretch.rows["last_offset"][-1]) < offset:
                continue
            (found,) = self._runner.run(self._folder.read(stretch.name, [stretch.range]))
            stretch.check(found)
            content, rows = whole_batches(found)
            rows = rows[(rows[:, 2] >= offset) & (rows[:, 2] < end)]
            if not len(rows):
                continue
            begin, stop = int(rows[0, 0]), int(rows[-1, 0] + rows[-1, 1])
            rows[:, 0] -= begin
            check_batches(f"{stretch.name}, partition {partition} of {self.topic}", content[begin:stop], rows)
            yield content[begin:stop], rows
            offset = int(rows[-1, 3]) + 1
