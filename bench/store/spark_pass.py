"""One of Mainstem's Spark commands, from its start to its end: bytes, seconds, and processor time by kind of process.

Spark's start costs the same for a megabyte and for a terabyte, so it is counted apart from the pass:
the pass begins with the first process of Spark's that runs tasks, and ends with the last line that the command logs
of a merge or a compaction. All work in between counts, whether it moves bytes or not: Spark's planning, the
start of the workers, the node's choice, its checks and its records.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import threading
import time
from collections import deque
from typing import IO

from bench.errors import BenchError
from bench.process_tree import ProcessTree
from bench.store.split_watch import SplitCpu, split_cpu

SECONDS_MAX = 900.0
_LOOK_SECONDS = 0.02
_ENDED_SECONDS_MAX = 30.0
"""From the last line until the command has ended."""
_LINES_KEPT = 30
_MOVED = re.compile(
    r"write group \d+: \d+ files with (\d+) bytes(?:, \d+ of them dead, are merged into| are compacted to) "
)


@dataclasses.dataclass(frozen=True, slots=True)
class Pass:
    """`bytes`: of the batches that were read to be merged or compacted."""

    bytes: int
    seconds: float
    cpu: SplitCpu
    start_cpu_seconds: float
    """The processor time that the command had used when the pass began."""

    @property
    def cpu_seconds(self) -> float:
        return self.cpu.node + self.cpu.driver + self.cpu.jvm + self.cpu.workers


def moved_bytes(line: str) -> int | None:
    """The bytes that a line of the log says were merged or compacted; None: it says something else."""
    found = _MOVED.search(line)
    return int(found[1]) if found else None


def run_pass(tree: ProcessTree, http: str, *command: str) -> Pass:
    """Run `mainstem COMMAND --once` for the node whose processes are `tree`. Raises BenchError when it fails, is not
    over in time, or moves nothing."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mainstem.cli.main", *command, "--once", "--http", http],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    watch = _Watch(tree, process)
    try:
        return watch.result(" ".join(command))
    finally:
        ProcessTree(process.pid).kill()
        process.wait()


@dataclasses.dataclass(frozen=True, slots=True)
class _Look:
    at: float
    node: float
    command: SplitCpu
    """With the driver as its `node`."""

    def until(self, end: _Look) -> SplitCpu:
        spent = end.command.since(self.command)
        return SplitCpu(end.node - self.node, spent.node + spent.driver, spent.jvm, spent.workers)


class _Watch:
    """Reads what the command logs in a thread: looks are taken when a line comes."""

    def __init__(self, tree: ProcessTree, process: subprocess.Popen[str]) -> None:
        self._tree = tree
        self._process = process
        self._command = ProcessTree(process.pid)
        self._bytes = 0
        self._last: _Look | None = None
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._reader = threading.Thread(target=self._read, args=(process.stderr,), daemon=True)

    def result(self, name: str) -> Pass:
        self._reader.start()
        deadline = time.monotonic() + SECONDS_MAX
        begin = self._look()
        while self._process.poll() is None and not begin.command.workers:
            time.sleep(_LOOK_SECONDS)
            begin = self._look()
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise BenchError(f"{name} was not over after {SECONDS_MAX:.0f} s") from None
        self._reader.join(_ENDED_SECONDS_MAX)
        if code != 0:
            raise BenchError(f"{name} failed: {''.join(self._lines)[-800:]}")
        if self._last is None:
            raise BenchError(f"{name} found nothing to do")
        started = begin.command
        return Pass(
            self._bytes,
            self._last.at - begin.at,
            begin.until(self._last),
            started.node + started.driver + started.jvm + started.workers,
        )

    def _look(self) -> _Look:
        return _Look(time.perf_counter(), self._tree.cpu_seconds(), split_cpu(self._command))

    def _read(self, lines: IO[str] | None) -> None:
        assert lines is not None
        for line in lines:
            self._lines.append(line)
            moved = moved_bytes(line)
            if moved is not None:
                self._bytes += moved
                self._last = self._look()
