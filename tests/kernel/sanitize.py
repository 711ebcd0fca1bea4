"""Runs the kernel's tests over a kernel built with AddressSanitizer and UndefinedBehaviorSanitizer.

    tools/sanitize                            the tests of the kernel
    tools/sanitize tests/storage -k append    other tests, and what else pytest takes

Sources and tests are copied to a temporary directory and built there, so the kernel in use stays as it is. Every
compiled module must have been built and instrumented. Python's own allocator is switched off, for the sanitizer to
see each allocation by itself; leaks are not looked for, since the interpreter leaves a lot behind on purpose.

The exit code is 0 when all tests passed and nothing was reported.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("src", "tests", "setup.py", "pyproject.toml", "README.md", "LICENSE")
MODULES = Path("src/mainstem/kernel/compiled")
RUNTIMES = ("libasan.so", "libubsan.so", "libstdc++.so")
"""To be there before anything else is loaded; the last because it brings the exceptions that the first intercepts."""

REPORT_MARKS = ("ERROR: AddressSanitizer", "runtime error:")
INTERPRETER_FRAME = re.compile(r"\s+#\d+ (?!.*kernel/compiled)")
"""Of the stack traces, what does not help."""

BUILD_SECONDS_MAX = 900
TESTS_SECONDS_MAX = 1800


class SanitizeFailed(Exception):
    """There is nothing to run the tests over."""


def copied(target: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
        else:
            shutil.copy2(source, target / name)


def build(directory: Path) -> list[str]:
    """Build the kernel in place. Returns the names of its modules. Raises SanitizeFailed unless all are there and
    instrumented."""
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "-j", str(os.cpu_count() or 1)]
    environment = os.environ | {"MAINSTEM_SANITIZE": "1"}
    built = subprocess.run(
        command, cwd=directory, env=environment, timeout=BUILD_SECONDS_MAX, capture_output=True, text=True
    )
    names = sorted(source.stem for source in (directory / MODULES).glob("*.pyx"))
    for name in names:
        libraries = list((directory / MODULES).glob(f"{name}.*.so"))
        if len(libraries) != 1 or b"__asan_init" not in libraries[0].read_bytes():
            raise SanitizeFailed(f"{name} was not built with the sanitizers:\n{built.stdout}{built.stderr}")
    return names


def runtime(name: str) -> str:
    found = subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    path = Path(found.stdout.strip())
    if not path.is_absolute():
        raise SanitizeFailed(f"gcc has no {name}")
    return str(path.resolve())


def run(directory: Path, arguments: list[str]) -> tuple[int, str]:
    """Run pytest there. Returns its exit code and what it wrote to stderr: what the sanitizers report goes there
    past pytest's own capture."""
    environment = os.environ | {
        "LD_PRELOAD": ":".join(map(runtime, RUNTIMES)),
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:strict_string_checks=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "MAINSTEM_KERNEL": "compiled",
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--capture=sys", *arguments]
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        timeout=TESTS_SECONDS_MAX,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    return done.returncode, done.stderr


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="mainstem-sanitize-") as name:
        directory = Path(name)
        copied(directory)
        try:
            modules = build(directory)
            code, stderr = run(directory, arguments or ["tests/kernel"])
        except SanitizeFailed as error:
            print(error, file=sys.stderr)
            return 1
        except subprocess.TimeoutExpired as error:
            print(f"given up after {error.timeout:.0f} s: {' '.join(map(str, error.cmd))}", file=sys.stderr)
            return 1
    sys.stderr.writelines(line for line in stderr.splitlines(keepends=True) if not INTERPRETER_FRAME.match(line))
    reports = sum(stderr.count(mark) for mark in REPORT_MARKS)
    print(f"AddressSanitizer and UndefinedBehaviorSanitizer over {', '.join(modules)}:")
    print(f"{reports} reports, pytest ended with {code}")
    return code or int(reports > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
