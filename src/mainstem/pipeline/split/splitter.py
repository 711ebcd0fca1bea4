"""One splitter: a streaming query under the node's lease, from its start to its end.

The query's `foreachBatch` hands each slice of a trigger to the node, in journal order; the node compares and sets, so
a trigger that Spark repeats is a replay. The driver's thread watches for the query's end, the loss of the lease,
another splitter's wish for it, and a request to stop. However a splitter ends, the next one starts from the manifest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from mainstem.pipeline.errors import Ended
from mainstem.pipeline.link.lease_keeper import LeaseKeeper
from mainstem.pipeline.link.node_link import NodeLink
from mainstem.pipeline.merge.merger import Merger
from mainstem.pipeline.slices.split_slice import SplitSlice
from mainstem.pipeline.split.source import SETTINGS_OPTION, SOURCE_NAME, MainstemJournal
from mainstem.pipeline.split.split_plan import SplitSettings
from mainstem.rpc.errors import RpcError
from mainstem.rpc.messages.split import LeaseLost, SplitProgress

log = logging.getLogger(__name__)

WATCH_SECONDS = 0.5
"""Seconds between two checks of the driver while the query runs."""

LATE_STARTS_MAX = 5
"""Queries in a row that fail without a trigger since a Python process of Spark was late. Each costs at most the 10 s
that Spark gives such a process, and a machine on which five of them are late has no time for a split."""

LATE_WORKER = "Python worker failed to connect back"
"""Spark says so of a process that did not call within 10 s, which no setting changes, or that died before."""


class Splitter:
    """Splits until done, told to stop, or out of its lease."""

    def __init__(
        self,
        spark: SparkSession,
        node: NodeLink,
        keeper: LeaseKeeper,
        settings: SplitSettings,
        *,
        checkpoint_dir: str,
        stopping: Callable[[], bool],
        yields: bool,
        merger: Merger | None = None,
    ) -> None:
        """`merger`: works in what the split leaves."""
        self._spark = spark
        self._node = node
        self._keeper = keeper
        self._settings = settings
        self._checkpoint_dir = checkpoint_dir
        self._stopping = stopping
        self._yields = yields
        self._merger = merger
        self._trigger: list[SplitSlice] = []
        """The result of the trigger that was recorded last…"""
        self._batch = -1
        """…and its number."""
        self._bytes_total = 0
        self._reported_batch = -1

    def run(self, *, trigger_seconds: float | None) -> Ended:
        """Run the query: every `trigger_seconds`, or once over everything committed now (None). Raises the
        query's error (`StreamingQueryException`), but for those of Python processes that started late: the query
        begins anew then, where its checkpoint and the manifest say that it was."""
        self._spark.dataSource.register(MainstemJournal)
        if self._merger is not None:
            self._merger.start()
        try:
            late = 0
            while True:
                split_before = self._bytes_total
                try:
                    return self._run_query(trigger_seconds)
                except Exception as error:
                    late = late + 1 if self._bytes_total == split_before else 1
                    if LATE_WORKER not in str(error) or self._keeper.lost or late == LATE_STARTS_MAX:
                        raise
                    log.warning("a Python process of Spark did not start in time, the query begins anew (%d)", late)
                if self._stopping():
                    return Ended.STOPPED
        finally:
            if self._merger is not None:
                self._merger.stop()

    def _run_query(self, trigger_seconds: float | None) -> Ended:
        query = self._writer(trigger_seconds).start()
        try:
            return self._watch(query)
        finally:
            self._report(query)
            query.stop()

    def _writer(self, trigger_seconds: float | None) -> DataStreamWriter:
        rows = (
            self._spark.readStream.format(SOURCE_NAME)
            .option(SETTINGS_OPTION, msgspec.json.encode(self._settings).decode())
            .load()
        )
        writer = (
            rows.writeStream.foreachBatch(self._record)
            .option("checkpointLocation", self._checkpoint_dir)
            .queryName("split")
        )
        if trigger_seconds is None:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=f"{round(trigger_seconds * 1000)} milliseconds")

    def _watch(self, query: StreamingQuery) -> Ended:
        while not query.awaitTermination(WATCH_SECONDS):
            self._report(query)
            if self._keeper.lost:
                return Ended.LEASE_LOST
            if self._keeper.wanted_by and self._yields:
                log.info("giving the split lease to %s", self._keeper.wanted_by)
                return Ended.YIELDED
            if self._stopping():
                return Ended.STOPPED
        return Ended.DONE

    def _record(self, rows: DataFrame, batch_id: int) -> None:
        """Hand a trigger's slices to the node. Raises `SplitRefused`, `LeaseLost`, `RpcError`: ends the
        query."""
        found = sorted(rows.collect(), key=lambda row: row["number"])
        done = [msgspec.json.decode(row["slice"], type=SplitSlice) for row in found]
        for entry in done:
            try:
                outcomes = self._node.record_split(self._keeper.held, entry)
            except LeaseLost as error:
                self._keeper.lost = str(error)
                raise
            log.info(
                "trigger %d: %d bytes, %d batches in %d files: %s",
                batch_id,
                entry.bytes,
                entry.batches,
                len(entry.files),
                ", ".join(sorted(set(outcomes))),
            )
        self._trigger, self._batch = done, batch_id
        self._bytes_total += sum(entry.bytes for entry in done)

    def _report(self, query: StreamingQuery) -> None:
        """Tell the node about the last trigger that had work, once."""
        if self._batch == self._reported_batch or not self._trigger:
            return  # Spark is not asked: that costs a millisecond of two processes
        progress: Any = query.lastProgress
        if progress is None or progress["batchId"] == self._reported_batch:
            return
        if progress["numInputRows"] == 0:
            return
        self._reported_batch = progress["batchId"]
        try:
            self._node.report(
                self._keeper.held,
                SplitProgress(
                    batch_id=progress["batchId"],
                    timestamp=progress["timestamp"],
                    duration_ms={name: int(value) for name, value in progress["durationMs"].items()},
                    slices=len(self._trigger),
                    bytes=sum(entry.bytes for entry in self._trigger),
                    batches=sum(entry.batches for entry in self._trigger),
                    dropped_batches=sum(entry.dropped_batches for entry in self._trigger),
                    split_bytes_total=self._bytes_total,
                    spark=f"{self._spark.sparkContext.master} {self._spark.sparkContext.applicationId}",
                ),
            )
        except RpcError as error:
            log.warning("progress could not be reported: %s", error)
