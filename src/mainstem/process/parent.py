"""A process that does not outlive the one that began it."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
"""Of prctl(2), on Linux."""


def stop_with(parent: int) -> bool:
    """Have the kernel send this process SIGTERM when `parent` ends, by whatever. False: it has ended already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    return os.getppid() == parent
