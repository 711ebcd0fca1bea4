"""The process of a node, as commands that run several of them start, watch and stop it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO

Output = int | IO[bytes]


class NodeProcess:
    """A process that runs `mainstem serve`, while there is one."""

    def __init__(self, node_id: int, arguments: Sequence[str]) -> None:
        """`arguments` are those of `serve`."""
        self.node_id = node_id
        self.process: subprocess.Popen[bytes] | None = None
        self._arguments = arguments

    def start(self, stdout: Output, stderr: Output) -> subprocess.Popen[bytes]:
        """Raises OSError."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mainstem.cli.main", "serve", *self._arguments],
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            start_new_session=True,  # Ctrl-C is ours to hand on
        )  # fmt: skip
        return self.process

    def ended(self) -> int | None:
        """The code with which the process ended, once, negative for a signal; None while it runs or when it was told
        already."""
        if self.process is None or (code := self.process.poll()) is None:
            return None
        self.process = None
        return code

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()

    def wait_stopped(self, deadline: float) -> int:
        """The code with which the process ended; at `deadline`, by the monotonic clock, it is killed. 0: there was
        none."""
        if self.process is None:
            return 0
        try:
            code = self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process = None
        return code


def how_it_ended(code: int) -> str:
    """In words, the code that `NodeProcess.ended` told."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
