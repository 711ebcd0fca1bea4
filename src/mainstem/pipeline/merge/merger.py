"""Merges files of the queue store, in what the split leaves, has what is merged uploaded to the remote tier, and
compacts it: a thread of the driver that asks the node for work.

One merge at a time, its tasks a few at a time as jobs of their own, so that a trigger of the split waits for the tasks
that run and for no others. While the split is behind by more than a trigger takes, no task is begun. The node decides
what counts: a merge that is given up, by an error, by the loss of the lease or by the end of this process, leaves files
that no manifest names, and the node clears them.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Protocol

import msgspec
from pyspark.sql import SparkSession

from mainstem.pipeline.errors import Ended, MergeFailed
from mainstem.pipeline.link.lease_keeper import LeaseKeeper
from mainstem.pipeline.link.node_link import NodeLink
from mainstem.pipeline.merge.compactor import Compactor
from mainstem.pipeline.merge.merge_task import (
    Damage,
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
from mainstem.pipeline.spark.executors import on_executors
from mainstem.rpc.errors import RpcError
from mainstem.rpc.messages.merge import MergeWork
from mainstem.rpc.messages.split import HeldLease
from mainstem.storage.merging.merge_measure import MergeTask, facts_of
from mainstem.storage.store_files.store_file import StoreFile

log = logging.getLogger(__name__)

ASK_SECONDS = 10.0
"""Between two questions where nothing was to merge. Enough for a merge comes together in minutes."""
BACKOFF_SECONDS = 60.0
"""After an error; the same work is given again."""
SPLIT_WAIT_SECONDS = 0.5
"""Between two looks at a split that is behind."""

STOP_SECONDS_MAX = 10.0
"""A thread that still waits for its node then ends with the process."""

LOOK_SECONDS = 1.0
"""Between two questions of a merge that has no split beside it."""

JOB_GROUP = "merge"


class Uploader(Protocol):
    """Uploads to the remote tier (`tierer.Tierer`)."""

    def step(self, held: HeldLease, *, drain: bool, pause: Callable[[], None]) -> bool:
        """One piece of work, if there is one. Whether there may be another."""
        ...


class Merger:
    """Merges until told to stop: in a thread of its own (`start`, `stop`), or in the caller's (`run`)."""

    def __init__(
        self,
        spark: SparkSession,
        node: NodeLink,
        keeper: LeaseKeeper,
        settings: MergeSettings,
        *,
        tasks: int,
        split_behind_bytes: int,
        stopping: Callable[[], bool],
        compactor: Compactor | None = None,
        uploader: Uploader | None = None,
    ) -> None:
        """`node`: a link of its own. `tasks`: at a time. With so many unsplit bytes the split goes first. `uploader`:
        works when nothing is to be merged, `compactor` when nothing is to be uploaded either."""
        self._spark = spark
        self._node = node
        self._keeper = keeper
        self._settings = settings
        self._tasks = max(1, tasks)
        self._split_behind_bytes = split_behind_bytes
        self._stopping = stopping
        self._compactor = compactor
        self._uploader = uploader
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="merge", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the merge under way, if there is one, and wait for the thread."""
        self._ended.set()
        try:
            self._spark.sparkContext.cancelJobGroup(JOB_GROUP)
        except Exception as error:  # of a JVM that is gone, for which reason the splitter ends
            log.warning("the tasks of a merge could not be cancelled: %s", error)
        self._thread.join(STOP_SECONDS_MAX)

    def run(self, *, drain: bool) -> Ended:
        """Merge in the caller's thread, though the split is behind. `drain`: all runs, however few, and whatever else
        is worth it, once; otherwise what is worth it, until told to stop. Raises `MergeFailed`, RpcError, and Spark's
        errors."""
        self._split_behind_bytes = sys.maxsize
        try:
            while not self._over():
                more = self._step(drain=drain)
                if not more and drain:
                    return Ended.DONE
                if not more:
                    self._ended.wait(LOOK_SECONDS)
        finally:
            self._node.close()
        return Ended.LEASE_LOST if self._keeper.lost else Ended.STOPPED

    def _over(self) -> bool:
        return self._ended.is_set() or self._stopping() or bool(self._keeper.lost)

    def _step(self, *, drain: bool) -> bool:
        """One merge, or else one upload, or else one compaction, if there is one. Whether there may be another."""
        work = self._node.merge_work(self._keeper.held, drain=drain)
        if work.merge_id:
            self._merge(work)
        if work.merge_id or work.more:
            return True
        if self._uploader is not None:
            self._name_jobs("upload to the remote tier")
            if self._uploader.step(self._keeper.held, drain=drain, pause=self._let_the_split_go_first):
                return True
        if self._compactor is None:
            return False
        self._let_the_split_go_first()
        self._name_jobs("compaction of the queue store")
        return self._compactor.step(self._keeper.held, drain=drain)

    def _name_jobs(self, title: str) -> None:
        """The name of the next jobs, and that `stop` cancels them."""
        self._spark.sparkContext.setJobGroup(JOB_GROUP, title, interruptOnCancel=False)

    def _run(self) -> None:
        while not self._over():
            seconds = ASK_SECONDS
            try:
                if self._step(drain=False):
                    seconds = 0.0
            except Exception as error:
                if self._over():
                    return
                log.warning("a merge failed, and is tried again later: %s", error)
                seconds = BACKOFF_SECONDS
            self._ended.wait(seconds)

    def _merge(self, work: MergeWork) -> None:
        """Raises `MergeFailed` when it cannot be finished; the node then has what it had."""
        job = self._job(work)
        topics = facts_of(work.topics)
        self._let_the_split_go_first()
        (answer,) = self._on_executors(run_measure, [msgspec.json.encode(MeasureWork(job, topics, goes_on=True))])
        measured = msgspec.json.decode(answer, type=MeasureDone)
        if measured.damage is not None:
            self._damaged(work, measured.damage)
        if measured.measured is None:
            raise MergeFailed(measured.failure)
        files = self._files_of(work, measured.wrote) if measured.wrote is not None else []
        pending = list(measured.measured.tasks) if measured.wrote is None else []
        while pending:
            self._let_the_split_go_first()
            some, pending = pending[: self._tasks], pending[self._tasks :]
            files += self._write(work, job, some)
        outcome = self._node.record_merge(self._keeper.held, work.merge_id, files)
        if outcome != "merged":
            raise MergeFailed(f"the node does not take a merge of {len(job.inputs)} files: {outcome}")
        log.info(
            "write group %d: %d files with %d bytes, %d of them dead, are merged into %d files on level %d",
            work.group,
            len(job.inputs),
            measured.measured.bytes + measured.measured.dead_bytes,
            measured.measured.dead_bytes,
            len(files),
            work.level,
        )

    def _write(self, work: MergeWork, job: MergeJob, tasks: list[MergeTask]) -> list[StoreFile]:
        files: list[StoreFile] = []
        for answer in self._on_executors(run_files, [msgspec.json.encode(FilesWork(job, task)) for task in tasks]):
            files += self._files_of(work, msgspec.json.decode(answer, type=FilesDone))
        return files

    def _files_of(self, work: MergeWork, done: FilesDone) -> list[StoreFile]:
        """The files that a task wrote. Raises `MergeFailed` if it did not."""
        if done.damage is not None:
            self._damaged(work, done.damage)
        if done.failure:
            raise MergeFailed(done.failure)
        return list(done.files)

    def _job(self, work: MergeWork) -> MergeJob:
        return MergeJob(
            settings=self._settings,
            merge_id=work.merge_id,
            group=work.group,
            level=work.level,
            inputs=tuple(input_file(self._settings, work.group, entry.file.name) for entry in work.inputs),
            packed_bytes=work.packed_bytes,
            task_bytes=work.task_bytes,
            output_files_max=work.output_files_max,
            joined=work.joined,
        )

    def _on_executors(self, function: Callable[[bytes], bytes], work: list[bytes]) -> list[bytes]:
        self._name_jobs("merge of the queue store")
        return on_executors(self._spark, function, work)

    def _let_the_split_go_first(self) -> None:
        """Returns when the split is not behind. Raises `MergeFailed` when the end comes meanwhile."""
        while not self._over():
            if sum(group.unsplit_bytes for group in self._node.positions().groups) < self._split_behind_bytes:
                return
            self._ended.wait(SPLIT_WAIT_SECONDS)
        raise MergeFailed("the splitter ends")

    def _damaged(self, work: MergeWork, damage: Damage) -> None:
        """Have the node mend an input, and give the merge up."""
        try:
            self._node.merge_damaged(work.merge_id, damage.name, damage.reason)
        except RpcError as error:
            log.warning("damage of %s could not be reported: %s", damage.name, error)
        raise MergeFailed(damage.reason)
