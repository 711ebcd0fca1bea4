"""The supervisor, with small Python programs in the splitter's place."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from tests.fakes.clock import FakeClock
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.errors import ConfigError
from mainstem.pipeline.embedded.config import PipelineConfig
from mainstem.pipeline.embedded.processes import NICE, NICE_MAX, members, nice_of_session
from mainstem.pipeline.embedded.spare_time import may_return
from mainstem.pipeline.embedded.supervisor import (
    MERGE_LOOK_ON_SECONDS,
    MERGE_LOOK_SECONDS,
    SplitSupervisor,
    parallel_tasks,
    splitter_command,
)
from mainstem.pipeline.errors import EXIT_FAILED, EXIT_YIELDED
from mainstem.pipeline.main import parse
from mainstem.pipeline.spark.java import find_java
from mainstem.rpc.messages.split import MergeWaits, SplitLag
from mainstem.storage.errors import StorageError

IDLE = SplitLag(0, 0.0, "")
WORK = SplitLag(1 << 30, 0.0, "")

AUTOGROUP = "/proc/self/autogroup"
SESSIONS_ARE_NICE = Path(AUTOGROUP).exists() and bool(
    subprocess.run(["cat", AUTOGROUP], start_new_session=True, check=True, capture_output=True).stdout
)
"""Of the session that a splitter leads; the one that the tests run in may have no niceness of its own."""

COUNT_STARTS = "import sys; open(sys.argv[1], 'a').write('started\\n'); "


class Work:
    """`SplitWork` under the test's control."""

    def __init__(self, lag: SplitLag) -> None:
        self.now = lag
        self.errors: list[str] = []
        self.merges = MergeWaits(0)
        self.error: Exception | None = None
        self.looks = 0
        """How often it was asked about merges."""

    async def merge_waits(self) -> MergeWaits:
        self.looks += 1
        if self.error is not None:
            raise self.error
        return self.merges

    def lag(self) -> SplitLag:
        return self.now

    def record_error(self, error: str) -> None:
        self.errors.append(error)


class Bench:
    """A supervisor of a program that notes its starts in a file."""

    def __init__(
        self,
        directory: Path,
        program: str,
        lag: SplitLag,
        *,
        missing: str = "",
        nice: int = NICE,
        merge: bool = True,
    ) -> None:
        self.notes = directory / "starts"
        self.work = Work(lag)
        self.clock = FakeClock()
        self.supervisor = SplitSupervisor(
            PipelineConfig(nice=nice, merge=merge),
            self.work,
            store_dir=str(directory),
            clock=self.clock,
            command=lambda node: [sys.executable, "-c", COUNT_STARTS + program, str(self.notes)],
            missing=lambda: missing,
            poll_seconds=0.01,
            backoff_seconds=(0.01,),
            merge_waits=self.work.merge_waits,
        )

    @property
    def starts(self) -> int:
        return len(self.notes.read_text().splitlines()) if self.notes.exists() else 0

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110 - what is waited for happens in another process
                await asyncio.sleep(0.01)

    def run(self, test: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            await self.supervisor.start("http://node")
            try:
                await test()
            finally:
                await self.supervisor.close()

        asyncio.run(main())


SLEEP = "import time; time.sleep(60)"


def test_nothing_is_started_without_work_or_while_another_holds_the_lease(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SLEEP, IDLE)

    async def test() -> None:
        for lag in (IDLE, SplitLag(5, 10.0, ""), WORK._replace(holder="somebody")):
            bench.work.now = lag
            await asyncio.sleep(0.1)
            assert (bench.starts, bench.supervisor.state) == (0, "waiting")
        bench.work.now = WORK
        await bench.until(lambda: bench.supervisor.state == "running")
        await bench.until(lambda: bench.starts > 0)
        assert bench.starts == 1

    bench.run(test)


def test_age_alone_is_reason_enough(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SLEEP, SplitLag(5, 61.0, ""))
    bench.run(lambda: bench.until(lambda: bench.starts == 1))


def test_splitter_that_dies_is_started_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, f"sys.exit({EXIT_FAILED})", WORK)
    bench.run(lambda: bench.until(lambda: bench.starts >= 3))


def test_splitter_that_yielded_waits_for_the_lease(tmp_path: Path) -> None:
    bench = Bench(tmp_path, f"sys.exit({EXIT_YIELDED})", WORK)

    async def test() -> None:
        await bench.until(lambda: bench.starts >= 1)
        bench.work.now = WORK._replace(holder="mainstem split run --once")
        await bench.until(lambda: bench.supervisor.state == "waiting")
        seen = bench.starts
        await asyncio.sleep(0.1)
        assert bench.starts == seen
        bench.work.now = WORK
        await bench.until(lambda: bench.starts > seen)

    bench.run(test)


def test_a_splitter_that_merges_is_not_idle(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SLEEP, WORK)

    async def test() -> None:
        await bench.until(lambda: bench.starts == 1 and bench.supervisor.state == "running")
        bench.work.now = IDLE._replace(merging=True)
        for _ in range(3):
            bench.clock.advance(PipelineConfig().idle_stop_seconds + 1)
            await asyncio.sleep(0.05)  # it looks every hundredth of a second
            assert bench.supervisor.state == "running"
        bench.work.now = IDLE
        bench.clock.advance(PipelineConfig().idle_stop_seconds + 1)
        await bench.until(lambda: bench.supervisor.state == "waiting")

    bench.run(test)


def test_a_splitter_is_started_for_a_merge_alone_and_the_node_is_seldom_asked(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SLEEP, IDLE)
    bench.work.merges = MergeWaits(0, more=True)

    async def test() -> None:
        await asyncio.sleep(0.05)  # it looks every hundredth of a second
        assert bench.work.looks == 0
        bench.clock.advance(MERGE_LOOK_SECONDS)
        await bench.until(lambda: bench.work.looks == 1)
        bench.clock.advance(MERGE_LOOK_ON_SECONDS)
        await bench.until(lambda: bench.work.looks == 2)
        bench.work.merges = MergeWaits(0)
        bench.clock.advance(MERGE_LOOK_ON_SECONDS)
        await bench.until(lambda: bench.work.looks == 3)
        bench.work.merges = MergeWaits(1 << 33)
        bench.clock.advance(MERGE_LOOK_SECONDS - 1)
        await asyncio.sleep(0.05)
        assert (bench.work.looks, bench.starts) == (3, 0)
        bench.work.now = IDLE._replace(holder="mainstem store merge")
        bench.clock.advance(2)
        await asyncio.sleep(0.05)
        assert (bench.work.looks, bench.starts) == (3, 0)
        bench.work.now = IDLE
        await bench.until(lambda: bench.starts == 1)
        assert bench.work.looks == 4

    bench.run(test)


def test_an_error_of_a_look_at_merges_does_not_end_the_supervisor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path, SLEEP, IDLE)
    bench.work.error = StorageError("disk 2 is away")

    async def test() -> None:
        bench.clock.advance(MERGE_LOOK_SECONDS)
        await bench.until(lambda: bench.work.looks == 1)
        bench.work.now = WORK
        await bench.until(lambda: bench.starts == 1)

    bench.run(test)
    assert bench.work.looks == 1
    assert "what waits to be merged cannot be told: disk 2 is away" in caplog.text


def test_no_splitter_is_started_for_merges_where_they_are_off(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SLEEP, IDLE, merge=False)
    bench.work.merges = MergeWaits(1 << 33)

    async def test() -> None:
        bench.clock.advance(MERGE_LOOK_SECONDS)
        await asyncio.sleep(0.05)
        assert (bench.work.looks, bench.starts) == (0, 0)

    bench.run(test)


def test_idle_splitter_is_ended_and_started_again_when_there_is_work(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SLEEP, WORK)

    async def test() -> None:
        await bench.until(lambda: bench.starts == 1)
        bench.work.now = IDLE
        bench.clock.advance(PipelineConfig().idle_stop_seconds + 1)
        await bench.until(lambda: bench.supervisor.state == "waiting")
        assert bench.supervisor.process_id is None
        bench.work.now = WORK
        await bench.until(lambda: bench.starts == 2)

    bench.run(test)


def test_close_ends_the_splitter_and_its_children(tmp_path: Path) -> None:
    child = "import subprocess; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
    bench = Bench(tmp_path, child + SLEEP, WORK)
    family: list[psutil.Process] = []

    async def test() -> None:
        await bench.until(lambda: bench.supervisor.process_id is not None)
        parent = psutil.Process(bench.supervisor.process_id)
        await bench.until(lambda: len(parent.children()) == 1)
        family.extend([parent, *parent.children()])

    bench.run(test)
    assert len(family) == 2
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_SECONDS)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize("nice", [NICE, 0])
def test_a_splitter_and_its_children_get_what_is_left_of_the_processor(tmp_path: Path, nice: int) -> None:
    """If sessions share the processor first, theirs is nice as well. With 0 they are as this process is."""
    child = "import subprocess; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
    bench = Bench(tmp_path, child + SLEEP, WORK, nice=nice)

    async def test() -> None:
        await bench.until(lambda: bench.supervisor.process_id is not None)
        parent = psutil.Process(bench.supervisor.process_id)
        await bench.until(lambda: len(parent.children()) == 1)
        for process in (parent, *parent.children()):
            assert process.nice() == min(os.nice(0) + nice, NICE_MAX)
            assert os.sched_getscheduler(process.pid) == (os.SCHED_BATCH if nice else os.sched_getscheduler(0))
            if SESSIONS_ARE_NICE and nice:
                assert nice_of_session(process.pid) == min(nice_of_session() + nice, NICE_MAX)

    bench.run(test)


BURN = "ulimit -t 60; while :; do :; done"
"""It ends by itself, if the test is killed."""
CORE = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
HELD = "held = b'x' * (64 << 20); print('held', flush=True)\nwhile True: pass"
"""A process takes some ms of a processor to give so much memory back: as idle work beside two others for seconds."""
IDLE_CHILD = f"""
import os, subprocess, sys, time
os.sched_setaffinity(0, {{{CORE}}})
none = subprocess.DEVNULL
child = subprocess.Popen([sys.executable, "-c", {HELD!r}], stdin=none, stdout=subprocess.PIPE, stderr=none)
child.stdout.readline()
os.sched_setscheduler(child.pid, os.SCHED_IDLE, os.sched_param(0))
time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE") or not may_return(), reason="it takes the right to come back")
def test_idle_work_beside_a_busy_program_has_ended_once_the_supervisor_is_closed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, IDLE_CHILD, WORK)
    sessions: list[int] = []

    def has_idle_work() -> bool:
        session = bench.supervisor.process_id
        return session is not None and any(os.sched_getscheduler(it) == os.SCHED_IDLE for it in members(session))

    async def test() -> None:
        await bench.until(has_idle_work)
        assert bench.supervisor.process_id is not None
        sessions.append(bench.supervisor.process_id)
        assert len(members(sessions[0])) == 2

    busy = [subprocess.Popen(["taskset", "-c", str(CORE), "sh", "-c", BURN]) for _ in range(2)]
    try:
        bench.run(test)
        assert members(sessions[0]) == []
    finally:
        for process in busy:
            process.kill()
            process.wait()


NICER = """
import os, subprocess, sys
from mainstem.pipeline.embedded.processes import nice_of_session, take_leftovers
os.nice(int(sys.argv[1]) - os.nice(0))
autogroup = "/proc/self/autogroup"
if os.path.exists(autogroup) and open(autogroup).read():
    open(autogroup, "w").write(sys.argv[2])
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
take_leftovers(child.pid, 10)
print(os.getpriority(os.PRIO_PROCESS, child.pid), nice_of_session(child.pid))
child.kill()
child.wait()
"""


@pytest.mark.parametrize(("own", "session", "expected"), [(7, 4, [17, 14]), (12, 11, [19, 19])])
@pytest.mark.skipif(os.name != "posix" or os.nice(0) > 7, reason="these tests are as nice as the nodes that they start")
def test_a_splitter_is_as_much_nicer_than_its_node_however_nice_that_is(
    own: int, session: int, expected: list[int]
) -> None:
    """Node and session are nice by `own` and `session`."""
    command = [sys.executable, "-c", NICER, str(own), str(session)]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    process, of_session = map(int, done.stdout.split())
    assert process == expected[0]
    assert of_session == (expected[1] if SESSIONS_ARE_NICE else 0)


@pytest.mark.skipif(not Path(AUTOGROUP).exists(), reason="Linux shares the processor out among sessions")
def test_every_process_has_a_session_of_some_niceness() -> None:
    """Also those that tell an empty text: they are in the machine's first session, and so may a node be."""
    told = set()
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError):
            told.add(nice_of_session(process.pid))
    assert told
    assert told <= set(range(-20, NICE_MAX + 1))


def test_a_splitter_that_cannot_be_made_nice_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that nobody foresaw ends the process before the supervisor begins anew."""
    started: list[int] = []

    def take(process_id: int, nice: int) -> None:
        started.append(process_id)
        if len(started) == 1:
            raise IndexError

    monkeypatch.setattr("mainstem.pipeline.embedded.supervisor.take_leftovers", take)
    bench = Bench(tmp_path, SLEEP, WORK)

    async def test() -> None:
        await bench.until(lambda: bench.supervisor.state == "running")
        assert not psutil.pid_exists(started[0])

    bench.run(test)
    assert len(started) == 2


STUBBORN = "import signal; signal.signal(signal.SIGTERM, lambda *_: open(sys.argv[1], 'a').write('asked\\n')); "


def test_a_node_that_stops_waits_for_no_splitter(tmp_path: Path) -> None:
    """It is killed without being asked: nothing it could do in an orderly stop would matter to a node that ends."""
    bench = Bench(tmp_path, STUBBORN + "[__import__('time').sleep(0.1) for _ in range(600)]", WORK)

    async def test() -> None:
        await bench.until(lambda: bench.supervisor.process_id is not None and bench.starts == 1)

    bench.run(test)
    assert bench.notes.read_text() == "started\n"


@pytest.mark.parametrize("own_group", [False, True])
def test_nothing_of_a_splitter_is_left_when_its_node_is_killed(tmp_path: Path, own_group: bool) -> None:
    """Neither what does not heed signals nor what has a process group of its own, as Spark's Python daemon has."""
    grandchild = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"signal.signal(signal.SIGHUP, signal.SIG_IGN); {own_group} and os.setpgid(0, 0); "
        "open(sys.argv[1], 'a').write(f'started\\n{os.getpid()}\\n'); time.sleep(600)"
    )
    program = (
        "import subprocess, threading, time; from mainstem.pipeline.main import end_with_stdin; "
        "threading.Thread(target=end_with_stdin, daemon=True).start(); "
        f"subprocess.Popen([sys.executable, '-c', {grandchild!r}, sys.argv[1]]); time.sleep(600)"
    )
    node = (
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from tests.pipeline.test_supervisor import Bench, WORK\n"
        f"bench = Bench(Path(sys.argv[1]), {program!r}, WORK)\n"
        "async def die():\n"
        "    await bench.until(lambda: bench.starts == 3)\n"
        "    print(bench.supervisor.process_id, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "bench.run(die)\n"
    )

    async def test() -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", node, str(tmp_path), env=environment, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        assert process.returncode == -9
        pids = [int(output), int((tmp_path / "starts").read_text().splitlines()[-1])]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while any(map(is_running, pids)):  # noqa: ASYNC110 - other processes
                await asyncio.sleep(0.02)

    asyncio.run(test())


def is_running(process_id: int) -> bool:
    try:
        return bool(psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_standard_input_closes_when_the_supervising_process_is_killed(tmp_path: Path) -> None:
    """A node killed outright leaves no splitter behind: the pipe is the splitter's life line."""
    program = "sys.stdin.read(); open(sys.argv[1], 'a').write('orphaned\\n')"
    node = (
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from tests.pipeline.test_supervisor import Bench, WORK\n"
        f"bench = Bench(Path(sys.argv[1]), {program!r}, WORK)\n"
        "async def die():\n"
        "    await bench.until(lambda: bench.starts == 1)\n"
        "    os.kill(os.getpid(), 9)\n"
        "bench.run(die)\n"
    )

    async def test() -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", node, str(tmp_path), env=environment)
        assert await process.wait() == -9
        notes = tmp_path / "starts"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "orphaned" not in notes.read_text():  # noqa: ASYNC110 - written by another process
                await asyncio.sleep(0.02)

    asyncio.run(test())


def test_without_java_the_reason_is_kept_and_nothing_starts(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SLEEP, WORK, missing="Install Java 17")

    async def test() -> None:
        await bench.until(lambda: bool(bench.work.errors))
        assert bench.supervisor.state == "unavailable: Install Java 17"
        assert bench.work.errors == ["the embedded splitter cannot run: Install Java 17"]

    bench.run(test)
    assert bench.starts == 0


class TestFindJava:
    def fake_java(self, directory: Path, output: str) -> dict[str, str]:
        (directory / "bin").mkdir()
        java = directory / "bin" / "java"
        java.write_text(f"#!/bin/sh\necho '{output}' >&2\n")
        java.chmod(java.stat().st_mode | stat.S_IXUSR)
        return {"JAVA_HOME": str(directory)}

    @pytest.mark.parametrize(
        ("output", "version"), [('openjdk version "17.0.15" 2025-04-15', 17), ('openjdk version "21" 2023-09-19', 21)]
    )
    def test_version_is_read(self, tmp_path: Path, output: str, version: int) -> None:
        java = find_java(self.fake_java(tmp_path, output))
        assert (java.version, java.missing) == (version, "")

    def test_old_java_says_what_to_install(self, tmp_path: Path) -> None:
        java = find_java(self.fake_java(tmp_path, 'java version "1.8.0_392"'))
        assert java.version == 8
        assert "is Java 8. Install Java 17 or newer" in java.missing

    def test_no_java_says_what_to_install(self, tmp_path: Path) -> None:
        assert "no java on the path. Install Java 17" in find_java({"PATH": str(tmp_path)}).missing
        assert "holds no bin/java" in find_java({"JAVA_HOME": str(tmp_path)}).missing


def test_command_carries_the_configuration() -> None:
    command = splitter_command(PipelineConfig(master="local[3,8]"), "http://127.0.0.1:9080", "/store/checkpoint")
    pairs = dict(itertools.pairwise(command))
    assert pairs["--tasks"] == "3"
    assert pairs["--checkpoint"] == "/store/checkpoint"
    assert pairs["--node"] == "http://127.0.0.1:9080"


@pytest.mark.parametrize("merge", [True, False])
def test_command_says_whether_to_merge(merge: bool) -> None:
    command = splitter_command(PipelineConfig(merge=merge), "http://127.0.0.1:9080", "/store/checkpoint")
    assert parse(command[3:]).no_merge == (not merge)
    with pytest.raises(SystemExit):
        parse([*command[3:], "--merge-only", "--no-merge"])


@pytest.mark.parametrize(
    ("master", "tasks"), [("local[2,8]", 2), ("local[4]", 4), ("local[*]", os.cpu_count()), ("spark://host:7077", 2)]
)
def test_parallel_tasks(master: str, tasks: int) -> None:
    assert parallel_tasks(master) == tasks


@pytest.mark.parametrize(
    "changes",
    [
        {"bytes_per_trigger": 0},
        {"start_age_seconds": -1.0},
        {"master": ""},
        {"driver_memory": "lots"},
        {"idle_stop_seconds": 0.0},
        {"nice": 20},
        {"nice": -1},
    ],
)
def test_unusable_values_are_named(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        PipelineConfig(**changes).validate()  # type: ignore[arg-type]


def test_defaults_are_valid() -> None:
    PipelineConfig().validate()
