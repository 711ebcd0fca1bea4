"""The imports of a node before it serves clients cost each start; the rest is left for later."""

from __future__ import annotations

import subprocess
import sys

import pytest

NOT_NEEDED = (
    "uvicorn", "starlette", "anyio", "email", "http.client", "multiprocessing", "rich", "confluent_kafka", "pyarrow",
)  # fmt: skip

PROGRAM = """
import sys
import mainstem.cli.serve, mainstem.process.event_loop, mainstem.node.config_sources, mainstem.node.node
print(*(name for name in sys.argv[1:] if name in sys.modules))
"""


@pytest.mark.parametrize("name", NOT_NEEDED)
def test_a_node_that_starts_does_not_import(name: str) -> None:
    assert name not in imported()


def imported() -> set[str]:
    if not _found:
        command = [sys.executable, "-c", PROGRAM, *NOT_NEEDED, "numpy"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        _found.update(done.stdout.split())
        assert "numpy" in _found, "this is how one that is imported looks"
    return _found


_found: set[str] = set()
