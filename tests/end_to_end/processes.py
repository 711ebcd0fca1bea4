"""The processes of a test: those a node starts (splitter, JVM, Python workers) and those the test starts.

Only what descends from them is ever signalled, by `psutil.Process`, which knows a process from another one that
got its number later.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

SOURCE = Path(__file__).parents[2] / "src"
SPLITTER = "mainstem.pipeline.main"


def descendants(pid: int) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def is_jvm(process: psutil.Process) -> bool:
    try:
        name: str = process.name()
    except psutil.Error:
        return False
    return name == "java"


def is_splitter(process: psutil.Process) -> bool:
    try:
        return SPLITTER in process.cmdline()
    except psutil.Error:
        return False


def end(processes: Sequence[psutil.Process]) -> None:
    """Kill what is left of them."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, PATIENCE_SECONDS)


class Splitters:
    """The embedded splitter of a node, whichever process it is just now."""

    def __init__(self, node: Serving) -> None:
        self._node = node
        self._seen: set[psutil.Process] = set()

    def family(self) -> list[psutil.Process]:
        """Everything that descends from the node now; also remembered for `end`."""
        found = descendants(self._node.pid)
        self._seen.update(found)
        return found

    def driver(self) -> psutil.Process | None:
        return next((process for process in self.family() if is_splitter(process)), None)

    def survivors(self) -> list[psutil.Process]:
        """Those ever seen that are still there."""
        return [process for process in self._seen if process.is_running()]

    def end(self) -> None:
        end(self.survivors())


class Commands:
    """Processes that a test starts and that end with it, together with all they start."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Output goes to the log of that name."""
        return self._start(name, command, environment)

    def asked(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Its standard input and output are pipes, for the test to ask it; only errors go to the log."""
        return self._start(name, command, environment, asked=True)

    def _start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], *, asked: bool = False
    ) -> subprocess.Popen[bytes]:
        with (self._logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE if asked else subprocess.DEVNULL,
                stdout=subprocess.PIPE if asked else log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def log(self, name: str) -> str:
        return (self._logs / f"{name}.log").read_text(errors="replace")

    def close(self) -> None:
        for process in self._started:
            end([*descendants(process.pid), *_itself(process)])
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout)):
                pipe.close()


def _itself(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return [psutil.Process(process.pid)] if process.poll() is None else []
