"""Keeps a process that crashes from leaving a file with all of its memory: that of a node has the keys of its
certificates, passwords on their way, and messages."""

from __future__ import annotations

import contextlib
import resource

CORE_BYTES_MAX = 1
"""Linux writes no core file that has less room than one page, and hands none to a program (`core_pattern` with a pipe)
at this very limit, while 0 keeps it from files alone (fs/coredump.c)."""


def leave_no_core_files() -> None:
    """From now on, for this process and for those that it starts. The hard limit stays: `prlimit --core` of the node's
    user may raise it again."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    limit = CORE_BYTES_MAX if hard == resource.RLIM_INFINITY else min(CORE_BYTES_MAX, hard)
    with contextlib.suppress(OSError, ValueError):  # a system that has no such limit
        resource.setrlimit(resource.RLIMIT_CORE, (limit, hard))
