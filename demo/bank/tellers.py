"""The tellers of the bank, as processes that are killed and replaced."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter


class Tellers:
    """Some tellers at work, each under a name that the next one in its place gets as well."""

    def __init__(self, bootstrap: str, count: int, seed: int) -> None:
        self._bootstrap = bootstrap
        self._choice = random.Random(seed)
        self._names = [f"teller-{number}" for number in range(1, count + 1)]
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.ended: Counter[str] = Counter()
        """How tellers ended: "killed", or the last line that one wrote."""

    def keep_at_work(self) -> None:
        """Start one in the place of each that is not there."""
        for name in self._names:
            process = self._processes.get(name)
            if process is not None and process.poll() is None:
                continue
            if process is not None and process.returncode > 0:
                assert process.stderr is not None
                self.ended[process.stderr.read().strip().rpartition("\n")[2]] += 1
            command = [sys.executable, "-m", "demo.bank.teller", self._bootstrap, name, str(self._choice.random())]
            self._processes[name] = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def kill_one(self) -> None:
        """SIGKILL: in the middle of whatever it does."""
        process = self._processes[self._choice.choice(self._names)]
        if process.poll() is None:
            process.kill()
            process.wait()
            self.ended["killed"] += 1

    def end(self) -> None:
        """Make sure that nothing is left running."""
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
