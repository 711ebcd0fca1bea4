"""A node's process whose output goes into the supervisor's streams."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import IO

from mainstem.cli.processes.log_stream import LogStream
from mainstem.cli.processes.node_process import NodeProcess

READY = b"ready "
"""The first word of what `serve` writes to stdout when clients are accepted."""

LAST_WORDS_SECONDS_MAX = 1.0
"""How long the rest of a dead process's output is awaited: a process that it began itself may hold the pipe open."""


class SupervisedProcess(NodeProcess):
    """Is `Supervised`. Two threads read what the process writes."""

    def __init__(
        self, node_id: int, arguments: Sequence[str], log: LogStream, announce: Callable[[bytes], object]
    ) -> None:
        """`announce` gets the lines that it writes to stdout."""
        super().__init__(node_id, arguments)
        self.last_words = ""
        self._log = log
        self._announce = announce
        self._ready = threading.Event()
        self._readers: list[threading.Thread] = []

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    def begin(self) -> None:
        """Start the process. Raises OSError."""
        self._ready = threading.Event()
        self.last_words = ""
        process = self.start(subprocess.PIPE, subprocess.PIPE)
        assert process.stdout is not None, "it is a pipe"
        assert process.stderr is not None, "it is a pipe"
        self._readers = [
            threading.Thread(target=self._read_stdout, args=(process.stdout, self._ready), daemon=True),
            threading.Thread(target=self._read_log, args=(process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def ended(self) -> int | None:
        code = super().ended()
        if code is not None:
            for reader in self._readers:
                reader.join(LAST_WORDS_SECONDS_MAX)
        return code

    def _read_stdout(self, lines: IO[bytes], ready: threading.Event) -> None:
        with lines:
            for line in lines:
                self._announce(line)
                if line.startswith(READY):
                    ready.set()

    def _read_log(self, lines: IO[bytes]) -> None:
        with lines:
            self._log.carry(self.node_id, lines, self._hear)

    def _hear(self, line: str) -> None:
        self.last_words = line
