"""Compacts merged files of the queue store, in what split and merges leave.

One pass at a time. Executors read the keys of all records (`scan_files`), Spark finds the latest record of each key,
and executors write each file without the records that go (`write_files`). Rows have a hash of the key and the record's
place; no key and no value crosses the JVM. If queues have transactions, Spark finds the markers as well that have
nothing left to end (`find_transactions`): batches of transactions are read twice for that, since Spark would keep the
rows of all records for a second look at them. The node decides what counts, as it does for merges.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from mainstem.pipeline.errors import MergeFailed
from mainstem.pipeline.link.node_link import NodeLink
from mainstem.pipeline.merge.compact_task import (
    DONE_SCHEMA,
    KEYS_SCHEMA,
    TRANSACTIONS_SCHEMA,
    WORK_SCHEMA,
    DecideDone,
    DecideWork,
    FileDone,
    FileWork,
    decide,
    find_transactions,
    scan_files,
    write_files,
)
from mainstem.pipeline.merge.merge_task import MergeSettings, input_file
from mainstem.pipeline.spark.executors import on_executors
from mainstem.pipeline.spark.kept_modules import keeping_modules
from mainstem.pipeline.spark.session import COMPACTION_POOL
from mainstem.rpc.messages.compact import CompactedFile, CompactionWork
from mainstem.rpc.messages.split import HeldLease
from mainstem.storage.compacting.compact_plan import INPUTS_MAX
from mainstem.storage.compacting.decided import DecidedQueues
from mainstem.storage.compacting.ended_markers import MARKER_BIT
from mainstem.storage.compacting.pass_places import GOES_BIT, nothing_of
from mainstem.storage.store_files.store_file import StoreFile

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)

ArrowFunction = Callable[[Iterator["pyarrow.RecordBatch"]], Iterator["pyarrow.RecordBatch"]]

KEY_BYTES = 16

WRITERS_MAX = 256
"""Tasks that write. With more inputs than that a task has several, one after the other."""

ARROW_ROWS = 1 << 17
"""Rows that go to a task at once: 2 MiB."""


SHUFFLED_BYTES = 64 << 20
"""Of files: their keys are one partition of Spark's shuffle, 2 MiB of rows where records have 1 KiB, and 20 MiB where
they have 100 bytes. Each partition is a task. Spark's own 200 took half of the time of a pass over 128 MiB."""

PARTITIONS_MAX = 200
"""Spark's own."""


class Compactor:
    """Compacts in the thread of whoever calls it."""

    def __init__(self, spark: SparkSession, node: NodeLink, settings: MergeSettings) -> None:
        self._spark = spark
        self._node = node
        self._settings = settings

    def step(self, held: HeldLease, *, drain: bool) -> bool:
        """One pass, if one is worth it. Whether there may be another. Raises `MergeFailed` when it cannot be finished;
        the node then has what it had."""
        work, queues = self._node.compact_work(held, drain=drain)
        if not work.pass_id:
            return work.more
        found = self._decided(work, queues)
        done = self._run(self._works(work, found), has_transactions=found.has_transactions)
        if sorted(done) != list(range(len(work.inputs))):
            raise MergeFailed(f"a compaction of {len(work.inputs)} files has the results of {len(done)}")
        files = tuple(
            CompactedFile(entry.name, tuple(file.message() for file in done[number]))
            for number, entry in enumerate(work.inputs)
        )
        outcome = self._node.record_compaction(held, work.pass_id, files)
        if outcome != "compacted":
            raise MergeFailed(f"the node does not take a compaction of {len(files)} files: {outcome}")
        log.info(
            "write group %d: %d files with %d bytes are compacted to %d bytes",
            work.group,
            len(work.inputs),
            sum(entry.batch_bytes for entry in work.inputs),
            sum(file.batch_bytes for outputs in done.values() for file in outputs),
        )
        return True

    def _decided(self, work: CompactionWork, queues: bytes) -> DecidedQueues:
        """How far the transactions of the queues are decided, as an executor finds in the files."""
        asked = DecideWork(
            settings=self._settings,
            pass_id=work.pass_id,
            inputs=tuple(input_file(self._settings, work.group, entry.name) for entry in work.inputs),
            queues=queues,
        )
        context: Any = self._spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", COMPACTION_POOL)
        try:
            (answer,) = on_executors(self._spark, decide, [msgspec.msgpack.encode(asked)])
        finally:
            context.setLocalProperty("spark.scheduler.pool", None)
        found = msgspec.msgpack.decode(answer, type=DecideDone)
        return DecidedQueues.unpacked(found.queues, found.aborted, found.has_transactions)

    def _works(self, work: CompactionWork, found: DecidedQueues) -> list[bytes]:
        queues, aborted, _ = found
        key = secrets.token_bytes(KEY_BYTES)
        works = []
        for number, entry in enumerate(work.inputs):
            mine, ended = (
                (rows["queue_id"] >= entry.first_queue) & (rows["queue_id"] <= entry.last_queue)
                for rows in (queues, aborted)
            )
            file = FileWork(
                settings=self._settings,
                pass_id=work.pass_id,
                number=number,
                file=StoreFile.of(entry),
                paths=input_file(self._settings, work.group, entry.name),
                queues=queues[mine].tobytes(),
                key=key,
                now_ms=work.began_ms,
                covered=work.covered,
                joined=work.joined,
                aborted=aborted[ended].tobytes(),
            )
            works.append(msgspec.msgpack.encode(file))
        return works

    def _run(self, works: list[bytes], *, has_transactions: bool) -> dict[int, tuple[StoreFile, ...]]:
        """The outputs of each input."""
        context: Any = self._spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", COMPACTION_POOL)
        self._spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(ARROW_ROWS))
        size = sum(msgspec.msgpack.decode(work, type=FileWork).file.batch_bytes for work in works)
        self._spark.conf.set("spark.sql.shuffle.partitions", str(shuffle_partitions(size)))
        by_number = context.broadcast(dict(enumerate(works)))
        try:
            packed = context.parallelize([(work,) for work in works], len(works))
            inputs = self._spark.createDataFrame(packed, WORK_SCHEMA)
            others = self._nothing(len(works))
            if has_transactions:
                others = others.union(empty_markers(map_in_arrow(inputs, find_transactions, TRANSACTIONS_SCHEMA)))
            staying = latest(map_in_arrow(inputs, scan_files, KEYS_SCHEMA), others)
            by_input = staying.repartition(min(len(works), WRITERS_MAX), "input")
            in_order = by_input.sortWithinPartitions("input", "queue", "place").select("queue", "place")
            written = map_in_arrow(in_order, lambda batches: write_files(by_number.value, batches), DONE_SCHEMA)
            found = [msgspec.msgpack.decode(bytes(row["done"]), type=FileDone) for row in written.collect()]
        finally:
            by_number.destroy()
            context.setLocalProperty("spark.scheduler.pool", None)
        return {done.number: done.outputs for done in found}

    def _nothing(self, inputs: int) -> DataFrame:
        rows = zip(*(column.tolist() for column in nothing_of(inputs)), strict=True)
        return self._spark.createDataFrame(list(rows), KEYS_SCHEMA).select("queue", "place")


def shuffle_partitions(size: int) -> int:
    """In how many parts Spark looks for the latest records of files with so many bytes."""
    return min(PARTITIONS_MAX, max(1, -(-size // SHUFFLED_BYTES)))


def map_in_arrow(frame: DataFrame, function: ArrowFunction, schema: str) -> DataFrame:
    """`DataFrame.mapInArrow`, without pandas: that asks for it, though neither driver nor workers use it."""
    mapped = UserDefinedFunction(keeping_modules(function), schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    columns = mapped(*(frame[name] for name in frame.columns))
    mapping = frame._jdf.mapInArrow(columns._jc, False, None)  # noqa: SLF001  # what `DataFrame.mapInArrow` calls itself
    return DataFrame(mapping, frame.sparkSession)


def empty_markers(batches: DataFrame) -> DataFrame:
    """The markers among these batches of transactions, as (queue, place), that do not follow a batch with data of their
    producer."""
    in_order = Window.partitionBy("queue", "producer").orderBy("place")
    ends_nothing = F.coalesce(F.lag("place").over(in_order), F.lit(MARKER_BIT)).bitwiseAND(MARKER_BIT) != 0
    found = batches.withColumn("ends_nothing", ends_nothing)
    return found.where(F.col("ends_nothing") & (F.col("place").bitwiseAND(MARKER_BIT) != 0)).select("queue", "place")


def latest(keys: DataFrame, others: DataFrame) -> DataFrame:
    """The records that stay, as (queue, place, input): of each key the latest, unless it is a tombstone that may go;
    and the rows of `others`, which are (queue, place)."""
    newest = keys.groupBy("queue", "high", "low").agg(F.max("place").alias("place")).select("queue", "place")
    staying = newest.where(F.col("place").bitwiseAND(GOES_BIT) == 0).union(others)
    return staying.withColumn("input", F.col("place").bitwiseAND(INPUTS_MAX - 1))
