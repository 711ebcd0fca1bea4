"""How long a thread keeps the processor once it has it, and so which others it makes wait, or waits for itself.

A thread that wakes up gets a processor at once where one is free. Otherwise Linux lets whoever runs finish its slice,
nearly whatever the weights of the two, and mostly notices the end of a slice at the next tick, four milliseconds apart
on many machines. But since version 6.12 a thread has a slice of its own, and one with a shorter slice does not wait for
one with a longer, as long as it has not had more than its share. So threads that work for some tens of microseconds,
and are waited for, have short slices, and batch work has long ones: neither gets more of the processor by that.

Other systems and older versions take no notice.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import struct

log = logging.getLogger(__name__)

SHORT_SECONDS = 0.0001
"""As short as Linux has them: a node's threads do less at a time than that while latency counts."""

LONG_SECONDS = 0.02
"""Five ticks of four milliseconds. Linux has them up to a tenth of a second."""

USUAL_SECONDS = 0.0
"""Of the system's own choice."""

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""The system call by machine: most C libraries have no function for it."""

_ATTRIBUTES = struct.Struct("IIQiIQQQ")
"""`struct sched_attr`: its size, policy, flags, nice value, priority, runtime (the slice, in ns), deadline, period."""

_KEEP_POLICY = 0x08
_FAIR = {getattr(os, name) for name in ("SCHED_OTHER", "SCHED_BATCH") if hasattr(os, name)}


def set_slice(seconds: float, thread_id: int = 0) -> bool:
    """Give a thread, and the threads and processes that it starts from now on, slices of that length. The policy and
    the nice value stay. 0 is the calling thread; the id of a process is that of its first thread. False: the system
    knows no such thing, or does not let us."""
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or not _FAIR:
        return False
    try:
        if os.sched_getscheduler(thread_id) not in _FAIR:
            return False  # whoever started it has chosen otherwise
        nice = os.getpriority(os.PRIO_PROCESS, thread_id)
    except OSError as error:
        log.debug("the slices of thread %d stay as they are: %s", thread_id, error)
        return False
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, 0, _KEEP_POLICY, nice, 0, round(seconds * 1e9), 0, 0)
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(ctypes.c_long(number), ctypes.c_int(thread_id), attributes, ctypes.c_uint(0)):
        log.debug("the slices of thread %d stay as they are: %s", thread_id, os.strerror(ctypes.get_errno()))
        return False
    return True
