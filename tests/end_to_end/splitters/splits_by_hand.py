"""Splits and merges into a shared store one step at a time and without Spark, so that a node can die between two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
from tests.harness.serving import Serving, eventually

from mainstem.pipeline.link.lease_keeper import LeaseKeeper
from mainstem.pipeline.link.node_link import Endpoint, NodeLink, find_endpoint
from mainstem.pipeline.merge.merge_task import (
    FilesDone,
    FilesWork,
    MeasureDone,
    MeasureWork,
    MergeJob,
    MergeSettings,
    input_file,
    run_files,
    run_measure,
)
from mainstem.pipeline.slices.journal_slice import slice_bytes
from mainstem.pipeline.slices.split_slice import SplitSlice, split_slice
from mainstem.pipeline.split.split_plan import plan, target_offsets
from mainstem.rpc.messages.merge import MergeWork
from mainstem.rpc.messages.split import FileDescription, WriteGroupRange
from mainstem.storage.merging.merge_measure import facts_of
from mainstem.storage.shared_store.announced_files import AnnouncedFiles
from mainstem.storage.shared_store.blocking_store import BlockingStore
from mainstem.storage.store_files.run_target import RunTarget
from mainstem.storage.store_files.store_file import StoreFile, path_of

SLICE_BYTES = 64 << 20
LEASE_WAIT_SECONDS = 20.0


class MergeDone(NamedTuple):
    """A merge whose outputs are in the store, and recorded nowhere yet."""

    work: MergeWork
    files: list[StoreFile]


class WorkByHand:
    """The steps of a splitter of one node; made by `work_of`."""

    def __init__(self, endpoint: Endpoint, node: NodeLink, keeper: LeaseKeeper) -> None:
        assert endpoint.shared_store is not None
        self._store = endpoint.shared_store
        self._node = node
        self._keeper = keeper
        self._settings = MergeSettings(
            rpc=endpoint.rpc, store_dir=endpoint.store_dir, shared_store=endpoint.shared_store
        )

    def split_next(self, written: Callable[[int], None]) -> SplitSlice | None:
        """Write the runs of the next slice, all of them, whatever becomes of the node meanwhile; None: there is none.
        `written` is called with how many of the runs are whole in the store: with 0, as the first is about to be
        begun, when the log has the names of all; and behind the last."""
        eventually(self._is_synced, what="a synced journal")
        planned = plan(self._node, target_offsets(self._node), SLICE_BYTES).slices
        if not planned:
            return None
        count = 0
        with (
            slice_bytes(planned[0], self._node.read, local=False, allow=lambda _size: None) as buffer,
            BlockingStore.open(self._store) as store,
        ):
            files = AnnouncedFiles(store, self._node.intend)
            classes = self._node.retention_classes()

            def open_target(name: str) -> RunTarget:
                nonlocal count
                written(count)
                count += 1
                return files.open(path_of(name))

            done = split_slice(planned[0], buffer, classes, open_target, announce=files.announce)
        written(count)
        return done

    def _is_synced(self) -> bool:
        """As far as there is something to split: of others the node does not lead."""
        return all(group.durable >= group.committed for group in self._node.positions().groups if group.unsplit_bytes)

    def hand_in(self, ranges: tuple[WriteGroupRange, ...], files: tuple[FileDescription, ...]) -> list[str]:
        """The outcome per range of a split."""
        done = SplitSlice(ranges=ranges, files=files, bytes=0, batches=0, dropped_batches=0, seconds=0.0)
        return self._node.record_split(self._keeper.held, done)

    def merge_next(self) -> MergeDone | None:
        """Write what comes of the next merge; None: there is none now."""
        work = self._node.merge_work(self._keeper.held, drain=True)
        if not work.merge_id:
            return None
        job = MergeJob(
            settings=self._settings,
            merge_id=work.merge_id,
            group=work.group,
            level=work.level,
            inputs=tuple(input_file(self._settings, work.group, entry.file.name) for entry in work.inputs),
            packed_bytes=work.packed_bytes,
            task_bytes=work.task_bytes,
        )
        topics = facts_of(work.topics)
        asked = MeasureWork(job, topics, goes_on=True)
        told = msgspec.json.decode(run_measure(msgspec.json.encode(asked)), type=MeasureDone)
        assert told.measured is not None, told
        assert (told.wrote is not None) == (len(told.measured.tasks) == 1)
        if told.wrote is not None:
            assert not told.wrote.failure, told.wrote.failure
            return MergeDone(work, list(told.wrote.files))
        files: list[StoreFile] = []
        for task in told.measured.tasks:
            done = msgspec.json.decode(run_files(msgspec.json.encode(FilesWork(job, task))), type=FilesDone)
            assert not done.failure, done.failure
            files += done.files
        return MergeDone(work, files)

    def hand_in_merge(self, done: MergeDone) -> str:
        return self._node.record_merge(self._keeper.held, done.work.merge_id, done.files)


@contextmanager
def work_of(node: Serving) -> Iterator[WorkByHand]:
    """Under the node's lease, which a node that dies meanwhile does not get back."""
    endpoint = find_endpoint(node.http)
    link = NodeLink(endpoint.rpc, "test: work")
    try:
        lease = link.acquire("test", wait_seconds=LEASE_WAIT_SECONDS, yields=False)
        with LeaseKeeper(NodeLink(endpoint.rpc, "test: lease"), lease) as keeper:
            yield WorkByHand(endpoint, link, keeper)
    finally:
        link.close()
