"""CPU time, memory and page cache are counted as the kernel has them; tuning is put back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench.errors import BenchError
from bench.machine import alone, share_cores
from bench.process_tree import ProcessTree, cpu_of
from bench.scale.reader_costs import BYTES, Look, between, cost_of
from bench.store.new_files import one_pass, written
from bench.window import Window
from tests.harness.patience import PATIENCE_SECONDS

from bench import page_cache

MEBIBYTE = 1 << 20
SPUN_SECONDS = 0.003
"""Less than /proc tells."""
BURN_AND_SAY = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN_AND_SAY!r}])"


def test_a_tree_counts_its_descendants() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    tree = ProcessTree(parent.pid)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "done\n"
        assert len(tree.pids()) == 2
        assert tree.cpu_seconds() >= 0.25  # the kernel counts in hundredths
        memory = tree.memory()
        assert 0 < memory.proportional <= memory.resident
    finally:
        tree.kill()
        parent.communicate()
    assert tree.pids() == []
    assert tree.cpu_seconds() == 0.0


def test_the_time_of_a_process_is_not_cut_to_hundredths() -> None:
    def spun() -> float:
        """The time of a while of spinning, as the bench counts it."""
        before, begun = cpu_of(os.getpid()), time.process_time()
        while time.process_time() - begun < SPUN_SECONDS:
            pass
        return cpu_of(os.getpid()) - before

    for _ in range(3):
        begun = time.process_time()
        told = spun()
        assert SPUN_SECONDS <= told <= time.process_time() - begun


def test_descendants_are_signalled_and_the_root_is_not() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    tree = ProcessTree(parent.pid)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "done\n"
        (child,) = [pid for pid in tree.pids() if pid != parent.pid]
        for number, stopped in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
            tree.signal_descendants(number)
            until = time.monotonic() + PATIENCE_SECONDS
            while (state_of(child) == "T") != stopped and time.monotonic() < until:
                time.sleep(0.01)
            assert (state_of(child) == "T") == stopped
            assert state_of(parent.pid) != "T"
    finally:
        tree.kill()
        parent.communicate()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_pinning_reaches_threads_and_children() -> None:
    threaded = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    parent = subprocess.Popen(
        [sys.executable, "-c", threaded + PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    tree = ProcessTree(parent.pid)
    core = min(os.sched_getaffinity(0))
    try:
        assert parent.stdout is not None
        parent.stdout.readline()
        tree.pin({core})
        threads = [int(name) for pid in tree.pids() for name in os.listdir(f"/proc/{pid}/task")]
        assert len(threads) == 3
        assert all(os.sched_getaffinity(thread) == {core} for thread in threads)
    finally:
        tree.kill()
        parent.communicate()


def test_a_window_counts_only_what_was_spent_in_it() -> None:
    node = subprocess.Popen(
        [sys.executable, "-c", f"input()\n{BURN_AND_SAY}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert node.stdin is not None
        assert node.stdout is not None
        window = Window(ProcessTree(node.pid), share_cores())
        node.stdin.write("\n")
        node.stdin.flush()
        assert node.stdout.readline() == "done\n"
        spent = window.node_cpu_seconds()
        assert spent >= 0.2
        assert Window(ProcessTree(node.pid), share_cores()).node_cpu_seconds() < spent
    finally:
        ProcessTree(node.pid).kill()
        node.communicate()


def test_what_a_load_spent_before_the_window_is_not_the_windows() -> None:
    load = subprocess.Popen(
        [sys.executable, "-c", BURN_AND_SAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert load.stdout is not None
        assert load.stdout.readline() == "done\n"
        window = Window(ProcessTree(os.getpid()), share_cores(), ProcessTree(load.pid))
    finally:
        load.communicate("\n")
    assert window.bench_cpu_seconds() < 0.25  # it had burnt 0.3


def test_cached_bytes_are_those_of_all_files_below(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "one").write_bytes(os.urandom(MEBIBYTE))
    (tmp_path / "deep" / "two").write_bytes(os.urandom(2 * MEBIBYTE))
    (tmp_path / "empty").write_bytes(b"")
    assert page_cache.resident_bytes(tmp_path) == 3 * MEBIBYTE


def test_holes_are_not_counted(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(64 * MEBIBYTE)
    assert page_cache.resident_bytes(tmp_path) == 0


def test_evicting_keeps_the_content(tmp_path: Path) -> None:
    content = os.urandom(MEBIBYTE)
    (tmp_path / "one").write_bytes(content)
    page_cache.evict(tmp_path)
    assert (tmp_path / "one").read_bytes() == content


def test_evicting_spares_what_it_is_told(tmp_path: Path) -> None:
    for name in ("one.wal", "two.free"):
        (tmp_path / name).write_bytes(os.urandom(MEBIBYTE))
    page_cache.evict(tmp_path, (".wal", ".free"))
    assert page_cache.resident_bytes(tmp_path) == 2 * MEBIBYTE


def test_two_benches_do_not_run_at_once(tmp_path: Path) -> None:
    told: list[str] = []
    lock = tmp_path / "lock"
    with (
        alone(lock, told.append),
        pytest.raises(BenchError, match="another"),
        alone(lock, told.append, seconds_max=0.0),
    ):
        pytest.fail("the lock was given twice")
    with alone(lock, told.append):
        pass
    assert told == ["waiting for another bench on this machine to end"]


def test_a_pass_of_new_files_has_a_figure_per_piece_and_leaves_nothing(tmp_path: Path) -> None:
    figures = one_pass(tmp_path, 5, piece=2)
    assert len(figures) == 3
    assert all(figure >= 0 for figure in figures)
    assert list(tmp_path.iterdir()) == []


def test_the_figure_of_a_new_file_is_of_all_it_was_given(tmp_path: Path) -> None:
    written(tmp_path / "one", 3)
    assert (tmp_path / "one").stat().st_size == 3 * MEBIBYTE
    with pytest.raises(FileExistsError):  # an old file's pages would be there already
        written(tmp_path / "one", 1)


def test_readers_cost_what_is_more_than_nobody_per_byte_of_the_same_span() -> None:
    begun = Look(10.0, 5.0, {BYTES: 1e6})
    idle = between(begun, Look(14.0, 5.4, {BYTES: 1e6}))
    busy = between(begun, Look(12.0, 6.2, {BYTES: 5e6}))
    assert idle.cpu == pytest.approx(0.1)
    assert busy.counters[BYTES] == pytest.approx(2e6)
    assert cost_of(busy, idle) == pytest.approx(250)
