"""Mainstem from another source tree: an earlier commit beside this one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.errors import BenchError
from bench.systems.mainstem import Mainstem

_WHENCE = (
    "import mainstem, mainstem.kernel.compiled.produce as kernel; print(mainstem.__file__); print(kernel.__file__)"
)


class OtherTree(Mainstem):
    """`tree` is a work tree with a compiled kernel; its dependencies come from this environment."""

    name = "other tree"

    def __init__(self, tree: Path) -> None:
        self._tree = tree.resolve()

    def prepare(self) -> None:
        """Raises BenchError unless the tree's own program and its own compiled kernel would run."""
        done = subprocess.run(
            [sys.executable, "-c", _WHENCE], env=self.environment(), capture_output=True, text=True, cwd=self._tree
        )
        files = done.stdout.split()
        if done.returncode != 0 or not all(Path(file).is_relative_to(self._tree) for file in files):
            raise BenchError(
                f"{self._tree} is no tree of Mainstem with a compiled kernel; `python setup.py build_ext --inplace` "
                f"makes one there. {(done.stderr or done.stdout).strip()[-300:]}"
            )

    def version(self) -> str:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=self._tree, capture_output=True, text=True)
        return f"Mainstem of {self._tree.name}, commit {done.stdout.strip() or 'unknown'}"

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), "PYTHONPATH": str(self._tree / "src")}
