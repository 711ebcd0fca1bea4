"""Uploads merged files to the remote tier, in what split and merges leave: the thread that merges asks the node for
work when nothing is to be merged.

One piece at a time, by tasks that leave a place for the split. The node decides what counts, and for how long it gives
nothing out after a failure: an object store that is away costs a splitter one attempt now and then, and keeps neither
merges nor compactions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import msgspec
from pyspark.sql import SparkSession

from mainstem.pipeline.errors import UploadFailed
from mainstem.pipeline.link.node_link import NodeLink
from mainstem.pipeline.merge.merge_task import Damage, MergeSettings, input_file
from mainstem.pipeline.spark.executors import on_executors
from mainstem.pipeline.tier.tier_task import UploadDone, UploadFile, UploadWork, run_upload
from mainstem.rpc.errors import NotServed, RpcError
from mainstem.rpc.messages.split import HeldLease
from mainstem.rpc.messages.tier import MovingFile, TierWork
from mainstem.storage.object_stores.config import ObjectStoreConfig

log = logging.getLogger(__name__)

TASK_BYTES = 256 << 20
"""The bytes that one task uploads, unless one file is larger: a split waits for it at the most."""


class Tierer:
    """Uploads in the thread of whoever calls it."""

    def __init__(self, spark: SparkSession, node: NodeLink, settings: MergeSettings, *, tasks: int) -> None:
        """`tasks`: that run at a time, those of a split included."""
        self._spark = spark
        self._node = node
        self._settings = settings
        self._tasks = max(1, tasks - 1)

    def step(self, held: HeldLease, *, drain: bool, pause: Callable[[], None]) -> bool:
        """One piece of work, if there is one. Whether there may be another. `pause` is called before tasks begin, and
        returns when the split is not behind. With `drain` a failure is raised, as `UploadFailed`; otherwise it is told
        to the node."""
        try:
            work = self._node.tier_work(held, drain=drain)
        except NotServed as error:  # a node of an earlier version
            work = TierWork(failure=str(error))
        if not work.tier_id:
            if work.failure and drain:
                raise UploadFailed(work.failure)
            return False
        done = self._upload(work, pause)
        if done.damage is not None:
            self._damaged(work, done.damage)
        outcome = self._node.record_tier(held, work.tier_id, done.names, done.failure)
        reason = done.failure or (done.damage.reason if done.damage is not None else "")
        if not reason and outcome not in ("recorded", "kept"):
            reason = f"the node does not take {len(done.names)} files: {outcome}"
        log.info(
            "write group %d: %d of %d files are uploaded: %s", work.group, len(done.names), len(work.files), outcome
        )
        if reason and drain:
            raise UploadFailed(reason)
        if reason:
            log.warning("an upload to the remote tier failed: %s", reason)
        return not reason

    def _upload(self, work: TierWork, pause: Callable[[], None]) -> UploadDone:
        """Upload until all is there or something fails."""
        config = msgspec.json.decode(work.store_config, type=ObjectStoreConfig)
        tasks = [
            UploadWork(
                settings=self._settings,
                store=work.store,
                config=config,
                files=tuple(
                    UploadFile(input_file(self._settings, work.group, one.file.name), one.name, one.objects)
                    for one in files
                ),
            )
            for files in in_tasks(work.files)
        ]
        names: list[str] = []
        while tasks:
            pause()
            some, tasks = tasks[: self._tasks], tasks[self._tasks :]
            answers = on_executors(self._spark, run_upload, list(map(msgspec.json.encode, some)))
            done = [msgspec.json.decode(answer, type=UploadDone) for answer in answers]
            names += (name for one in done for name in one.names)
            for one in done:
                if one.damage is not None or one.failure:
                    return UploadDone(names=tuple(names), damage=one.damage, failure=one.failure)
        return UploadDone(names=tuple(names))

    def _damaged(self, work: TierWork, damage: Damage) -> None:
        """Have the node mend a file."""
        try:
            self._node.merge_damaged(work.tier_id, damage.name, damage.reason)
        except RpcError as error:
            log.warning("damage of %s could not be reported: %s", damage.name, error)


def in_tasks(files: Sequence[MovingFile]) -> Iterator[list[MovingFile]]:
    """The files of each task, in order."""
    together: list[MovingFile] = []
    size = 0
    for one in files:
        if together and size + one.file.bytes > TASK_BYTES:
            yield together
            together, size = [], 0
        together.append(one)
        size += one.file.bytes
    if together:
        yield together
