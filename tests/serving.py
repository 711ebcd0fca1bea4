"""A real node in a process of its own, for tests that need sockets, disks and signals.

`Serving` starts `mainstem serve` on free ports of 127.0.0.1, keeps its output for failure messages, and stops
only the process it started. Directories outlive the process, so that a test can kill and start again.
"""

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
SOURCE = Path(__file__).parents[1] / "src"


class Serving:
    """One node on two directories. `start` and `kill` or `stop` may alternate."""

    def __init__(self, root: Path, *settings: str) -> None:
        self.write_dir = root / "write"
        self.store_dir = root / "store"
        self.settings = settings
        self.source = SOURCE
        """Of which version the node is, from its next start on."""
        self.kafka = self.http = self.rpc = ""
        self._process: subprocess.Popen[str] | None = None
        self._lines: list[str] = []
        self._threads: list[threading.Thread] = []

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def output(self) -> str:
        return "\n".join(self._lines[-200:])

    def output_lines(self, text: str) -> list[str]:
        """Every line so far that contains `text`."""
        return [line for line in self._lines if text in line]

    def start(self) -> Serving:
        command = [
            sys.executable,
            "-m",
            "mainstem.cli.main",
            "serve",
            "--write-dir",
            str(self.write_dir),
            "--store-dir",
            str(self.store_dir),
            "--listen",
            self.kafka or "127.0.0.1:0",
            "--http",
            self.http or "127.0.0.1:0",
            "--rpc",
            self.rpc or "127.0.0.1:0",
        ]
        for setting in self.settings:
            command += ["--set", setting]
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(self.source), "PYTHONUNBUFFERED": "1"},
        )
        ready: queue.Queue[str] = queue.Queue()
        self._threads = [
            threading.Thread(target=self._follow, args=(stream, ready), daemon=True)
            for stream in (self._process.stdout, self._process.stderr)
        ]
        for thread in self._threads:
            thread.start()
        deadline = time.monotonic() + READY_SECONDS_MAX
        while True:
            try:
                line = ready.get(timeout=0.1)
                break
            except queue.Empty:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.kill()
                    raise AssertionError(f"the node did not start:\n{self.output}") from None
        addresses = dict(word.split("=", 1) for word in line.split() if "=" in word)
        self.kafka, self.http, self.rpc = addresses["kafka"], addresses["http"], addresses["rpc"]
        return self

    def _follow(self, stream: Any, ready: queue.Queue[str]) -> None:
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

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        assert process is not None
        if process.poll() is None:
            process.send_signal(number)
        try:
            code = process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the node did not stop:\n{self.output}") from None
        for thread in self._threads:
            thread.join(5)
        return code

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.stop()

    def get(self, path: str) -> Any:
        """A JSON answer of the node's HTTP port."""
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=30) as answer:
            return json.loads(answer.read())

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.split("{")[0].split(" ")[0] == name and all(label in line for label in wanted)
        )


def eventually(check: Callable[[], Any], *, seconds: float = 60.0, what: str = "the condition") -> Any:
    """The first true value of `check`, tried until it is or the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds} s; last value: {value!r}")
        time.sleep(0.1)
