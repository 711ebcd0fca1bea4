"""Has the processes of the splitter work in what nobody else wants of the processor, unless that is next to nothing.

Batch work of little weight still has its share. A thread of the node that wakes up where it runs waits for the next
tick of the clock, some milliseconds, if it has just had more than its own share; and where batch work has one of two
processors, the threads of the node meet on the other. Idle work gives way at once, and the system takes a processor
that does idle work for a free one. But where others want all processors idle work gets none, and the split would fall
behind until disk 1 is full. So a thread of the splitter, which stays batch work, watches over the others:

    idle work ──next to nothing for `STARVED_SECONDS`──▶ batch work ──`BATCH_SECONDS`──▶ idle work

If the system allows a control group, all of the splitter but this thread is idle work there, as one thing
(`control_group`). Elsewhere each of its threads is, and to come back from idle work takes rights (`CAP_SYS_NICE`, or a
limit of niceness): who has neither stays batch work.

Idle work keeps to half of the processors while others work. A processor with nothing to do takes over a thread that
waits on another one; a processor with idle work has something to do, and leaves it there.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from mainstem.pipeline.embedded.control_group import ControlGroup, make_group
from mainstem.pipeline.embedded.processes import ENDED, SESSION_AT

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Between two looks. This thread is batch work, and so is what it takes: where it runs no thread of a node finds a free
processor. A look takes a millisecond or two: it reads a file of each process of the session and of each new one, and of
their threads only if all together hardly ran…"""

STRANGERS_LOOKS = 30
"""…and of the other processes every minute: one of the session that has got the number of one that ended between two
looks is found then."""

FILES_AT_ONCE = 12
"""Files read in a few tenths of a millisecond: others may have to wait until the clock ticks, and a kernel that is not
preemptible lets nobody in while it makes up a file…"""

REST_SECONDS = 0.002
"""…and then it rests."""

STARVED_SECONDS = 20.0
"""So long the splitter may get next to nothing: others are busy for some seconds now and then, and the split has room
for a minute of publishing and more."""

SHARE_MIN = 0.1
"""Of one processor. Less than this is next to nothing for a splitter that wants to run whenever it is looked at: it is
what batch work gets at least."""

BATCH_SECONDS = 300.0
"""Then it is looked at again whether others leave enough: beside others that never do, the splitter has what batch work
gets in fifteen of sixteen parts of the time."""

STAT_BYTES = 4096
"""More than what the system tells of a process in one line."""

TICKS_AT = slice(11, 13)
"""Of the fields behind the command's name: how long it ran for itself, and how long the system for it."""

OTHERS_LITTLE = 0.1
"""Of one processor. Others who take less in all hardly meet the splitter, wherever it works: a node that does nothing
takes a hundredth, one that takes in a megabyte a second some hundredths."""


class _Seen(NamedTuple):
    """A process of the session, at one look."""

    ran: float
    """Seconds, since it began."""
    threads: list[int]


class SpareTime:
    """Watches over the processes of a session but this one. `look` is to be called every `LOOK_SECONDS`."""

    def __init__(
        self,
        session_id: int,
        now: float,
        cores: Collection[int],
        *,
        starved_seconds: float = STARVED_SECONDS,
        stat: Path = Path("/proc/stat"),
        rest: Callable[[float], object] = time.sleep,
        group: ControlGroup | None = None,
        policies: bool = True,
    ) -> None:
        """`cores`: those that the session may use. `stat`: where the system tells how long they worked for anybody.
        `rest` takes seconds. `group`: one that is idle. `policies`: whether threads may be idle work
        by themselves, where there is no group."""
        self.idle = True
        """Whether the processes are idle work; else they are batch work."""
        self._session_id = session_id
        self._cores = frozenset(cores)
        self._stat = stat
        self._rest = rest
        self._group = group
        self._policies = policies
        self._files = 0
        """Read since the last rest."""
        self._strangers: set[int] = set()
        """Processes that are of other sessions."""
        self._looks = 0
        self._busy_seconds = math.inf
        """At the last look: before the first one nobody has worked."""
        self._starved_seconds = starved_seconds
        self._looked_at = now
        self._fed_at = now
        """When the splitter had enough, or wanted little, for the last time."""
        self._batch_until = 0.0
        self._seen: Mapping[int, _Seen] = {}
        """By process, at the last look."""

    def look(self, now: float) -> None:
        seen = self._members()
        unknown = _Seen(0.0, [])
        ran = sum(found.ran - self._seen.get(process, unknown).ran for process, found in seen.items())
        seconds, busy = now - self._looked_at, self._busy()
        threads = [thread for found in seen.values() for thread in found.threads]
        if ran >= SHARE_MIN * seconds or not any(map(self._is_ready, threads)):
            self._fed_at = now
        others_work = busy - self._busy_seconds - ran >= OTHERS_LITTLE * seconds
        moves = [process for process in seen if process not in self._seen] if self.idle else []
        self._looked_at, self._busy_seconds, self._seen = now, busy, seen
        if self.idle and now - self._fed_at >= self._starved_seconds:
            log.info("others leave the splitter next to nothing of the processor: it takes a share for a while")
            self.idle, self._batch_until, moves = False, now + BATCH_SECONDS, list(seen)
        elif not self.idle and now >= self._batch_until:
            self.idle, self._fed_at, moves = True, now, list(seen)
        self._move(moves)
        cores = half_of(self._cores) if self.idle and others_work else self._cores
        for thread in threads:
            if self._group is None and self._policies:
                set_policy(thread, os.SCHED_IDLE if self.idle else os.SCHED_BATCH)
            _keep_to(cores, thread)

    def _move(self, processes: Iterable[int]) -> None:
        """Put processes into the group, or out of it if they are batch work. The splitter does without one from now on
        if the system does not let us any more."""
        try:
            for process in processes:
                if self._group is not None:
                    (self._group.take if self.idle else self._group.let_go)(process)
        except OSError as error:
            log.warning("the splitter does without a control group from now on: %s", error)
            self._group = None

    def _members(self) -> dict[int, _Seen]:
        """The processes of the session but this one: a thread that holds the interpreter and gets no processor would
        hold up this one."""
        if self._looks % STRANGERS_LOOKS == 0:
            self._strangers.clear()
        self._looks += 1
        found = {}
        there = {int(entry) for entry in os.listdir("/proc") if entry.isdigit()}
        self._strangers &= there
        for process in there - self._strangers:
            fields = self._stat_of(process)
            if fields is None or fields[0].decode() in ENDED:
                continue
            if int(fields[SESSION_AT]) != self._session_id or process == os.getpid():
                self._strangers.add(process)
                continue
            try:
                threads = list(map(int, os.listdir(f"/proc/{process}/task")))
            except OSError:
                continue  # it has just ended
            found[process] = _Seen(sum(map(int, fields[TICKS_AT])) / os.sysconf("SC_CLK_TCK"), threads)
        return found

    def _is_ready(self, thread: int) -> bool:
        """Whether a thread runs, or would if it had a processor. (How long it was ready the system tells only once it
        runs again.)"""
        fields = self._stat_of(thread)
        return fields is not None and fields[0] == b"R"

    def _stat_of(self, thread: int) -> list[bytes] | None:
        """The fields behind the command's name that the system tells of a thread, or of a process; None: it has
        ended."""
        self._files += 1
        if self._files > FILES_AT_ONCE:
            self._files = 1
            self._rest(REST_SECONDS)
        try:
            descriptor = os.open(f"/proc/{thread}/stat", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.read(descriptor, STAT_BYTES).rpartition(b")")[2].split() or None
            finally:
                os.close(descriptor)
        except (FileNotFoundError, ProcessLookupError):
            return None

    def _busy(self) -> float:
        """The seconds for which the session's processors have worked for anybody, so far."""
        ticks = 0
        for line in self._stat.read_text().splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in self._cores:
                user, nice, system, _idle, _waits, interrupts, soft_interrupts = map(int, fields[:7])
                ticks += user + nice + system + interrupts + soft_interrupts
        return ticks / os.sysconf("SC_CLK_TCK")


def half_of(cores: Iterable[int]) -> frozenset[int]:
    """The upper half: devices interrupt the first processor, on many machines."""
    ordered = sorted(cores)
    return frozenset(ordered[len(ordered) // 2 :])


def _keep_to(cores: frozenset[int], thread: int) -> None:
    try:
        if os.sched_getaffinity(thread) != cores:
            os.sched_setaffinity(thread, cores)
    except OSError:
        return  # it has ended, or somebody took processors away from this process meanwhile


def set_policy(thread: int, policy: int) -> bool:
    """Have a thread be idle or batch work, and what it starts from now on. False: it has ended, or the system does not
    let us."""
    try:
        if os.sched_getscheduler(thread) != policy:
            os.sched_setscheduler(thread, policy, os.sched_param(0))
    except OSError:
        return False
    return True


def may_return() -> bool:
    """Whether the system lets a thread of this process that was idle work be batch work again."""
    came_back: list[bool] = []

    def there_and_back() -> None:
        thread = threading.get_native_id()
        came_back.append(
            _may_be_less_nice(thread) and set_policy(thread, os.SCHED_IDLE) and set_policy(thread, os.SCHED_BATCH)
        )

    tries = threading.Thread(target=there_and_back)
    tries.start()
    tries.join()
    return came_back == [True]


def _may_be_less_nice(thread: int) -> bool:
    """It takes the same right, and costs nothing where that is missing: a thread that stayed idle work would hold the
    interpreter until others leave it some of the processor."""
    nice = os.getpriority(os.PRIO_PROCESS, thread)
    try:
        for tried in (nice + 1, nice):
            os.setpriority(os.PRIO_PROCESS, thread, tried)
    except OSError:
        return False
    return True


def take_spare_time() -> None:
    """Watch over what this process starts from now on, until it ends. Only if it leads a session that is batch work
    (`processes.take_leftovers`): it was started so for that."""
    if not hasattr(os, "SCHED_IDLE") or os.sched_getscheduler(0) != os.SCHED_BATCH or os.getsid(0) != os.getpid():
        return
    group, policies = make_group(), may_return()
    if group is not None or policies:
        threading.Thread(target=_watch, args=(group, policies), name="spare time", daemon=True).start()
    else:
        log.info(
            "the splitter is batch work: it may have no control group (Delegate=cpu in a unit of systemd), and it has "
            "no right to come back from idle work (CAP_SYS_NICE)"
        )


def _watch(group: ControlGroup | None, policies: bool) -> None:
    cores = os.sched_getaffinity(0)
    spare = SpareTime(os.getpid(), time.monotonic(), cores, group=group, policies=policies)
    while True:
        try:
            spare.look(time.monotonic())
        except Exception as error:  # if nobody looked any more, what is idle work would be so for good
            log.warning("nobody knows what the splitter gets of the processor now: %s", error)
        time.sleep(LOOK_SECONDS)
