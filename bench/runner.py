"""Holding the sessions: every repetition goes through all workloads, and within one the systems take turns.

So the repetitions of a row lie far apart, and what else the machine does in one of them shows as a spread, not as a
result. A session that fails is noted and the rest goes on: one system's limit must not cost the other's figures.
When the form's time is over, what has not begun is left out, and noted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from bench.errors import BenchError
from bench.session import Bench, Session, Stage, Workload

UNKNOWN_SECONDS = 30.0
"""The time that a session is taken to last before it was held once."""
_Held = tuple[str, str, str]


class Runner:
    """`tell` gets lines of progress, `save` is called after each workload."""

    def __init__(
        self, bench: Bench, only: Sequence[str], tell: Callable[[str], None], save: Callable[[], None]
    ) -> None:
        self._bench = bench
        self._only = only
        self._tell = tell
        self._save = save
        self._seconds: dict[_Held, float] = {}
        self._told = ""
        self._until = time.monotonic() + bench.form.seconds_max

    def run(self, workloads: Sequence[Workload]) -> None:
        """All sessions of the workloads; every value goes into the bench's results."""
        form = self._bench.form
        for repetition in range(form.repetitions):
            left_out = []
            for workload in workloads:
                title = f"{repetition + 1}/{form.repetitions}  {workload.number}: {workload.title}"
                for session in workload.sessions(form):
                    for system in session.systems:
                        if system in self._only and not self._hold(workload, session, system, title):
                            left_out.append(workload.number)
                self._save()
            if left_out:
                counted = ", ".join(f"{number} ({count})" for number, count in Counter(left_out).items())
                self._bench.results.notes.append(
                    f"repetition {repetition + 1} lacks, as {form.seconds_max:.0f} s were over, sessions of: {counted}"
                )

    def _hold(self, workload: Workload, session: Session, system: str, title: str) -> bool:
        """False when there is no time left for it."""
        held = (workload.number, session.name + session.variant + session.durability.value, system)
        begun = time.monotonic()
        if begun + self._seconds.get(held, UNKNOWN_SECONDS) > self._until:
            return False
        if title != self._told:
            self._tell(title)
            self._told = title
        what = ", ".join(filter(None, [session.name, session.durability.value, session.variant]))
        try:
            with Stage(self._bench, workload.number, session, self._bench.systems[system]) as stage:
                session.run(stage)
        except BenchError as error:
            self._bench.results.notes.append(f"{workload.number}, {what}, {system} failed: {error}")
            self._tell(f"       {what}: {system} failed: {error}")
        else:
            self._tell(f"       {what}: {system}, {time.monotonic() - begun:.0f} s")
        self._seconds[held] = time.monotonic() - begun
        return True
