"""Stands in for Docker Compose, by which a suite stops and starts single nodes: `docker compose stop kafka-2`.

The suite finds a program of that name first on its PATH. It hands the words to this process, which has the nodes. These
print to one file for all of them, which `docker compose logs kafka-2` shows whole.
"""

from __future__ import annotations

import contextlib
import os
import socketserver
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from bench.systems.system import OUTPUT, Node

_PROGRAM = """#!{python}
import socket, sys

with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    asked.sendall(" ".join(sys.argv[1:]).encode() + b"\\n")
    code, _, text = asked.makefile().read().partition("\\n")
print(text, end="")
sys.exit(int(code))
"""


class Compose:
    """Answers while it is entered. `path` is for the suite's PATH."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="compose-")
        directory = Path(self._directory.name)
        program, address = directory / "docker", str(directory / "socket")
        program.write_text(_PROGRAM.format(python=sys.executable, address=address))
        program.chmod(0o755)
        self.path = f"{directory}{os.pathsep}{os.environ.get('PATH', '')}"
        self._server = _Server(address, self._node)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._directory.cleanup()


class Answer(NamedTuple):
    code: int
    """Of the program's exit."""
    text: str


def answer(words: list[str], node: Node) -> Answer:
    """Carries out what the words ask for. Nodes are numbered from 1."""
    by_name = {f"kafka-{number}": address for number, address in enumerate(node.addresses, 1)}
    match words:
        case ["compose", "stop", name] if name in by_name:
            node.stop_one(by_name[name])
        case ["compose", "start", name] if name in by_name:
            node.start_one(by_name[name])
        case ["compose", "logs", *_, name] if name in by_name:
            return Answer(0, (node.setup.directory / OUTPUT).read_text(errors="replace"))
        case _:
            return Answer(1, f"`docker {' '.join(words)}` is not among what stands in for it here: "
                             "compose stop, start or logs of kafka-NUMBER\n")  # fmt: skip
    return Answer(0, "")


class _Server(socketserver.UnixStreamServer):
    def __init__(self, address: str, node: Node) -> None:
        super().__init__(address, _Request)
        self.node = node


class _Request(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        words = self.rfile.readline().decode().split()
        code, text = answer(words, self.server.node)
        with contextlib.suppress(BrokenPipeError):  # the suite was ended meanwhile
            self.wfile.write(f"{code}\n{text}".encode())
