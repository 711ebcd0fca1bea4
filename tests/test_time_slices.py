"""Slices of threads: set, inherited, and nothing else is changed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from mainstem.pipeline.embedded.processes import take_leftovers
from mainstem.time_slices import LONG_SECONDS, SHORT_SECONDS, USUAL_SECONDS, set_slice

TELLS = textwrap.dedent(
    """
    import ctypes, os, platform, struct, threading
    from mainstem.time_slices import LONG_SECONDS, SHORT_SECONDS, USUAL_SECONDS, set_slice

    GETATTR = {"x86_64": 315, "aarch64": 275, "riscv64": 275}[platform.machine()]

    def slice_of(thread_id=0):
        room = ctypes.create_string_buffer(48)
        assert not ctypes.CDLL(None).syscall(ctypes.c_long(GETATTR), thread_id, room, 48, 0)
        return struct.unpack("IIQiIQQQ", room.raw)[5] / 1e9

    def in_thread(ask):
        found = []
        thread = threading.Thread(target=lambda: found.append(ask()))
        thread.start()
        thread.join()
        return found[0]
    """
)


def told(lines: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", TELLS + textwrap.dedent(lines)], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.fixture(autouse=True)
def with_slices() -> None:
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if sys.platform != "linux" or release < (6, 12):
        pytest.skip("slices of threads came with Linux 6.12")


def test_a_thread_gets_the_slice_and_hands_it_to_those_it_starts() -> None:
    mine, threads, usual_again, less_than_usual = told(
        """
        assert set_slice(USUAL_SECONDS)  # other tests of this process may have had a node's
        usual = slice_of()
        assert set_slice(SHORT_SECONDS)
        print(slice_of(), in_thread(slice_of))
        assert set_slice(USUAL_SECONDS)
        print(slice_of() == usual, SHORT_SECONDS < usual < LONG_SECONDS)
        """
    )
    assert float(mine) == float(threads) == SHORT_SECONDS
    assert usual_again == less_than_usual == "True"


def test_another_process_keeps_its_policy_and_its_nice_value() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        os.setpriority(os.PRIO_PROCESS, other.pid, 15)
        os.sched_setscheduler(other.pid, os.SCHED_BATCH, os.sched_param(0))
        assert set_slice(LONG_SECONDS, other.pid)
        assert os.sched_getscheduler(other.pid) == os.SCHED_BATCH
        assert os.getpriority(os.PRIO_PROCESS, other.pid) == 15
        assert told(f"print(slice_of({other.pid}))") == [str(LONG_SECONDS)]
        other.communicate(b"\n")


def test_a_splitter_has_long_slices_and_usual_ones_where_it_has_a_full_share() -> None:
    set_slice(SHORT_SECONDS)
    try:
        other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    finally:
        set_slice(USUAL_SECONDS)
    with other:
        assert told(f"print(slice_of({other.pid}))") == [str(SHORT_SECONDS)], "that of the thread that started it"
        take_leftovers(other.pid, 0)
        assert told(f"print(SHORT_SECONDS < slice_of({other.pid}) < LONG_SECONDS)") == ["True"]
        take_leftovers(other.pid)
        assert told(f"print(slice_of({other.pid}))") == [str(LONG_SECONDS)]
        assert os.sched_getscheduler(other.pid) == os.SCHED_BATCH
        other.communicate(b"\n")


def test_a_policy_that_somebody_chose_stays() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        os.sched_setscheduler(other.pid, os.SCHED_IDLE, os.sched_param(0))
        try:
            assert not set_slice(SHORT_SECONDS, other.pid)
            assert os.sched_getscheduler(other.pid) == os.SCHED_IDLE
        finally:
            os.sched_setscheduler(other.pid, os.SCHED_OTHER, os.sched_param(0))  # or a busy machine has no time for it
        other.communicate(b"\n")


def test_a_thread_that_has_ended_is_passed_over() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not set_slice(USUAL_SECONDS, ended.pid)
