"""The memory of a node's process, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path

KIB = 1024
MIB = 1024 * KIB


def resident_bytes(pid: int) -> int:
    return _status(pid, "VmRSS")


def resident_bytes_most(pid: int) -> int:
    """Since the process began."""
    return _status(pid, "VmHWM")


def _status(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * KIB
    raise AssertionError(f"/proc/{pid}/status has no {field}")
