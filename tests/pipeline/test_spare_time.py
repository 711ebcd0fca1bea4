"""The splitter is idle work while others leave it enough of the processor, and batch work while they do not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.shell_sessions import BURN, CORE, STARTS_ANOTHER, session

from mainstem.pipeline.embedded.processes import members, take_leftovers
from mainstem.pipeline.embedded.spare_time import (
    BATCH_SECONDS,
    FILES_AT_ONCE,
    LOOK_SECONDS,
    REST_SECONDS,
    STARVED_SECONDS,
    SpareTime,
    half_of,
    may_return,
)
from mainstem.pipeline.spark.session import SETTINGS

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not may_return(), reason="it needs Linux, and the right to come back"
)


def policies(session_id: int) -> list[int]:
    return sorted(os.sched_getscheduler(process) for process in members(session_id))


def look_until(spare: SpareTime, done: Callable[[], bool]) -> float:
    """Look again and again; the time of the last look."""
    now = time.monotonic()
    deadline = now + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < deadline, "the state that the test waits for did not come"
        time.sleep(0.05)
        spare.look(now := time.monotonic())
    return now


def test_all_of_a_session_is_idle_work_as_long_as_it_has_what_it_wants() -> None:
    with session(STARTS_ANOTHER) as pid:
        take_leftovers(pid)
        spare = SpareTime(pid, time.monotonic(), [CORE], starved_seconds=PATIENCE_SECONDS)
        look_until(spare, lambda: policies(pid) == [os.SCHED_IDLE] * 2)
        assert spare.idle
        assert policies(pid) == [os.SCHED_IDLE] * 2


SLEEPERS = f"for one in {' '.join(map(str, range(5 * FILES_AT_ONCE)))}; do sleep 60 & done; wait"


def test_a_look_takes_little_of_a_processor_at_a_time_and_the_next_ones_little_in_all() -> None:
    rests: list[float] = []
    with session(STARTS_ANOTHER) as pid, session(SLEEPERS) as others:
        take_leftovers(pid)
        look_until(
            SpareTime(pid, time.monotonic(), [CORE], starved_seconds=PATIENCE_SECONDS),
            lambda: policies(pid) == [os.SCHED_IDLE] * 2 and len(members(others)) > 5 * FILES_AT_ONCE,
        )
        spare = SpareTime(pid, time.monotonic(), [CORE], starved_seconds=PATIENCE_SECONDS, rest=rests.append)
        spare.look(time.monotonic())
        first = len(rests)
        spare.look(time.monotonic())
    assert set(rests) <= {REST_SECONDS}
    assert first >= 5
    assert len(rests) - first <= first - 3, "of other sessions only what is new is looked at"


def test_a_process_that_comes_later_is_idle_work_as_well() -> None:
    with session("sleep 0.2; ulimit -t 60; sh -c 'while :; do :; done' & while :; do :; done") as pid:
        take_leftovers(pid)
        spare = SpareTime(pid, time.monotonic(), [CORE], starved_seconds=PATIENCE_SECONDS)
        spare.look(time.monotonic())
        os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))  # and what it starts from now on
        look_until(spare, lambda: len(members(pid)) == 2 and policies(pid) == [os.SCHED_IDLE] * 2)


def test_who_wants_nothing_is_not_starved() -> None:
    with session(BURN) as pid:
        take_leftovers(pid)
        os.kill(pid, signal.SIGSTOP)
        spare = SpareTime(pid, time.monotonic(), [CORE], starved_seconds=PATIENCE_SECONDS)
        now = look_until(spare, lambda: is_stopped(pid))
        for number in range(1, 5):
            spare.look(now + number * PATIENCE_SECONDS)
            assert spare.idle
        assert policies(pid) == [os.SCHED_IDLE]


def is_stopped(process_id: int) -> bool:
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_who_gets_next_to_nothing_is_batch_work_for_a_while() -> None:
    with session(BURN) as other, session(BURN) as pid:
        take_leftovers(pid)
        os.setpriority(os.PRIO_PROCESS, other, 0)  # the tests may be nice
        begun = time.monotonic()
        spare = SpareTime(pid, begun, [CORE], starved_seconds=0.5)
        now = look_until(spare, lambda: not spare.idle)
        assert now - begun >= 0.5
        assert policies(pid) == [os.SCHED_BATCH]
        assert policies(other) == [os.SCHED_OTHER], "it is of another session"
        spare.look(now + BATCH_SECONDS - 1)
        assert policies(pid) == [os.SCHED_BATCH]
        spare.look(now + BATCH_SECONDS)
        assert policies(pid) == [os.SCHED_IDLE]


def tell_busy(stat: Path, cores: Collection[int], seconds: float) -> None:
    """As the system tells it, of processors that have worked for so long each."""
    ticks = round(seconds * os.sysconf("SC_CLK_TCK"))
    lines = [f"cpu{core} {ticks} 0 0 900 0 0 0 0 0 0" for core in cores]
    stat.write_text("\n".join([f"cpu  {ticks * len(cores)} 0 0 900 0 0 0 0 0 0", *lines, "intr 1", ""]))


def cores_of(session_id: int) -> list[set[int]]:
    return [os.sched_getaffinity(process) for process in members(session_id)]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor has no half")
def test_idle_work_keeps_to_half_of_the_processors_while_others_work(tmp_path: Path) -> None:
    stat, cores = tmp_path / "stat", os.sched_getaffinity(0)
    tell_busy(stat, cores, 0.0)
    with session(BURN, bound=False) as pid:
        take_leftovers(pid)
        spare = SpareTime(pid, now := time.monotonic(), cores, starved_seconds=PATIENCE_SECONDS, stat=stat)
        spare.look(now + 1)
        assert cores_of(pid) == [cores]
        tell_busy(stat, cores, 3 * PATIENCE_SECONDS)
        spare.look(now + 2)
        assert policies(pid) == [os.SCHED_IDLE]
        assert cores_of(pid) == [half_of(cores)]
        spare.look(now + 3)
        assert cores_of(pid) == [cores], "nobody else has worked since"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor has no half")
def test_batch_work_has_all_processors(tmp_path: Path) -> None:
    stat, cores = tmp_path / "stat", os.sched_getaffinity(0)
    tell_busy(stat, cores, 0.0)
    with session(BURN, bound=False) as pid:
        take_leftovers(pid)
        spare = SpareTime(pid, now := time.monotonic(), cores, starved_seconds=0.0, stat=stat)
        spare.look(now + 1)
        tell_busy(stat, cores, 3 * PATIENCE_SECONDS)
        spare.look(now + 2)
        assert policies(pid) == [os.SCHED_BATCH]
        assert cores_of(pid) == [cores]


@pytest.mark.parametrize(
    ("cores", "half"), [([3], {3}), ([0, 1], {1}), ([7, 2, 4], {4, 7}), ([0, 1, 2, 3], {2, 3})], ids=str
)
def test_half_of_the_processors_is_one_at_least(cores: list[int], half: set[int]) -> None:
    assert half_of(cores) == half


TAKES = """
import logging, os, sys, threading
from mainstem.pipeline.embedded.processes import take_leftovers
from mainstem.pipeline.embedded.spare_time import take_spare_time
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
if sys.argv[1] != "plain":
    take_leftovers(os.getpid())
if sys.argv[1] == "no right":
    os.setuid(65534)
take_spare_time()
print([thread.name for thread in threading.enumerate() if thread.name == "spare time"])
"""


@pytest.mark.parametrize(
    ("started", "said"),
    [("right", ["spare time"]), ("no right", []), ("plain", [])],
    ids=["right", "no right", "plain"],
)
@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can give its rights up")
def test_who_was_started_as_batch_work_watches_if_it_has_the_right(started: str, said: list[str]) -> None:
    command = [sys.executable, "-c", TAKES, started]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(said)
    assert ("it has no right to come back from idle work" in done.stdout) == (started == "no right")


LOOKS = """
import logging, os, resource, subprocess, sys, threading, time
from mainstem.pipeline.embedded import spare_time
from mainstem.pipeline.embedded.processes import take_leftovers
failed = threading.Event()
class Hears(logging.Handler):
    def emit(self, record):
        if "Too many open files" in record.getMessage():
            failed.set()
logging.getLogger().addHandler(Hears())
spare_time.LOOK_SECONDS = 0.01
take_leftovers(os.getpid())
child = subprocess.Popen(["sleep", "600"])
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        spare_time.take_spare_time()
    heard = failed.wait(float(sys.argv[1]))
    for one in held:
        os.close(one)
    deadline = time.monotonic() + float(sys.argv[1])
    while os.sched_getscheduler(child.pid) != os.SCHED_IDLE and time.monotonic() < deadline:
        time.sleep(0.01)
    print(heard, os.sched_getscheduler(child.pid) == os.SCHED_IDLE)
finally:
    child.kill()
    child.wait()
"""


def test_a_look_that_fails_is_not_the_last() -> None:
    command = [sys.executable, "-c", LOOKS, str(PATIENCE_SECONDS)]
    done = subprocess.run(
        command, capture_output=True, text=True, start_new_session=True, timeout=3 * PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_spark_waits_longer_for_its_jvm_than_that_may_stand_still() -> None:
    waits = SETTINGS["spark.python.authenticate.socketTimeout"]
    assert float(waits.removesuffix("s")) > 2 * (STARVED_SECONDS + 2 * LOOK_SECONDS)
