"""Keeps in a file how tests ended in several runs: a suite may be run in pieces, and tests that do not always
end alike more than once. `python -m bench.interop.suites.kept FILE` prints the table of it.

The file has one line of JSON for each test of each run.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.interop.suites.suite import Outcome, Outcomes, Suite


class Line(NamedTuple):
    suite: str
    version: str
    system: str
    test: str
    outcome: Outcome


Rounds = Mapping[str, Sequence[Outcome]]
"""By test its outcomes, run after run."""


def add(file: Path, suite: Suite, system: str, outcomes: Outcomes) -> None:
    with file.open("a") as kept:
        for test, outcome in outcomes.items():
            kept.write(json.dumps([suite.name, suite.version, system, test, outcome.value]) + "\n")


def read(file: Path) -> Iterable[Line]:
    for text in file.read_text().splitlines():
        suite, version, system, test, outcome = json.loads(text)
        yield Line(suite, version, system, test, Outcome(outcome))


def rounds_of(lines: Iterable[Line]) -> Mapping[str, Mapping[str, Rounds]]:
    """By suite and version, then by system."""
    found: dict[str, dict[str, dict[str, list[Outcome]]]] = {}
    for line in lines:
        systems = found.setdefault(f"{line.suite} {line.version}", {})
        systems.setdefault(line.system, {}).setdefault(line.test, []).append(line.outcome)
    return found


def verdict(outcomes: Sequence[Outcome]) -> str:
    """Of all runs of a test."""
    if len(set(outcomes)) == 1:
        return outcomes[0].value
    return f"passed {outcomes.count(Outcome.PASSED)} of {len(outcomes)}"


def table(found: Mapping[str, Mapping[str, Rounds]]) -> str:
    """Markdown: for each suite and system how many tests ended how, then those that failed or that differ."""
    lines = ["| suite | system | runs | passed | now and then | failed | skipped |", "| --- " * 7 + "|"]
    told = {"passed": "passed", "failed": "failed", "skipped": "skipped"}
    for suite, systems in found.items():
        for system, rounds in systems.items():
            counts = Counter(told.get(verdict(outcomes), "now and then") for outcomes in rounds.values())
            runs = max(len(outcomes) for outcomes in rounds.values())
            numbers = (runs, *(counts[kind] for kind in ("passed", "now and then", "failed", "skipped")))
            lines.append(f"| {suite} | {system} | {' | '.join(map(str, numbers))} |")
    lines += ["", "| suite | test | Kafka | Mainstem |", "| --- | --- | --- | --- |"]
    for suite, systems in found.items():
        for test in sorted({test for rounds in systems.values() for test in rounds}):
            cells = [
                verdict(systems[system][test]) if test in systems.get(system, {}) else "did not run"
                for system in ("kafka", "mainstem")
            ]
            if len(set(cells)) > 1 or cells[0] not in (Outcome.PASSED.value, Outcome.SKIPPED.value):
                lines.append(f"| {suite} | {test} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(rounds_of(read(Path(sys.argv[1])))))
