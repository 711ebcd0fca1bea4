"""The build of the compiled kernel: a machine without a C compiler gets a Mainstem on its pure-Python kernel."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILED = Path("src/mainstem/kernel/compiled")


def build(directory: Path, compiler: str) -> subprocess.CompletedProcess[str]:
    """Build the smallest module of the kernel in `directory`, as pip would."""
    (directory / COMPILED).mkdir(parents=True)
    shutil.copy(ROOT / "setup.py", directory)
    (directory / "pyproject.toml").write_text('[project]\nname = "kernel"\nversion = "1"\n')
    shutil.copy(ROOT / COMPILED / "collector.pyx", directory / COMPILED)
    for declarations in (*(ROOT / COMPILED).glob("*.h"), *(ROOT / COMPILED).glob("*.pxd")):
        shutil.copy(declarations, directory / COMPILED)
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", "built", "--build-temp", "objects"]
    environment = os.environ | {"CC": compiler}
    return subprocess.run(command, cwd=directory, env=environment, timeout=120, capture_output=True, text=True)


@pytest.mark.parametrize("compiler", ["/nowhere/cc", "false"], ids=["none", "one that fails"])
def test_a_build_without_a_compiler_warns_and_goes_on(tmp_path: Path, compiler: str) -> None:
    built = build(tmp_path, compiler)
    assert built.returncode == 0, built.stderr
    assert 'building extension "mainstem.kernel.compiled.collector" failed' in built.stdout + built.stderr
    assert not list(tmp_path.glob("built/**/*.so"))


def test_a_build_with_a_compiler_has_the_module(tmp_path: Path) -> None:
    built = build(tmp_path, "cc")
    assert built.returncode == 0, built.stderr
    assert len(list(tmp_path.glob("built/**/collector.*.so"))) == 1
