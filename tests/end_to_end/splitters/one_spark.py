"""Splitters that share a process, and with it the JVM whose start is most of what a splitter takes."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys

from tests.end_to_end.processes import SOURCE, Commands, descendants, end
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

from mainstem.pipeline.errors import EXIT_DONE


class OneSpark:
    """Runs splitters one after the other, each for a node and with options of its own. It starts with the first and
    with the first after it was killed, and ends with the `Commands` that own its process."""

    def __init__(self, commands: Commands, name: str) -> None:
        self._commands = commands
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = False
        """Whether nobody has heard yet how the splitter ended that was begun last."""

    def run(self, node: Serving, *options: str) -> None:
        """A splitter, to its good end."""
        self.begin(node, *options)
        assert self.ended() == EXIT_DONE, self.log

    def begin(self, node: Serving, *options: str) -> None:
        """A splitter that nobody waits for."""
        self.begin_at(f"http://{node.http}", *options)

    def begin_at(self, url: str, *options: str) -> None:
        """One for whoever answers at this address as a node. The remains of a failed test are ended first."""
        if self._begun:
            self.kill()
        if self._process is None:
            program = [sys.executable, "-m", "tests.end_to_end.splitters.splitter_runs"]
            self._process = self._commands.asked(self._name, program, {"PYTHONPATH": f"{SOURCE}:{SOURCE.parent}"})
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join((url, *options)).encode() + b"\n")
        self._process.stdin.flush()
        self._begun = True

    @property
    def runs(self) -> bool:
        """Whether the splitter that was begun has not ended."""
        return not self._answered(0)

    def kill(self) -> None:
        """SIGKILL to the driver and to all that it has started."""
        assert self._process is not None
        family = [*descendants(self._process.pid)]
        self._process.kill()
        end(family)
        self._process.wait()
        self._process, self._begun = None, False

    @property
    def log(self) -> str:
        return self._commands.log(self._name)

    def ended(self) -> int:
        """Wait for the end of the splitter that was begun; its exit code."""
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._answered(PATIENCE_SECONDS), f"no end of it within {PATIENCE_SECONDS} s: {self.log}"
        line = os.read(self._process.stdout.fileno(), 100)
        assert line.endswith(b"\n"), f"it has died: {self.log}"
        self._begun = False
        return int(line)

    def _answered(self, seconds: float) -> bool:
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            return bool(selector.select(seconds))
