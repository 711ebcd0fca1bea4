"""Calls in threads of their own: each is made, no more at once than may be, and none keeps a process alive."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import wait

import pytest
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.storage.object_stores.call_threads import CallThreads

STUCK = """
import threading
from mainstem.storage.object_stores.call_threads import CallThreads

begun = threading.Event()

def call():
    begun.set()
    threading.Event().wait()

CallThreads(2, "stuck").submit(call)
begun.wait()
print("the end", flush=True)
"""


def test_calls_are_made_and_answer_for_themselves() -> None:
    threads = CallThreads(3, "calls")
    numbers = [threads.submit(pow, number, 2) for number in range(100)]
    assert [one.result(PATIENCE_SECONDS) for one in numbers] == [number**2 for number in range(100)]
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(PATIENCE_SECONDS)
    assert threads.submit(lambda: "goes on").result(PATIENCE_SECONDS) == "goes on"


def test_no_more_are_under_way_than_there_are_threads_and_the_rest_wait() -> None:
    threads, go_on = CallThreads(2, "calls"), threading.Event()
    under_way = threading.Barrier(3)

    def call() -> str:
        under_way.wait(PATIENCE_SECONDS)
        go_on.wait(PATIENCE_SECONDS)
        return threading.current_thread().name

    both = [threads.submit(call) for _ in range(2)]
    under_way.wait(PATIENCE_SECONDS)
    third, fourth = threads.submit(lambda: "third"), threads.submit(lambda: "fourth")
    assert fourth.cancel(), "it has not begun"
    assert not third.done()
    go_on.set()
    wait([*both, third], PATIENCE_SECONDS)
    assert {one.result() for one in both} == {"calls-1", "calls-2"}
    assert third.result() == "third"


def test_threads_end_when_nobody_has_them_any_more() -> None:
    """A process that runs one task after the other has a store for each of them."""

    class Owner:
        def __init__(self) -> None:
            self.threads = CallThreads(2, "owned")

        def call(self) -> threading.Thread:
            return threading.current_thread()

    owner = Owner()
    thread = owner.threads.submit(owner.call).result(PATIENCE_SECONDS)
    assert owner.threads.submit(owner.call).result(PATIENCE_SECONDS) is not None
    assert thread.is_alive()
    del owner
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_a_call_that_never_returns_keeps_no_process_alive() -> None:
    ended = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (ended.returncode, ended.stdout.strip()) == (0, "the end"), ended.stderr
