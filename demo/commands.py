"""Runs `mainstem` commands for the demo, as a person would from another terminal."""

from __future__ import annotations

import subprocess
import sys

from demo.errors import DemoFailed

SECONDS_MAX = 110.0
"""Spark takes ten seconds to start, a minute where other programs have the processors. A demo has its own bound."""
END_SECONDS_MAX = 10.0
LINES_SHOWN = 10


def run(*arguments: str, codes: tuple[int, ...] = (0,)) -> str:
    """The output of a command; it must end with one of these exit codes. Raises DemoFailed."""
    name = f"mainstem {' '.join(arguments[:2])}"
    command = [sys.executable, "-m", "mainstem.cli.main", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, told = process.communicate(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise DemoFailed(f"{name} did not end within {SECONDS_MAX:.0f} s") from None
    finally:
        _end(process)
    if process.returncode not in codes:
        last = "\n".join((output + told).splitlines()[-LINES_SHOWN:])
        raise DemoFailed(f"{name} ended with exit code {process.returncode}\n{last}")
    return output


def _end(process: subprocess.Popen[str]) -> None:
    """Make sure that nothing is left running: asked to stop, a command ends its Spark."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
