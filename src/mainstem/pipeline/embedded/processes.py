"""The splitter's processes beside a node: bounds their share of the processor, and ends them.

A splitter leads a session of its own. All processes that it starts are in that session, also those that make a
process group of their own, as Spark's Python daemon does; so the whole session is ended. Linux first shares the
processor out among sessions, unless these are in control groups (`sched_autogroup`): however nice a process is within
its session, the session still has as large a share as the node's. So the session has to be nice, too. And a share of
the processor says little about how long others wait for it: for that the splitter's slices are long, and a node's short
(`time_slices`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from mainstem.pipeline.embedded.control_group import find_group
from mainstem.time_slices import LONG_SECONDS, USUAL_SECONDS, set_slice

log = logging.getLogger(__name__)

NICE = 10
"""A ninth of the node's weight. If others want the whole processor a tenth of it is left, with which a splitter
starts in minutes and splits about as much as such a node takes in; at 19 it is a seventieth, and the split would fall
behind until disk 1 is full."""

NICE_MAX = 19
"""The system knows nothing nicer."""

ENDED = ("Z", "X")
"""States of processes that have ended."""

SESSION_AT = 3
"""Positions in /proc/PID/stat, of the fields behind the command's name: state, parent, group, session."""


def take_leftovers(process_id: int, nice: int = NICE) -> None:
    """Give a process, and all that it starts from now on, the rest of the processor that others leave: low in
    weight, as batch work, which does not interrupt running processes when it wakes up, and in long slices, which others
    interrupt. `nice`: from 1 to 19, as much nicer than the calling thread, with its session than the caller's; 0
    leaves it the same share, in usual slices."""
    if not nice:
        set_slice(USUAL_SECONDS, process_id)
        return
    try:
        os.setpriority(os.PRIO_PROCESS, process_id, min(os.getpriority(os.PRIO_PROCESS, 0) + nice, NICE_MAX))
        if hasattr(os, "sched_setscheduler"):
            os.sched_setscheduler(process_id, os.SCHED_BATCH, os.sched_param(0))
        set_slice(LONG_SECONDS, process_id)
        autogroup = _autogroup(process_id)
        if os.getsid(process_id) == process_id and _niceness(autogroup) is not None:
            autogroup.write_text(str(min(nice_of_session() + nice, NICE_MAX)))
    except ProcessLookupError:
        pass  # it has ended already
    except OSError as error:
        log.warning("the splitter may compete with the node for the processor: %s", error)


def nice_of_session(process_id: int | None = None) -> int:
    """How nice the session of a process is to others, by default the caller's; 0 where it has no niceness."""
    return _niceness(_autogroup(process_id)) or 0


def _autogroup(process_id: int | None = None) -> Path:
    return Path(f"/proc/{process_id or 'self'}/autogroup")


def _niceness(autogroup: Path) -> int | None:
    """None where sessions have none, or this process is in the first of the machine: of that, the system tells an empty
    text, and lets nobody change it."""
    try:
        told = autogroup.read_text().split()  # "/autogroup-62 nice 0"
    except FileNotFoundError:
        return None
    return int(told[-1]) if told else None


def end_session(session_id: int) -> None:
    """Kill every process in the session that `session_id` leads or led, this process last if it is one of
    them. A process that was killed still has to run once to end, so none of them stays idle work."""
    own = os.getpid()
    found = members(session_id)
    group = find_group()
    for process_id in [*(it for it in found if it != own), *(it for it in found if it == own)]:
        _be_usual_work(process_id)
        if group is not None:
            with contextlib.suppress(OSError):
                group.let_go(process_id)
        try:
            os.kill(process_id, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _be_usual_work(process_id: int) -> None:
    """Have all threads of a process be usual work, no nicer than this one, where the system has kinds of work and
    lets us."""
    if not hasattr(os, "sched_setscheduler"):
        return
    with contextlib.suppress(OSError):  # it has ended, or is not ours
        for thread in os.listdir(f"/proc/{process_id}/task"):
            os.sched_setscheduler(int(thread), os.SCHED_OTHER, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, int(thread), os.getpriority(os.PRIO_PROCESS, 0))


def members(session_id: int, read_one: Callable[[], None] = lambda: None) -> list[int]:
    """The processes of a session but those that have ended and lie there until their parents look. `read_one` is
    called before each that is looked at."""
    found = []
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not entry.isdigit():
            continue
        read_one()
        try:
            fields = Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if int(fields[SESSION_AT]) == session_id and fields[0] not in ENDED:
            found.append(int(entry))
    return found
