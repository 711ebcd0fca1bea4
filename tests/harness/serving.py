"""A real node in a process of its own, for tests that need sockets, disks and signals.

`Serving` starts `mainstem serve` on free ports of 127.0.0.1, keeps its output for failure messages, and stops
only the process it started. Directories outlive the process, so that a test can kill and start again.

The report of every failed test shows what its nodes printed and whether they run (`tests/conftest.py` asks `reports`):
a refused connection alone does not tell why nobody listens."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from tests.harness.forked_nodes import ForkedNode, NodeForks
from tests.harness.free_port import HOST, free_port
from tests.harness.patience import PATIENCE_SECONDS

REPORT_LINES = 60
"""How many of a node's last lines the report of a failed test shows."""
ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PROGRAM = "mainstem.cli.main"
FIRST_MEMBER_WAITS_FOR_NOBODY = "groups.rebalance_delay_ms=0"
"""By default the first member of a consumer group waits 3 s for others: so would every test with a group."""


@cache
def node_forks() -> NodeForks:
    """Those of this worker."""
    return NodeForks(SOURCE)


class Serving:
    """One node on two directories. `start` and `kill` or `stop` may alternate."""

    def __init__(self, root: Path, *settings: str) -> None:
        self.write_dir = root / "write"
        self.store_dir = root / "store"
        self.name = root.name
        self.settings = (FIRST_MEMBER_WAITS_FOR_NOBODY, *settings)
        self.source = SOURCE
        """Of which version the node is, from its next start on."""
        self.within: Callable[[], AbstractContextManager[None]] = nullcontext
        """The surroundings in which it is started, if not those of the test."""
        self.program = PROGRAM
        """The module that is run: one of the tests' own plants a bug first."""
        self.kafka, self.http, self.rpc = (f"{HOST}:{free_port()}" for _ in range(3))
        """The addresses on which it listens; a test may choose others before the first start. Ports that the kernel
        gives to outgoing connections are taken by clients as soon as the node is killed, sometimes for a connection to
        themselves."""
        self._ended_at: float | None = None
        self._process: subprocess.Popen[str] | ForkedNode | None = None
        self._lines: list[str] = []
        self._threads: list[threading.Thread] = []
        _SERVED.add(self)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def output(self) -> str:
        return "\n".join(self._lines[-200:])

    @property
    def state(self) -> str:
        """Whether it runs, for people."""
        if self._process is None:
            return "was never started"
        code = self._process.poll()
        if code is None:
            return f"runs, process {self.pid}"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def ran_since(self, moment: float) -> bool:
        """Whether it runs, or has ended since a moment on `time.monotonic`, for all that its owner knows."""
        return self._process is not None and (self._ended_at is None or self._ended_at >= moment)

    def report(self) -> str:
        """The part that the report of a failed test has of it: its state, addresses and last lines."""
        return "\n".join(
            (
                f"{self.name} (kafka {self.kafka}, http {self.http}, rpc {self.rpc}) {self.state}; its last lines:",
                *self._lines[-REPORT_LINES:],
            )
        )

    def output_lines(self, text: str) -> list[str]:
        """Every line so far that contains `text`."""
        return [line for line in self._lines if text in line]

    def arguments(self) -> list[str]:
        """The arguments that the program is started with."""
        directories = ["--write-dir", str(self.write_dir), "--store-dir", str(self.store_dir)]
        addresses = ["--listen", self.kafka, "--http", self.http, "--rpc", self.rpc]
        settings = [word for setting in self.settings for word in ("--set", setting)]
        return ["serve", *directories, *addresses, *settings]

    def start(self) -> Serving:
        environment = {**os.environ, "PYTHONPATH": f"{self.source}{os.pathsep}{ROOT}", "PYTHONUNBUFFERED": "1"}
        if (self.program, self.source, self.within) == (PROGRAM, SOURCE, nullcontext) and sys.platform == "linux":
            self._process = node_forks().start(self.arguments(), environment)
        else:
            with self.within():
                self._process = subprocess.Popen(
                    [sys.executable, "-m", self.program, *self.arguments()],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    stdin=subprocess.DEVNULL,
                    env=environment,
                )
        ready: queue.Queue[str] = queue.Queue()
        self._threads = [
            threading.Thread(target=self._follow, args=(stream, ready), daemon=True)
            for stream in (self._process.stdout, self._process.stderr)
        ]
        for thread in self._threads:
            thread.start()
        self._ended_at = None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                line = ready.get(timeout=0.1)
                break
            except queue.Empty:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    state = self.state
                    self.kill()
                    raise AssertionError(f"the node did not start: it {state}\n{self.output}") from None
        addresses = dict(word.split("=", 1) for word in line.split() if "=" in word)
        self.http, self.rpc = addresses["http"], addresses["rpc"]
        if addresses["kafka"] != "-":  # as a node says that is no broker
            self.kafka = addresses["kafka"]
        return self

    def _follow(self, stream: Any, ready: queue.Queue[str]) -> None:
        with stream:  # a story that is kept would have the pipes of all of its nodes open
            for line in stream:
                self._lines.append(line.rstrip())
                if line.startswith("ready "):
                    ready.put(line)

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        """Until it has ended by itself; the exit code."""
        process = self._process
        assert process is not None
        try:
            code = process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the node did not end:\n{self.output}") from None
        return self._has_ended(code)

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        assert process is not None
        if process.poll() is None:
            process.send_signal(number)
        try:
            code = process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            self._has_ended(process.wait())
            raise AssertionError(f"the node did not stop:\n{self.output}") from None
        return self._has_ended(code)

    def _has_ended(self, code: int) -> int:
        """Its last lines are read, unless a child that outlives it holds its output open."""
        self._ended_at = time.monotonic()
        for thread in self._threads:
            thread.join(5)
        return code

    def drop(self) -> None:
        """Kill it, if it runs."""
        if self._process is not None and self._ended_at is None:
            self.kill()

    def close(self) -> None:
        if self._process is not None and self._ended_at is None:
            if (code := self._process.poll()) is None:
                self.stop()
            else:
                self._has_ended(code)

    def get(self, path: str) -> Any:
        """A JSON answer of the node's HTTP port. Raises HTTPError for what the node refuses."""
        return json.loads(self._asked(path))

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels."""
        text = self._asked("/metrics").decode()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.split("{")[0].split(" ")[0] == name and all(label in line for label in wanted)
        )

    def _asked(self, path: str) -> bytes:
        """Raises AssertionError with what the node printed when nobody answers."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=PATIENCE_SECONDS) as answer:
                content: bytes = answer.read()
                return content
        except HTTPError:
            raise
        except (OSError, HTTPException) as error:
            raise AssertionError(f"GET {path}: {error}\n{self.report()}") from error


_SERVED: weakref.WeakSet[Serving] = weakref.WeakSet()
"""Every node of this process that some test still holds."""


def reports(since: float) -> Iterator[tuple[str, str]]:
    """(title, text) for every node that runs or has ended since a moment on `time.monotonic`."""
    for node in sorted((node for node in _SERVED if node.ran_since(since)), key=lambda node: node.name):
        yield f"node {node.name}", node.report()


def eventually(check: Callable[[], Any], *, seconds: float = PATIENCE_SECONDS, what: str = "the condition") -> Any:
    """The first true value of `check`, tried until it is or the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds} s; last value: {value!r}")
        time.sleep(0.1)
