"""Tells whether a path names the same file in two processes."""

from __future__ import annotations

import os
from pathlib import Path


def host_identity() -> str:
    """A name for this running kernel and this process's view of the file system (its mount namespace): two containers
    on one machine differ, two processes side by side do not. Empty where the kernel does not tell; callers then treat
    every other process as remote."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/mnt')}"
    except OSError:
        return ""
