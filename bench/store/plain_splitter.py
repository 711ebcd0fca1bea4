"""A splitter without Spark: the tasks that Spark would run, one after the other in this process, under a node's lease.

Planning, splitting, merging and recording are those of the pipeline; only what hands tasks to executors is missing, and
with it the seconds of its start. So a store can be brought as far as weeks would bring it. Every byte that tasks put on
disk 2 is counted, indexes included, and so is what the node writes there: the copy of its manifest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import msgspec

from bench.errors import BenchError
from mainstem.pipeline.link.lease_keeper import LeaseKeeper
from mainstem.pipeline.link.node_link import NodeLink, find_endpoint
from mainstem.pipeline.merge.merge_task import FilesDone, MeasureDone, MergeSettings, run_files, run_measure
from mainstem.pipeline.merge.merger import Merger
from mainstem.pipeline.split.source import SlicePartition, split_partition
from mainstem.pipeline.split.split_plan import SplitSettings, plan, target_offsets
from mainstem.storage.queue_store.manifest.manifest_rows import COPY_DIRECTORY
from mainstem.storage.store_files.store_file import RUNS_DIRECTORY, FileKind, kind_of, path_of

BYTES_PER_TRIGGER = 1 << 30
RUNS_PER_LOOK = 16
"""After so many runs the splitter asks for merges."""
SYNC_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.05

Work = TypeVar("Work")
Done = TypeVar("Done")


class PlainSplitter:
    """Use as a context manager: it holds the node's split lease meanwhile."""

    def __init__(self, http: str, run_bytes: int) -> None:
        """`run_bytes`: about how much of the journal becomes one run; no less than the node's map of the journal tells
        apart, which is a 64th of a segment."""
        endpoint = find_endpoint(http)
        self._node = NodeLink(endpoint.rpc, "bench: splits")
        self._keeper = LeaseKeeper(
            NodeLink(endpoint.rpc, "bench: lease"), self._node.acquire("bench", wait_seconds=10.0, yields=False)
        )
        store = Path(endpoint.store_dir)
        self._settings = SplitSettings(
            rpc=endpoint.rpc,
            runs_dir=str(store / RUNS_DIRECTORY),
            bytes_per_trigger=BYTES_PER_TRIGGER,
            slice_bytes=run_bytes,
            shared_store=endpoint.shared_store,
        )
        self.runs = 0
        self.taken_bytes = 0
        """Of record batches that were split."""
        self._run_bytes = 0
        self._copy = _Growth(store / COPY_DIRECTORY)
        self._executor = _Executor(store if endpoint.shared_store is None else None)
        self._merger = Merger(
            self._executor.session,
            NodeLink(endpoint.rpc, "bench: merges"),
            self._keeper,
            MergeSettings(rpc=endpoint.rpc, store_dir=endpoint.store_dir, shared_store=endpoint.shared_store),
            tasks=1,
            split_behind_bytes=1 << 62,
            stopping=lambda: False,
        )

    def __enter__(self) -> PlainSplitter:
        self._keeper.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keeper.__exit__(kind, error, trace)
        self._node.close()

    @property
    def written_bytes(self) -> int:
        """Of all that was written to disk 2 so far, whether it still counts or not; in a shared store, what lies beside
        queue segments is left out."""
        self._copy.look()
        return self._run_bytes + self._executor.written_bytes + self._copy.bytes

    def split(self, *, merging: bool) -> None:
        """Split all that is committed now; `merging`: and merge meanwhile what is worth it. Raises BenchError where the
        journal is not synced in time."""
        self._await_synced()
        planned = plan(self._node, target_offsets(self._node), self._settings.slice_bytes)
        for number, work in enumerate(planned.slices, 1):
            done = split_partition(SlicePartition(number, work, planned.host), self._settings)
            self._node.record_split(self._keeper.held, done)
            self.runs += len(done.files)
            self._run_bytes += sum(file.bytes for file in done.files)
            self.taken_bytes += sum(file.batch_bytes for file in done.files)
            if number % RUNS_PER_LOOK == 0 or number == len(planned.slices):
                self._copy.look()
                if merging:
                    self._merge()

    def _await_synced(self) -> None:
        """Only what is synced can be split. In a shared store a node has nothing to split of groups that it does not
        lead."""
        committed = {group.group: group.committed for group in self._node.positions().groups}
        deadline = time.monotonic() + SYNC_SECONDS_MAX
        while any(
            group.unsplit_bytes and group.durable < committed[group.group] for group in self._node.positions().groups
        ):
            if time.monotonic() > deadline:
                raise BenchError(f"the journal is not synced after {SYNC_SECONDS_MAX:.0f} s")
            time.sleep(LOOK_SECONDS)

    def _merge(self) -> None:
        while self._merger._step(drain=False):  # noqa: SLF001  # `run` would wait for more work
            pass
        self._copy.look()

    def drain(self) -> None:
        """Merge all runs, however few. The last merges."""
        self._merger.run(drain=True)


class _Growth:
    """Adds up the bytes that files of a directory have taken on the disk, also those that are gone. It misses a file
    that comes and goes between two looks."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sizes: dict[tuple[str, int], int] = {}
        self.bytes = 0

    def look(self) -> None:
        if not self._directory.is_dir():
            return
        sizes = {}
        for entry in os.scandir(self._directory):
            found = entry.stat()
            sizes[entry.name, found.st_ino] = found.st_blocks * 512
        self.bytes += sum(max(0, size - self._sizes.get(key, 0)) for key, size in sizes.items())
        self._sizes = sizes


class _Executor:
    """Stands for a Spark session: runs at once the tasks that a Merger gives it."""

    def __init__(self, store: Path | None) -> None:
        """`store`: the directory of the queue store, if it has one."""
        self._store = store
        self.written_bytes = 0
        self.session: Any = _Session(self)

    def run(self, function: Any, work: Any) -> Any:
        """Run a task of `keeping_modules`, without that: this process has more to collect than a worker."""
        (task,) = function.args
        done = task(work)
        wrote: FilesDone | None = None
        if task is run_measure:
            wrote = msgspec.json.decode(done, type=MeasureDone).wrote
        elif task is run_files:
            wrote = msgspec.json.decode(done, type=FilesDone)
        if wrote is not None:
            store = self._store
            self.written_bytes += sum(file_bytes(store, file.name) if store else file.bytes for file in wrote.files)
        return done


def file_bytes(store: Path, name: str) -> int:
    """The size of a file of the queue store, with what lies beside it."""
    path = store / path_of(name)
    if kind_of(name) is not FileKind.SEGMENT:
        return path.stat().st_size
    return sum(entry.stat().st_size for entry in os.scandir(path.parent) if entry.name.startswith(f"{path.stem}."))


class _Session:
    def __init__(self, executor: _Executor) -> None:
        self.sparkContext = _Context(executor)


class _Context:
    def __init__(self, executor: _Executor) -> None:
        self._executor = executor

    def setJobGroup(self, group: str, description: str, interruptOnCancel: bool) -> None:
        """Nothing cancels what runs in the caller's thread."""

    def parallelize(self, work: Sequence[Work], slices: int) -> _Job[Work]:
        return _Job(self._executor, work)


class _Job(Generic[Work]):
    def __init__(self, executor: _Executor, work: Sequence[Work]) -> None:
        self._executor = executor
        self._work = work

    def map(self, function: Callable[[Work], Done]) -> _Mapped[Work, Done]:
        return _Mapped(self._executor, self._work, function)


class _Mapped(Generic[Work, Done]):
    def __init__(self, executor: _Executor, work: Sequence[Work], function: Callable[[Work], Done]) -> None:
        self._executor = executor
        self._work = work
        self._function = function

    def collect(self) -> list[Done]:
        return [self._executor.run(self._function, one) for one in self._work]
