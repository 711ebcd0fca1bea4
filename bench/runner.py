"""Holding the sessions: systems take turns (A B A B …), repetitions until the form's number or time is reached.

A session that fails is noted and the rest goes on: one system's limit must not cost the other's figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from bench.errors import BenchError
from bench.session import Bench, Stage, Workload


def run_workload(bench: Bench, workload: Workload, only: Sequence[str], tell: Callable[[str], None]) -> None:
    """All sessions of a workload, `only` for the systems named; every value goes into `bench.results`."""
    begun = time.monotonic()
    sessions = workload.sessions(bench.form)
    for repetition in range(bench.form.repetitions):
        repetition_begun = time.monotonic()
        for session in sessions:
            for name in session.systems:
                if name not in only:
                    continue
                session_begun = time.monotonic()
                tell(
                    f"  {repetition + 1}/{bench.form.repetitions}  {session.name}: {name} {session.variant}".rstrip()
                )
                try:
                    with Stage(bench, workload.number, session, bench.systems[name]) as stage:
                        session.run(stage)
                except BenchError as error:
                    bench.results.notes.append(f"{workload.number}, {session.name}, {name}: {error}")
                    tell(f"       failed: {error}")
                else:
                    tell(f"       {time.monotonic() - session_begun:.1f} s")
        now = time.monotonic()
        left_out = bench.form.repetitions - repetition - 1
        if left_out and now - begun + (now - repetition_begun) > bench.form.seconds_max:
            bench.results.notes.append(
                f"{workload.number}: {repetition + 1} of {bench.form.repetitions} repetitions, "
                f"to stay within {bench.form.seconds_max:.0f} s"
            )
            return
