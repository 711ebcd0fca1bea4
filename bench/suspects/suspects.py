"""The suspects: processes beside publishing, each of which goes on or is stopped."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable
from typing import NamedTuple

from bench.load import Fetch
from bench.session import Stage
from bench.suspects import threads
from bench.suspects.threads import Spent
from bench.workloads.isolation import READER_NICE
from mainstem.pipeline.embedded.processes import take_leftovers

IDLE_IO = 3 << 13
"""The class of I/O that has what nobody else wants, as `ioprio_set` takes it."""
_USUAL_IO = 0
_IOPRIO_SET = 251
"""The system call's number on x86-64."""
_OF_A_THREAD = 1
START_SECONDS = 0.3
DATA = "{data}"
"""In a stand-in's arguments: the node's directory."""


class Suspect(NamedTuple):
    read: bool = False
    """The catch-up reader reads."""
    split: bool = False
    """The splitter works."""
    stand_in: tuple[str, ...] = ()
    """The arguments of `stand_ins`; none: nothing stands in."""
    splitter_apart: bool = False
    """The splitter has the load's core only."""
    node_apart: bool = False
    """The node has the other cores only."""
    io: int = _USUAL_IO
    """The splitter's class of I/O."""


SUSPECTS = {
    "nothing": Suspect(),
    "reader": Suspect(read=True),
    "splitter": Suspect(split=True),
    "everything": Suspect(read=True, split=True),
    "burn a core": Suspect(stand_in=("burn",)),
    "write 50 MB/s": Suspect(stand_in=("write", DATA, "50")),
    "read 50 MB/s": Suspect(stand_in=("read", DATA, "50")),
    "splitter, idle I/O": Suspect(split=True, io=IDLE_IO),
    "splitter on load's core": Suspect(split=True, splitter_apart=True),
    "node apart, nothing": Suspect(node_apart=True),
    "node apart, reader": Suspect(node_apart=True, read=True),
    "node apart, splitter": Suspect(node_apart=True, split=True),
    "node apart, everything": Suspect(node_apart=True, read=True, split=True),
    "both apart, splitter": Suspect(split=True, splitter_apart=True, node_apart=True),
}


class Sides:
    """The processes beside the node. `end` must be called."""

    def __init__(self, stage: Stage, reader: Fetch) -> None:
        self._stage = stage
        self._reader = reader
        self._reading = stage.begin(reader, nice=READER_NICE, timed=False)
        self._stand_ins: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}
        self._held = Suspect()

    def have(self, suspect: Suspect) -> None:
        """Stop all processes where they are but those of this suspect, which go on."""
        stage = self._stage
        if suspect.read and self._reading.process.poll() is not None:  # it has read everything
            stage.finish(self._reading)
            stage.node.forget_past()
            self._reading = stage.begin(self._reader, nice=READER_NICE, timed=False)
        stage.node.tree.signal_descendants(signal.SIGCONT if suspect.split else signal.SIGSTOP)
        cpus = stage.bench.cpus
        if suspect.split:
            for thread in _threads_of(self._splitter()):
                _hold(thread, cpus.load if suspect.splitter_apart else cpus.both, suspect.io)
        for thread in _threads_of(stage.node.tree.roots):
            _hold(thread, cpus.broker if suspect.node_apart else cpus.both)
        if self._reading.process.poll() is None:
            self._reading.process.send_signal(signal.SIGCONT if suspect.read else signal.SIGSTOP)
        for arguments, process in self._stand_ins.items():
            process.send_signal(signal.SIGCONT if arguments == suspect.stand_in else signal.SIGSTOP)
        if suspect.stand_in and suspect.stand_in not in self._stand_ins:
            self._stand_ins[suspect.stand_in] = self._begin(suspect.stand_in)
        self._held = suspect

    def spent(self) -> Spent:
        """By the stand-in or the splitter."""
        if self._held.stand_in:
            return threads.of_processes([self._stand_ins[self._held.stand_in].pid])
        return threads.of_processes(self._splitter()) if self._held.split else threads.NOTHING

    def end(self) -> None:
        """End the stand-ins, and have all others go on, so that they can be ended."""
        for process in self._stand_ins.values():
            process.kill()
            process.wait()
        self._stage.node.tree.signal_descendants(signal.SIGCONT)
        if self._reading.process.poll() is None:
            self._reading.process.send_signal(signal.SIGCONT)

    def _begin(self, arguments: Iterable[str]) -> subprocess.Popen[bytes]:
        directory = str(self._stage.node.setup.directory)
        words = [word.replace(DATA, directory) for word in arguments]
        process = subprocess.Popen([sys.executable, "-m", "bench.suspects.stand_ins", *words], start_new_session=True)
        take_leftovers(process.pid)
        time.sleep(START_SECONDS)
        return process

    def _splitter(self) -> list[int]:
        tree = self._stage.node.tree
        return [pid for pid in tree.pids() if pid not in tree.roots]


def _threads_of(pids: Iterable[int]) -> list[int]:
    found: list[int] = []
    for pid in pids:
        try:
            found += map(int, os.listdir(f"/proc/{pid}/task"))
        except FileNotFoundError:
            continue  # it has just ended
    return found


def _hold(thread: int, cores: Collection[int], io: int | None = None) -> None:
    try:
        os.sched_setaffinity(thread, cores)
    except ProcessLookupError:
        return  # it has just ended
    if io is not None:
        ctypes.CDLL(None).syscall(_IOPRIO_SET, _OF_A_THREAD, thread, io)
