"""`python -m tests.end_to_end.odd_nodes.doomed_job STEPS NODE STEP VICTIM`: merges and compacts all that a node has,
writes down every step, and kills somebody at one of them.

The driver is the pipeline's own, and so are the tasks, but they run in this process, one after the other: what Spark
does between them is done here. A step is a call to the node, the answer to it, or what is about to be done to a file;
each is a line of the file STEPS, which is written before anything else happens. When the step STEP is made, as
'name#2' for the second of that name, the process VICTIM gets SIGKILL; 0 is this one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy
import pyarrow

from mainstem.pipeline.link.lease_keeper import LeaseKeeper
from mainstem.pipeline.link.node_link import NodeLink, find_endpoint
from mainstem.pipeline.merge.compact_task import FileDone, scan_files, write_files
from mainstem.pipeline.merge.compactor import Compactor
from mainstem.pipeline.merge.merge_task import MergeSettings
from mainstem.pipeline.merge.merger import Merger
from mainstem.rpc.blocking import BlockingClient
from mainstem.rpc.wire.method import Method
from mainstem.storage.compacting.compact_plan import INPUTS_MAX
from mainstem.storage.compacting.pass_places import GOES_BIT, nothing_of
from mainstem.storage.store_files.run_target import LocalRunTarget
from mainstem.storage.store_files.store_file import StoreFile

COMMIT_BEGUN_SECONDS = 0.004
"""After a commit is asked for: often in the middle of it, and what it meets shall do no harm wherever it is."""


class Steps:
    def __init__(self, path: str, doomed: str, victim: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._doomed = doomed
        self._victim = victim or os.getpid()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())

    def step(self, line: str) -> None:
        with self._lock:
            self._counts[line] += 1
            name = f"{line}#{self._counts[line]}"
            self.write(name)
        if name == self._doomed:
            os.kill(self._victim, signal.SIGKILL)

    def watch(self, owner: Any, name: str, what: Callable[..., str]) -> None:
        """Make a step of each call of a function, before it, and one of its end."""
        function = getattr(owner, name)

        @wraps(function)
        def watched(*arguments: Any, **named: Any) -> Any:
            called = what(*arguments, **named)
            if not called:
                return function(*arguments, **named)
            self.step(called)
            if called.endswith(".commit"):
                timer = threading.Timer(COMMIT_BEGUN_SECONDS, self.step, [f"{called} has begun"])
                timer.daemon = True
                timer.start()
            result = function(*arguments, **named)
            self.step(f"{called} is done")
            return result

        setattr(owner, name, watched)


def kind_of(path: Any) -> str:
    """Of a file of the queue store, by where it lies and what it is: names have something random in them."""
    return os.path.basename(str(path)).rpartition(".")[2]


def call_of(_client: Any, method: Method[Any, Any], *_more: Any, **_named: Any) -> str:
    return method.name if method.name.startswith(("merge.", "compact.")) else ""


class InProcess:
    """As much of a Spark context as merges ask for."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self._items = list(items)

    def setJobGroup(self, *_arguments: Any, **_named: Any) -> None: ...

    def setLocalProperty(self, _key: str, _value: str | None) -> None: ...

    def parallelize(self, items: Iterable[Any], _slices: int) -> InProcess:
        return InProcess(items)

    def map(self, function: Callable[[Any], Any]) -> InProcess:
        return InProcess(map(function, self._items))

    def collect(self) -> list[Any]:
        return self._items


class PlainCompactor(Compactor):
    """Finds the latest record of each key without Spark."""

    def _run(self, works: list[bytes], *, has_transactions: bool) -> dict[int, tuple[StoreFile, ...]]:
        assert not has_transactions
        packed = pyarrow.RecordBatch.from_pydict({"work": pyarrow.array(works, pyarrow.binary())})
        latest: dict[tuple[int, int, int], int] = {}
        for batch in scan_files([packed]):
            for queue, high, low, place in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                latest[queue, high, low] = max(place, latest.get((queue, high, low), place))
        rows = [(key[0], place) for key, place in latest.items() if not place & GOES_BIT]
        rows += [(0, place) for place in nothing_of(len(works)).place.tolist()]
        rows.sort(key=lambda row: (row[1] & (INPUTS_MAX - 1), *row))
        columns = [numpy.array(column, numpy.int64) for column in zip(*rows, strict=True)]
        staying = pyarrow.RecordBatch.from_arrays([pyarrow.array(column) for column in columns], ["queue", "place"])
        done = [msgspec.msgpack.decode(row, type=FileDone) for row in self._written(works, staying)]
        return {one.number: one.outputs for one in done}

    def _written(self, works: list[bytes], staying: pyarrow.RecordBatch) -> Iterator[bytes]:
        for batch in write_files(dict(enumerate(works)), [staying]):
            yield from batch.column(0).to_pylist()


def main(path: str, node: str, doomed: str, victim: str) -> None:
    steps = Steps(path, doomed, int(victim))
    endpoint = find_endpoint(node)
    link = NodeLink(endpoint.rpc, "doomed job")
    lease = link.acquire("doomed job", wait_seconds=60, yields=False)
    steps.write(f"lease {lease.lease_id} {lease.epoch}")
    steps.watch(BlockingClient, "call", call_of)
    steps.watch(LocalRunTarget, "write", lambda _target, _buffer: "write")
    steps.watch(LocalRunTarget, "finish", lambda _target: "finish")
    steps.watch(os, "rename", lambda _old, new: f"name {kind_of(new)}")
    settings = MergeSettings(rpc=endpoint.rpc, store_dir=endpoint.store_dir)
    spark: Any = SimpleNamespace(sparkContext=InProcess())
    with LeaseKeeper(NodeLink(endpoint.rpc, "split lease"), lease) as keeper:
        compactor = PlainCompactor(spark, link, settings)
        merger = Merger(
            spark, link, keeper, settings, tasks=2, split_behind_bytes=1 << 40, stopping=lambda: False,
            compactor=compactor,
        )  # fmt: skip
        merger.run(drain=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
