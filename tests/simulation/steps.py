"""Plays a seed and writes down every step, to show that a seed alone decides a run, or where two plays of it part.

    python -m tests.simulation.steps role|cluster|whole|elastic|brokers SEED FILE [--garbage N]

A step is a callback that the simulated loop is given: when, and where its task stands. Behind the steps stand all files
of all disks as the run left them. Play a seed twice, under another PYTHONHASHSEED, PYTHONMALLOC or `--garbage`, and
compare the files: the first line that differs is the first thing that depends on more than the seed.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import hashlib
import itertools
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from tests.fakes.files import SimulatedFiles
from tests.fakes.simulated_loop import SimulatedLoop
from tests.harness.files_in_memory import memory
from tests.simulation.apart.run import ApartRun
from tests.simulation.cluster.run import Run as ClusterRun
from tests.simulation.elastic.run import ElasticRun
from tests.simulation.run import play as play_role
from tests.simulation.whole.run import WholeRun

ROOT = Path(__file__).parents[2]

KINDS = {"cluster": ClusterRun, "whole": WholeRun, "elastic": ElasticRun, "brokers": ApartRun}

DEPTH_MAX = 40
"""Awaits within awaits that are written down of a step."""

LINES_BEFORE = 5
"""Steps that are shown before the first that differs."""

SURROUNDINGS: Mapping[str, tuple[Mapping[str, str], int]] = {
    "one": ({"PYTHONHASHSEED": "1"}, 700),
    "other": ({"PYTHONHASHSEED": "2", "PYTHONMALLOC": "malloc"}, 5000),
}
"""The influences that a run must not depend on: the environment, and how often garbage is collected."""


class Steps:
    """Writes them into a file."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __call__(self, at_seconds: float, callback: Callable[..., object], /) -> None:
        self._file.write(f"{at_seconds:.6f} {_name_of(callback)}\n")


def _name_of(callback: Callable[..., object]) -> str:
    """The name of a callback in every process alike: where its task stands, or its name."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return " > ".join(itertools.islice(_places(task.get_coro()), DEPTH_MAX))
    return getattr(callback, "__qualname__", type(callback).__name__)


def _places(work: Any) -> Iterator[str]:
    """The place of a coroutine, and what it awaits, outermost first."""
    while work is not None:
        kind = next((it for it in ("cr", "gi", "ag") if hasattr(work, f"{it}_frame")), None)
        if kind is None:
            yield type(work).__name__
            return
        frame = getattr(work, f"{kind}_frame")
        yield f"{work.__qualname__}:{frame.f_lineno if frame is not None else 'over'}"
        work = getattr(work, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")


def write_steps(kind: str, seed: int, file: TextIO) -> None:
    """Play a seed in this process, for which this is set for good."""
    SimulatedLoop.told = Steps(file)
    with tempfile.TemporaryDirectory(dir=memory()) as directory:
        disks: list[SimulatedFiles]
        if kind == "role":
            machine = play_role(seed, Path(directory)).machine
            disks = [machine.disk1, machine.disk2]
        else:
            run = KINDS[kind](seed, Path(directory))
            file.write(f"{run.play().trace}\n")
            disks = [disk for node in run.cluster.nodes.values() for disk in (node.disk1, node.disk2)]
    for number, disk in enumerate(disks):
        for path in disk.paths():
            file.write(f"disk {number}: {path} {hashlib.sha256(disk.content(path)).hexdigest()}\n")
    file.write(f"{threading.active_count()} thread\n")


def parting(kind: str, seed: int, directory: Path) -> str:
    """Play a seed in processes of different surroundings. Returns where they part; empty: nowhere."""
    for name, (environment, garbage) in SURROUNDINGS.items():
        command = [sys.executable, "-m", "tests.simulation.steps", kind, str(seed), str(directory / name)]
        environment = {**os.environ, **environment}
        subprocess.run([*command, "--garbage", str(garbage)], env=environment, cwd=ROOT, check=True)
    with (directory / "one").open() as one, (directory / "other").open() as other:
        return first_difference(one, other)


def first_difference(one: Iterable[str], other: Iterable[str]) -> str:
    """The first lines that differ, with some before them; empty: none."""
    before: list[str] = []
    for mine, theirs in itertools.zip_longest(one, other, fillvalue="the end\n"):
        if mine != theirs:
            return f"after\n{''.join(before)}comes\n{mine}or\n{theirs}"
        before = [*before, mine][-LINES_BEFORE:]
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.steps", description=__doc__)
    parser.add_argument("kind", choices=("role", *KINDS))
    parser.add_argument("seed", type=int)
    parser.add_argument("file", type=Path)
    parser.add_argument("--garbage", type=int, default=700, help="allocations until garbage is collected; 0: never")
    options = parser.parse_args()
    gc.set_threshold(options.garbage)
    with options.file.open("w") as file:
        write_steps(options.kind, options.seed, file)


if __name__ == "__main__":
    main()
