"""One stream of lines of several processes, each line with the node that wrote it.

A line of text begins with `node N | `. An object of JSON gets the key `node`, and in a log of JSON a line that is no
object, as of a traceback, becomes one.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import IO

LINE_BYTES_MAX = 64 * 1024
"""A longer line is told in parts, so that no process makes the supervisor hold more than this."""


class LogStream:
    """Takes lines from several threads, and writes them one at a time."""

    def __init__(self, write: Callable[[bytes], object], form: str) -> None:
        """`form` is 'text' or 'json'."""
        self._write = write
        self._as_json = form == "json"
        self._lock = threading.Lock()

    def carry(self, node_id: int, lines: IO[bytes], heard: Callable[[str], object]) -> None:
        """Write all lines as those of a node, until there are no more; `heard` gets each that is not blank. Lines that
        cannot be written are dropped: the process that wrote them must not wait for ever."""
        while line := lines.readline(LINE_BYTES_MAX):
            line = line.rstrip(b"\r\n")
            if line.strip():
                heard(line.decode(errors="replace"))
            told = self._json(node_id, line) if self._as_json else b"node %d | %s\n" % (node_id, line)
            try:
                with self._lock:
                    self._write(told)
            except OSError:
                continue

    def _json(self, node_id: int, line: bytes) -> bytes:
        if line.startswith(b"{") and line.endswith(b"}") and line != b"{}":
            return b'{"node": %d, %s\n' % (node_id, line[1:])
        entry = {
            "node": node_id, "time": int(time.time() * 1000), "level": "error", "logger": "stderr",
            "message": line.decode(errors="replace"),
        }  # fmt: skip
        return json.dumps(entry, ensure_ascii=False).encode() + b"\n"
