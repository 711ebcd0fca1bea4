"""The bench of suspects: one of the processes beside publishing goes on while the others are stopped, what each spends
is counted, and the table has these figures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench.load import Result
from bench.machine import share_cores
from bench.process_tree import ProcessTree
from bench.suspects import threads
from bench.suspects.__main__ import HEADINGS, Syncs, Window, _row
from bench.suspects.suspects import SUSPECTS, Sides, Suspect
from bench.suspects.threads import Spent
from tests.bench.load_result import load_result
from tests.harness.serving import eventually

SLEEPS = "import time; time.sleep(600)"
BEGINS_ANOTHER = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPS!r}])"


class SmallStage:
    """A node with a splitter, both of which sleep, and readers that do."""

    def __init__(self, directory: Path) -> None:
        self.started: list[subprocess.Popen[bytes]] = []
        self.node = SimpleNamespace(
            tree=ProcessTree(self._start(BEGINS_ANOTHER).pid),
            setup=SimpleNamespace(directory=directory),
            forget_past=lambda: None,
        )
        self.bench = SimpleNamespace(cpus=share_cores())
        self.reader: subprocess.Popen[bytes]

    def begin(self, _load: object, *, nice: int, timed: bool) -> Any:
        self.reader = self._start(SLEEPS)
        return SimpleNamespace(process=self.reader)

    def finish(self, running: Any) -> None:
        running.process.wait()

    @property
    def splitter(self) -> int:
        tree = self.node.tree
        pids: list[int] = eventually(lambda: [pid for pid in tree.pids() if pid not in tree.roots], what="a splitter")
        return pids[0]

    def _start(self, code: str) -> subprocess.Popen[bytes]:
        self.started.append(subprocess.Popen([sys.executable, "-c", code]))
        return self.started[-1]


@contextmanager
def sides_on(directory: Path) -> Iterator[tuple[SmallStage, Sides]]:
    stage: Any = SmallStage(directory)
    splitter = stage.splitter
    reader: Any = None
    sides = Sides(stage, reader)
    try:
        yield stage, sides
    finally:
        sides.end()
        os.kill(splitter, 9)
        for process in stage.started:
            process.kill()
            process.wait()


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def stand_ins() -> list[int]:
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in ProcessTree(os.getpid()).pids()}
    return [pid for pid, command in commands.items() if b"bench.suspects.stand_ins" in command]


def stands(stage: SmallStage, *, read: bool, split: bool) -> bool:
    return is_stopped(stage.reader.pid) is not read and is_stopped(stage.splitter) is not split


@pytest.mark.parametrize("name", ["everything", "nothing", "reader", "splitter", "splitter on load's core"])
def test_all_are_stopped_but_the_suspect(name: str, tmp_path: Path) -> None:
    suspect = SUSPECTS[name]
    with sides_on(tmp_path) as (stage, sides):
        for one in (Suspect(read=not suspect.read, split=not suspect.split), suspect):
            sides.have(one)
            eventually(partial(stands, stage, read=one.read, split=one.split), what=f"{one}")
        assert not is_stopped(stage.node.tree.roots[0]), "the node itself"
        if suspect.split:
            cpus = stage.bench.cpus
            wanted = cpus.load if suspect.splitter_apart else cpus.both
            assert os.sched_getaffinity(stage.splitter) == set(wanted)


def test_a_reader_that_has_read_everything_begins_anew(tmp_path: Path) -> None:
    with sides_on(tmp_path) as (stage, sides):
        first = stage.reader
        first.kill()
        first.wait()
        sides.have(SUSPECTS["reader"])
        assert stage.reader is not first
        assert stage.reader.poll() is None


def test_a_stand_in_burns_only_while_it_is_the_suspect(tmp_path: Path) -> None:
    with sides_on(tmp_path) as (_stage, sides):
        sides.have(SUSPECTS["burn a core"])
        before = sides.spent()
        eventually(lambda: sides.spent().ran > before.ran, what="a stand-in that burns")
        [stand_in] = stand_ins()
        sides.have(SUSPECTS["nothing"])
        assert sides.spent() == threads.NOTHING
        eventually(lambda: is_stopped(stand_in), what="a stand-in that stands still")
        sides.have(SUSPECTS["burn a core"])
        eventually(lambda: not is_stopped(stand_in), what="a stand-in that goes on")
        assert stand_ins() == [stand_in], "the same one"
    assert not stand_ins()


def test_what_a_process_has_spent_is_that_of_all_its_threads() -> None:
    loop, others = threads.loop_of(os.getpid()), threads.others_of(os.getpid())
    both = threads.of_processes([os.getpid()])
    assert loop.ran > 0
    assert loop.turns > 0
    assert both.ran >= loop.ran + others.ran
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert threads.of_processes([ended.pid]) == threads.NOTHING


def window(p99_us: float, max_us: float, bucket_ns: int, seconds: float, stolen_seconds: float = 0.0) -> Window:
    result: Result = load_result(seconds=seconds, size=100_000)
    result["latency_us"] = {**result["latency_us"], "p99": p99_us, "max": max_us}
    result["latency_buckets"] = [(bucket_ns, 100)]
    spent = Spent(0.5, 0.01, 20), Spent(0.25, 0.02, 1), Spent(1.0, 0.5, 1)
    return Window(result, seconds, stolen_seconds, *spent, Syncs(40, 0.2))


def test_a_row_has_the_figures_of_its_windows() -> None:
    windows = [window(2_000, 9_000, 1_000_000, 1.0), window(6_000, 5_000_000, 4_000_000, 1.0, 0.1)]
    cells = [cell.strip() for cell in _row("reader", windows).strip("| ").split("|")]
    assert len(HEADINGS) == len(cells)
    assert cells[:6] == ["reader", "2", "1.00", "4.00", "4.00", "50"]
    assert cells[6:9] == ["1", "1.00", "5.000"], "windows from which the host took nothing, and a sync"
    assert cells[9:13] == ["40", "0.50", "0.010", "500"], "syncs a second, and the event loop"
    assert cells[13:] == ["0.25", "0.020", "1.00", "0.50"], "other threads, and the suspect"


def test_a_row_has_no_latency_of_whole_windows_where_the_host_took_from_each() -> None:
    cells = [
        cell.strip() for cell in _row("reader", [window(2_000, 9_000, 1_000_000, 1.0, 0.1)]).strip("| ").split("|")
    ]
    assert cells[6:8] == ["0", "–"]
