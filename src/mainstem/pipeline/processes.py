"""The splitter's processes beside a node: what they get of the processor, and their end.

A splitter leads a session of its own. Whatever it starts is in that session, also what makes a process group of its own
as Spark's Python daemon does; so the session is what is ended. Linux shares the processor out among sessions first,
where these are not in control groups (`sched_autogroup`): within its own a process may be as nice as it wants, its
session still has as large a share as the node's. So the session has to be nice, too.
"""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

log = logging.getLogger(__name__)

NICE = 10
"""A ninth of the weight of who is not nice. Where others want the whole processor a tenth of it is left, with which a
splitter starts in minutes and splits about what such a node takes in; at 19 it is a seventieth, and it would fall
behind until disk 1 is full."""

SESSION_AT = 3
"""In /proc/PID/stat, of the fields behind the command's name: state, parent, group, session."""


def take_leftovers(process_id: int) -> None:
    """Have a process, and what it starts from now on, get what others leave of the processor: low in weight, and as
    batch work, which does not interrupt who else runs when it wakes up."""
    try:
        os.setpriority(os.PRIO_PROCESS, process_id, NICE)
        if hasattr(os, "sched_setscheduler"):
            os.sched_setscheduler(process_id, os.SCHED_BATCH, os.sched_param(0))
        autogroup = Path(f"/proc/{process_id}/autogroup")
        if autogroup.exists() and os.getsid(process_id) == process_id:
            autogroup.write_text(str(NICE))
    except ProcessLookupError:
        pass  # it has ended already
    except OSError as error:
        log.warning("the splitter may compete with the node for the processor: %s", error)


def end_session(session_id: int) -> None:
    """Kill everything in the session that a process leads or led, this process last if it is one of them."""
    own = os.getpid()
    members = _members(session_id)
    for process_id in [*(it for it in members if it != own), *(it for it in members if it == own)]:
        try:
            os.kill(process_id, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _members(session_id: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not entry.isdigit():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if int(fields[SESSION_AT]) == session_id:
            found.append(int(entry))
    return found
