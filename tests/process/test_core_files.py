"""A node that crashes leaves no file with its memory, where all secrets are."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest
from tests.harness.serving import Serving

from mainstem.process.core_files import CORE_BYTES_MAX

CRASH = """
import os, resource
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
os.chdir({directory!r})
{first}
os.abort()
"""
LEAVES_NONE = "from mainstem.process.core_files import leave_no_core_files; leave_no_core_files()"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits are looked at in /proc")


def crashed(directory: Path, first: str) -> bool:
    """Whether the system kept the memory of a process that may leave a core file of any size, and aborts."""
    directory.mkdir()
    code = CRASH.format(directory=str(directory), first=first)
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"it ended with {status}"
    return os.WCOREDUMP(status)


def core_limit(node: Serving) -> str:
    lines = Path(f"/proc/{node.pid}/limits").read_text().splitlines()
    return next(line for line in lines if line.startswith("Max core file size")).split()[4]


def test_a_crash_leaves_no_core_file(tmp_path: Path) -> None:
    if not crashed(tmp_path / "usual", ""):
        pytest.skip("this machine keeps no core files, whatever the limit")
    assert not crashed(tmp_path / "none", LEAVES_NONE)
    assert not list((tmp_path / "none").iterdir())


def test_a_node_leaves_no_core_file_unless_it_may(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    limits = {}
    for name, setting in (("usual", ()), ("kept", ("core_files=true",))):
        node = Serving(tmp_path / name, *setting)
        try:
            node.start()
            limits[name] = core_limit(node)
        finally:
            node.close()
    assert limits["usual"] == str(min(CORE_BYTES_MAX, before[1]) if before[1] >= 0 else CORE_BYTES_MAX)
    assert limits["kept"] == ("unlimited" if before[0] < 0 else str(before[0]))
