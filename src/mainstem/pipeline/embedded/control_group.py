"""A control group in which all splitters of a machine are one thing to Linux, and idle work.

Threads that are idle work each (`SCHED_IDLE`) give way at once only while they are few. The scheduler counts each of
them when it asks who has had more than its share: where three of them are ready, a thread of a node that wakes up is
often found to have had more than its own, and then another idle one runs, until the clock ticks. In a control group
that is idle (`cpu.idle`, Linux 5.15) all of them count once, and nobody waits for them. Two such groups are two again,
so the splitters of all nodes that are in the same group share one.

It is made below the group of this process, in either version of control groups, if the system lets us: as root, or
where a unit of systemd has `Delegate=cpu`. It needs no right to change the niceness of anything. In version 2 a group
with processes in it hands its processor down to threads alone, so the new one is `threaded`.
Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of Linux.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

NAME = "mainstem-idle"

PROC = Path("/proc/self")

TRIES = 10
"""For something that another node's end of its splitter may come between."""

_REMOVED = (errno.ENOENT, errno.ENODEV)
"""Before a file of a group is opened, and once it is."""


class ControlGroup:
    """The idle group below another one. Its methods raise OSError where the system does not let us."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._directory = parent / NAME

    @property
    def exists(self) -> bool:
        return self._directory.exists()

    def make(self) -> None:
        """Repeatable. Nothing is left of a group that cannot be idle."""
        self._while_it_is_there(lambda: None)

    def take(self, process_id: int) -> None:
        """Take a process in, with all of its threads, and what it starts from now on."""
        self._while_it_is_there(lambda: self._put(process_id, self._directory))

    def let_go(self, process_id: int) -> None:
        """Take a process out, to where the others of this node are."""
        self._put(process_id, self._parent)

    def remove(self) -> None:
        """Remove the group unless there is something in it: the splitter of another node."""
        with contextlib.suppress(OSError):
            self._directory.rmdir()

    def _while_it_is_there(self, act: Callable[[], None]) -> None:
        """Make the group if it is not there, have it idle, and act. Another node may remove it at any moment as long as
        it is empty: then it is made anew."""
        for left in range(TRIES - 1, -1, -1):
            try:
                with contextlib.suppress(FileExistsError):
                    self._directory.mkdir()
                self._have_processor()
                put_value(self._directory / "cpu.idle", 1)
                act()
            except OSError as error:
                self.remove()
                if error.errno not in _REMOVED or not left:
                    raise
            else:
                return

    def _put(self, process_id: int, group: Path) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            put_value(group / "cgroup.procs", process_id)

    def _have_processor(self) -> None:
        """Have a new group share the processor out by itself. In version 2 the one above goes on handing it down when
        this one is removed, and still a new one takes no process before it is threaded."""
        if (kind := self._directory / "cgroup.type").exists():
            put_value(kind, "threaded")
        if (self._directory / "cpu.idle").exists():
            return
        if (control := self._parent / "cgroup.subtree_control").exists():
            put_value(control, "+cpu")
        elif self._directory.exists():
            raise OSError(errno.EOPNOTSUPP, "groups of this system cannot be idle", str(self._directory))


def make_group(process: Path = PROC) -> ControlGroup | None:
    """The idle group for what this process starts. None: the system has no such groups, or does not let us."""
    try:
        if (parent := _own_group(process)) is None:
            return None
        group = ControlGroup(parent)
        group.make()
    except OSError:
        return None
    return group


def find_group(process: Path = PROC) -> ControlGroup | None:
    """The idle group below that of this process, if it has been made."""
    with contextlib.suppress(OSError):
        if (parent := _own_group(process)) is not None and (group := ControlGroup(parent)).exists:
            return group
    return None


def put_value(file: Path, value: str | int) -> None:
    """Nothing is made anew: in a group the system has all files there are."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, str(value).encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error
    finally:
        os.close(descriptor)


def _own_group(process: Path) -> Path | None:
    """The group that shares the processor out for this process: of version 1 if there are such, else of 2."""
    paths = {}
    for line in (process / "cgroup").read_text().splitlines():
        _number, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))  # that of version 2 has no controllers
    mounts = [_Mount(line) for line in (process / "mountinfo").read_text().splitlines()]
    if "cpu" in paths:
        return _found(paths["cpu"], [mount for mount in mounts if mount.kind == "cgroup" and "cpu" in mount.options])
    if "" not in paths:
        return None
    own = _found(paths[""], [mount for mount in mounts if mount.kind == "cgroup2"])
    if own is None or "cpu" not in (own / "cgroup.controllers").read_text().split():
        return None
    return own


class _Mount:
    """A line of `mountinfo`: which part of a file system is where (proc_pid_mountinfo(5))."""

    def __init__(self, line: str) -> None:
        before, _, behind = line.partition(" - ")
        self.root, self.at = (_plain(field) for field in before.split()[3:5])
        kind, _source, options = behind.split(" ", 2)
        self.kind, self.options = kind, options.split(",")


def _plain(field: str) -> str:
    """A path as it is: the system writes spaces and the like as octal numbers."""
    for code in (" ", "\t", "\n", "\\"):
        field = field.replace(f"\\{ord(code):03o}", code)
    return field


def _found(path: str, mounts: Iterable[_Mount]) -> Path | None:
    for mount in mounts:
        if os.path.commonpath([mount.root, path]) == mount.root:
            return Path(mount.at, os.path.relpath(path, mount.root))
    return None
