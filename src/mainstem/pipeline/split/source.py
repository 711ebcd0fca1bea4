"""The journal as a source of Structured Streaming, whose read *is* the split.

Spark plans (offsets, triggers, slices to tasks), retries and schedules; the payload never enters it. One
input partition is one slice; `read` splits it on the executor and yields one row that describes the runs it
wrote (`ROW_SCHEMA`). The planner's methods run in a Python process of the JVM's, not in the driver's, so
nothing here relies on the driver's memory; links to the node are made where they are used. (pyspark is
imported untyped: its classes are Any to the type checker.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from mainstem.pipeline.errors import SliceDamaged
from mainstem.pipeline.link.node_allowance import NodeAllowance
from mainstem.pipeline.link.node_link import NodeLink
from mainstem.pipeline.link.store_patience import patient
from mainstem.pipeline.slices.journal_slice import slice_bytes
from mainstem.pipeline.slices.split_slice import OpenTarget, SplitSlice, split_slice
from mainstem.pipeline.spark.kept_modules import keep_modules
from mainstem.pipeline.split.split_plan import (
    Offsets,
    SplitSettings,
    next_offsets,
    plan,
    split_offsets,
    target_offsets,
)
from mainstem.rpc.messages.split import Slice
from mainstem.rpc.wire.identity import host_identity
from mainstem.storage.store_files.announcement import Announce, unannounced
from mainstem.storage.store_files.run_target import LocalRunTarget
from mainstem.storage.store_files.store_file import path_of

SOURCE_NAME = "mainstem_journal"
SETTINGS_OPTION = "settings"

PASSES = 2
"""Passes over each byte, of about the same cost, each paced: reading and checking, gathering and writing."""

MENDED_MAX = 64
"""Blocks of one slice that a task has made whole; with more of them it fails, and the next task goes on."""

ROW_SCHEMA = "number long, bytes long, batches long, seconds double, slice string"
"""`number` orders slices within a trigger; `slice` is a `SplitSlice` as JSON."""
ARROW_SCHEMA = pyarrow.schema(
    [
        ("number", pyarrow.int64()),
        ("bytes", pyarrow.int64()),
        ("batches", pyarrow.int64()),
        ("seconds", pyarrow.float64()),
        ("slice", pyarrow.string()),
    ]
)


class SlicePartition(InputPartition):  # type: ignore[misc]
    """One slice, for one task. Pickled."""

    def __init__(self, number: int, work: Slice, host: str) -> None:
        self.number, self.work, self.host = number, work, host


class MainstemJournal(DataSource):  # type: ignore[misc]
    """`spark.readStream.format("mainstem_journal").option("settings", <SplitSettings as JSON>)`."""

    @classmethod
    def name(cls) -> str:
        return SOURCE_NAME

    def schema(self) -> str:
        return ROW_SCHEMA

    def streamReader(self, schema: Any) -> JournalReader:
        return JournalReader(msgspec.json.decode(self.options[SETTINGS_OPTION], type=SplitSettings))


class JournalReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans triggers in the planner's process, splits slices on executors."""

    def __init__(self, settings: SplitSettings) -> None:
        self._settings = settings
        self._node = NodeLink(settings.rpc, "split planner", settings.tls)
        self._target: Offsets | None = None

    def initialOffset(self) -> Offsets:
        return split_offsets(self._node)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self._settings.bytes_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = target_offsets(self._node)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._settings.bytes_per_trigger
        return next_offsets(self._node, start, self._settings, bytes_max=bytes_max, target=self._target)

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        planned = plan(self._node, end, self._settings.slice_bytes)
        return [SlicePartition(number, work, planned.host) for number, work in enumerate(planned.slices)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, SlicePartition)
        keep_modules()
        yield describe(partition.number, split_partition(partition, self._settings))

    def commit(self, end: Offsets) -> None:
        """Nothing: the journal is pruned by the manifest. Spark calls this late, and not for the last
        trigger."""

    def stop(self) -> None:
        self._node.close()


def split_partition(partition: SlicePartition, settings: SplitSettings) -> SplitSlice:
    """The work of a task: fetch the slice's bytes, split them into runs."""
    node = NodeLink(settings.rpc, "split task", settings.tls)
    allow = NodeAllowance(node, PASSES)

    def split() -> SplitSlice:
        local = bool(partition.host) and partition.host == host_identity()
        with slice_bytes(partition.work, node.read, local=local, allow=allow) as buffer:

            def write() -> SplitSlice:
                with _outputs(settings, node) as (announce, open_target):
                    classes = node.retention_classes()
                    return split_slice(partition.work, buffer, classes, open_target, announce=announce, allow=allow)

            return patient(settings.shared_store, node, write)

    try:
        return mended(split, node.damaged)
    finally:
        node.close()


@contextmanager
def _outputs(settings: SplitSettings, node: NodeLink) -> Iterator[tuple[Announce, OpenTarget]]:
    """How the runs of a slice are announced, and opened by their names."""
    if settings.shared_store is None:
        yield (
            unannounced,
            lambda name: LocalRunTarget(settings.runs_dir, name, bytes_per_second=settings.bytes_per_second),
        )
        return
    from mainstem.storage.shared_store.announced_files import AnnouncedFiles
    from mainstem.storage.shared_store.blocking_store import BlockingStore

    with BlockingStore.open(node.reached(settings.shared_store)) as store:
        files = AnnouncedFiles(store, node.intend, bytes_per_second=settings.bytes_per_second)
        yield files.announce, lambda name: files.open(path_of(name))


def mended(split: Callable[[], SplitSlice], damaged: Callable[[int], bool]) -> SplitSlice:
    """Split a slice, and have the node make each damaged block of it whole. Raises `SliceDamaged` for a block
    that cannot be: until it is put right, the node plans no slice over it."""
    for _ in range(MENDED_MAX):
        try:
            return split()
        except SliceDamaged as error:
            if not error.position or not damaged(error.position):
                raise
    return split()


def describe(number: int, done: SplitSlice) -> pyarrow.RecordBatch:
    row = {
        "number": number,
        "bytes": done.bytes,
        "batches": done.batches,
        "seconds": done.seconds,
        "slice": msgspec.json.encode(done).decode(),
    }
    return pyarrow.RecordBatch.from_pylist([row], schema=ARROW_SCHEMA)
