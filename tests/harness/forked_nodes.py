"""Nodes in processes of their own that begin with everything imported.

To import what a node consists of takes more processor time than all else that it does before it listens, and the suite
starts hundreds. So each worker has one process that imports it once and forks for every node: from there on a node is
what `mainstem serve` makes of its arguments and variables, with a process id, signals and memory of its own.
Nodes of `mainstem dev`, in network namespaces, of older versions and with a planted bug start anew.

Run as a module, this file is the process that forks: it reads from a socket what to run, answers with the process id,
and tells the exit status when that process has ended. When the socket is closed, it kills what still runs.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

MESSAGE_BYTES_MAX = 1 << 20
ROOT = Path(__file__).parents[2]
OF_A_NODE = (
    "mainstem.cli.main",
    "mainstem.cli.serve",
    "mainstem.node.config_sources",
    "mainstem.node.node",
    "mainstem.process.event_loop",
    "mainstem.process.free_memory",
    "uvloop",
)


class ForkedNode:
    """The part of `subprocess.Popen` that `Serving` needs, for a process that another one has forked."""

    def __init__(self, pid: int, stdout: io.TextIOWrapper, stderr: io.TextIOWrapper) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None
        self._ended = threading.Event()

    def has_ended(self, status: int) -> None:
        """`status`: as `os.waitpid` has it."""
        self.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, minus the number of the signal that ended it. Raises TimeoutExpired."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"node {self.pid}", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class NodeForks:
    """The process that forks, as tests ask it."""

    def __init__(self, source: Path) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.harness.forked_nodes", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "OPENBLAS_NUM_THREADS": "1"},
            )
        self._asking = threading.Lock()
        self._answered = threading.Condition()
        self._answers: list[int] = []
        self._statuses: dict[int, int] = {}
        """Of those that ended before whoever asked for them knew their ids."""
        self._nodes: dict[int, ForkedNode] = {}
        self._over = False
        threading.Thread(target=self._follow, daemon=True).start()

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> ForkedNode:
        """Run `mainstem` with these arguments and variables."""
        outputs = [os.pipe(), os.pipe()]
        try:
            asked = json.dumps({"arguments": list(arguments), "environment": dict(environment), "cwd": os.getcwd()})
            with self._asking:
                socket.send_fds(self._socket, [asked.encode()], [outputs[0][1], outputs[1][1]])
                with self._answered:
                    self._answered.wait_for(lambda: self._answers or self._over)
                    assert self._answers, "the process that forks nodes has ended"
                    pid = self._answers.pop()
                    node = ForkedNode(pid, *(io.TextIOWrapper(io.FileIO(reading)) for reading, _ in outputs))
                    if pid in self._statuses:
                        node.has_ended(self._statuses.pop(pid))
                    else:
                        self._nodes[pid] = node
        finally:
            for _, writing in outputs:
                os.close(writing)
        return node

    def _follow(self) -> None:
        while told := self._socket.recv(MESSAGE_BYTES_MAX):
            message: dict[str, int] = json.loads(told)
            with self._answered:
                if "status" not in message:
                    self._answers.append(message["pid"])
                    self._answered.notify_all()
                elif (node := self._nodes.pop(message["pid"], None)) is not None:
                    node.has_ended(message["status"])
                else:
                    self._statuses[message["pid"]] = message["status"]
        with self._answered:
            self._over = True
            self._answered.notify_all()


def fork_for_all(asked: socket.socket) -> list[str] | None:
    """Fork for everything that is asked. Returns the arguments in each process that was forked; None when the socket
    is closed."""
    waiting = selectors.DefaultSelector()
    waiting.register(asked, selectors.EVENT_READ)
    running: dict[int, int] = {}  # by descriptor of the process
    while True:
        for key, _ in waiting.select():
            if (pid := running.pop(key.fd, None)) is not None:
                waiting.unregister(key.fd)
                os.close(key.fd)
                with contextlib.suppress(OSError):
                    asked.send(json.dumps({"pid": pid, "status": os.waitpid(pid, 0)[1]}).encode())
                continue
            message, descriptors, _, _ = socket.recv_fds(asked, MESSAGE_BYTES_MAX, 2)
            if not message:
                for pid in running.values():
                    os.kill(pid, signal.SIGKILL)
                return None
            pid = os.fork()
            if pid == 0:
                waiting.close()
                asked.close()
                for descriptor in running:
                    os.close(descriptor)
                return _become(json.loads(message), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            running[descriptor := os.pidfd_open(pid)] = pid
            waiting.register(descriptor, selectors.EVENT_READ)
            asked.send(json.dumps({"pid": pid}).encode())


def _become(asked: dict[str, Any], descriptors: Sequence[int]) -> list[str]:
    """Take on what the process is to have: variables, directory, outputs. Returns its arguments."""
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["cwd"])
    for number, descriptor in enumerate(descriptors, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(number, "wb", closefd=False), encoding="utf-8", write_through=True)
        for number in (1, 2)
    )
    arguments: list[str] = asked["arguments"]
    sys.argv = ["mainstem", *arguments]
    return arguments


def main() -> NoReturn:
    for name in OF_A_NODE:
        with contextlib.suppress(ImportError):  # uvloop, where there is none
            __import__(name)
    from mainstem.cli.main import run

    gc.collect()
    gc.freeze()
    arguments = fork_for_all(socket.socket(fileno=int(sys.argv[1])))
    sys.exit(0 if arguments is None else run(arguments))


if __name__ == "__main__":
    main()
