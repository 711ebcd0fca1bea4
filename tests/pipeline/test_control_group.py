"""The control group of a splitter: found in both versions, idle, and removed when it is empty."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.shell_sessions import BURN, CORE, STARTS_ANOTHER, session

from mainstem.pipeline.embedded import control_group
from mainstem.pipeline.embedded.control_group import NAME, TRIES, ControlGroup, find_group, make_group
from mainstem.pipeline.embedded.processes import end_session, members, take_leftovers
from mainstem.pipeline.embedded.spare_time import BATCH_SECONDS, SpareTime, may_return


def process_in(directory: Path, groups: str, mounts: str) -> Path:
    """Files as the system has them of a process. Its groups are mounted in `directory`, which the mounts call AT."""
    process = directory / "process"
    process.mkdir()
    (process / "cgroup").write_text(groups)
    (process / "mountinfo").write_text(mounts.replace("AT", str(directory)))
    return process


def prepare(group: Path, *files: str) -> Path:
    """A group with the files that the system has in one."""
    group.mkdir(parents=True, exist_ok=True)
    for name in files:
        (group / name).write_text("")
    return group


def read(group: Path, name: str) -> str:
    return (group / name).read_text()


def test_a_group_of_version_1_is_below_that_of_the_process(tmp_path: Path) -> None:
    process = process_in(
        tmp_path,
        "4:memory:/elsewhere\n3:cpu,cpuacct:/box/one\n0::/\n",
        "30 25 0:26 / AT/memory rw - cgroup cgroup rw,memory\n"
        "31 25 0:27 /box AT/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n",
    )
    group = prepare(tmp_path / "cpu" / "one" / NAME, "cpu.idle", "cgroup.procs")
    made = make_group(process)
    assert made is not None
    assert read(group, "cpu.idle") == "1"
    made.take(17)
    assert read(group, "cgroup.procs") == "17"


def test_a_group_of_version_2_is_threaded_and_gets_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = process_in(tmp_path, "0::/a b.service\n", "30 25 0:26 / AT/all\\040groups rw - cgroup2 cgroup2 rw\n")
    parent = prepare(tmp_path / "all groups" / "a b.service", "cgroup.subtree_control", "cgroup.procs")
    (parent / "cgroup.controllers").write_text("cpu pids\n")
    group = prepare(parent / NAME, "cgroup.type", "cgroup.procs")
    written = control_group.put_value

    def write(file: Path, value: str | int) -> None:
        written(file, value)
        if file.name == "cgroup.subtree_control" and read(group, "cgroup.type") == "threaded":
            prepare(group, "cpu.idle")  # as the system does then

    monkeypatch.setattr(control_group, "put_value", write)
    made = make_group(process)
    assert made is not None
    assert (read(parent, "cgroup.subtree_control"), read(group, "cpu.idle")) == ("+cpu", "1")
    made.let_go(17)
    assert read(parent, "cgroup.procs") == "17"


def test_a_second_group_is_threaded_where_the_first_one_has_left_the_processor_handed_down(tmp_path: Path) -> None:
    process = process_in(tmp_path, "0::/\n", "30 25 0:26 / AT/groups rw - cgroup2 cgroup2 rw\n")
    parent = prepare(tmp_path / "groups", "cgroup.subtree_control")
    (parent / "cgroup.controllers").write_text("cpu\n")
    group = prepare(parent / NAME, "cgroup.type", "cpu.idle")
    assert make_group(process) is not None
    assert (read(group, "cgroup.type"), read(group, "cpu.idle")) == ("threaded", "1")
    assert read(parent, "cgroup.subtree_control") == ""


@pytest.mark.parametrize(
    ("groups", "mounts", "controllers"),
    [
        ("0::/\n", "", "cpu"),
        ("0::/\n", "30 25 0:26 / AT/groups rw - cgroup2 cgroup2 rw\n", "memory pids"),
        ("3:cpu:/\n0::/\n", "30 25 0:26 / AT/groups rw - cgroup2 cgroup2 rw\n", "cpu"),
        ("3:cpu:/other\n", "30 25 0:26 /mine AT/groups rw - cgroup cgroup rw,cpu\n", "cpu"),
        ("3:cpu:/\n", "30 25 0:26 / AT/groups rw - cgroup cgroup rw,cpu\n", "cpu"),
    ],
    ids=["not mounted", "no processor", "version 1 not mounted", "out of sight", "version 1 without idle groups"],
)
def test_without_such_groups_there_is_none(tmp_path: Path, groups: str, mounts: str, controllers: str) -> None:
    process = process_in(tmp_path, groups, mounts)
    parent = prepare(tmp_path / "groups")
    (parent / "cgroup.controllers").write_text(controllers)
    assert make_group(process) is None
    assert [entry.name for entry in parent.iterdir()] == ["cgroup.controllers"]


def test_a_system_without_control_groups_has_none(tmp_path: Path) -> None:
    assert make_group(tmp_path) is None
    assert find_group(tmp_path) is None


@pytest.mark.parametrize("at", ["cpu.idle", "cgroup.procs"])
@pytest.mark.parametrize("failure", [errno.ENOENT, errno.ENODEV], ids=["not opened", "opened"])
def test_a_group_that_another_node_removes_meanwhile_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, failure: int
) -> None:
    group = prepare(tmp_path / NAME, "cpu.idle", "cgroup.procs")
    put, failures = control_group.put_value, [OSError(failure, "removed")] * (TRIES - 1)

    def put_value(file: Path, value: str | int) -> None:
        if file.name == at and failures:
            raise failures.pop()
        put(file, value)

    monkeypatch.setattr(control_group, "put_value", put_value)
    ControlGroup(tmp_path).take(17)
    assert (read(group, "cpu.idle"), read(group, "cgroup.procs")) == ("1", "17")
    failures.extend([OSError(failure, "removed")] * TRIES)
    with pytest.raises(OSError, match="removed"):
        ControlGroup(tmp_path).take(17)


def test_what_the_system_refuses_names_the_file(tmp_path: Path) -> None:
    full = prepare(tmp_path / NAME, "cpu.idle") / "cgroup.procs"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match=f"No space left on device: '{full}'"):
        ControlGroup(tmp_path).take(17)


def may_have_a_group() -> bool:
    group = make_group()
    if group is not None:
        group.remove()
    return group is not None


on_this_system = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not may_have_a_group(), reason="it needs the right to make a control group"
)


def group_of(process_id: int) -> str:
    """The name of the control group that shares the processor out for a process."""
    lines = [line.split(":", 2) for line in Path(f"/proc/{process_id}/cgroup").read_text().splitlines()]
    return max(lines, key=lambda line: "cpu" in line[1].split(","))[2].rpartition("/")[2]


def wait_until(spare: SpareTime, done: Callable[[], bool]) -> float:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < deadline, "the state that the test waits for did not come"
        time.sleep(0.05)
        spare.look(time.monotonic())
    return time.monotonic()


@on_this_system
def test_all_of_a_session_is_in_the_group_and_those_who_started_it_are_not() -> None:
    with session(STARTS_ANOTHER) as pid:
        take_leftovers(pid)
        group = make_group()
        spare = SpareTime(pid, time.monotonic(), [CORE], starved_seconds=PATIENCE_SECONDS, group=group, policies=False)
        wait_until(spare, lambda: len(members(pid)) == 2 and {group_of(it) for it in members(pid)} == {NAME})
        assert {os.sched_getscheduler(it) for it in members(pid)} == {os.SCHED_BATCH}
        assert group_of(os.getpid()) != NAME
        assert group is not None
        group.remove()
        assert group.exists, "a node that ends leaves the splitters of others in it"


@on_this_system
def test_nodes_whose_splitters_end_do_not_disturb_one_whose_begins() -> None:
    group = make_group()
    assert group is not None
    ended = threading.Event()

    def end_again_and_again() -> None:
        while not ended.wait(0.0005):  # in each of the rounds, and between any two steps of it
            group.remove()

    other = threading.Thread(target=end_again_and_again)
    with session("sleep 600") as pid:
        other.start()
        try:
            for _ in range(500):
                assert make_group() is not None
                group.take(pid)
                assert group_of(pid) == NAME
                group.let_go(pid)
                assert group_of(pid) != NAME
        finally:
            ended.set()
            other.join()


@on_this_system
def test_who_gets_next_to_nothing_leaves_the_group_for_a_while() -> None:
    with session(BURN) as other, session(BURN) as pid:
        take_leftovers(pid)
        os.setpriority(os.PRIO_PROCESS, other, 0)  # the tests may be nice
        spare = SpareTime(pid, time.monotonic(), [CORE], starved_seconds=0.5, group=make_group(), policies=False)
        wait_until(spare, lambda: group_of(pid) == NAME)
        now = wait_until(spare, lambda: not spare.idle)
        assert group_of(pid) == group_of(other) != NAME
        spare.look(now + BATCH_SECONDS + 1)
        assert spare.idle
        assert group_of(pid) == NAME


@on_this_system
def test_who_ends_is_not_idle_work_any_more() -> None:
    """A process that was killed has to run once more: it must not wait for idle work's turn."""
    groups: list[str] = []
    with session(STARTS_ANOTHER) as pid:
        take_leftovers(pid)
        spare = SpareTime(pid, time.monotonic(), [CORE], group=make_group(), policies=False)
        wait_until(spare, lambda: len(members(pid)) == 2 and {group_of(it) for it in members(pid)} == {NAME})
        stopped = members(pid)
        for process in stopped:
            os.kill(process, signal.SIGSTOP)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "kill", lambda process, _signal: groups.append(group_of(process)))
            end_session(pid)
    assert groups == [group_of(os.getpid())] * 2


@on_this_system
@pytest.mark.skipif(not may_return(), reason="it needs the right to come back from idle work")
def test_without_its_group_each_thread_is_idle_work_by_itself(tmp_path: Path) -> None:
    with session(BURN) as pid:
        take_leftovers(pid)
        spare = SpareTime(pid, time.monotonic(), [CORE], starved_seconds=PATIENCE_SECONDS, group=ControlGroup(tmp_path))
        wait_until(spare, lambda: os.sched_getscheduler(pid) == os.SCHED_IDLE)
        assert list(tmp_path.iterdir()) == []
