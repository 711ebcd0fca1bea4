"""The measurements: every value of every repetition, by workload, row, system and metric."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """The key of a comparison: one load at one durability. The same for all systems."""

    workload: str
    title: str
    durability: str = ""
    series: str = ""
    """Rows of one series differ in `queues` alone; plots join them by a line."""
    queues: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    median: float
    least: float
    most: float
    count: int


class Results:
    """Grows while the bench runs. `facts` says where and with what; `notes` what went wrong or was left out."""

    def __init__(self, facts: Mapping[str, Any] | None = None) -> None:
        self.facts: dict[str, Any] = dict(facts or {})
        self.notes: list[str] = []
        self._values: dict[Row, dict[str, dict[str, list[float]]]] = {}

    def add(self, row: Row, system: str, figures: Mapping[str, float]) -> None:
        """One repetition's figures."""
        metrics = self._values.setdefault(row, {}).setdefault(system, {})
        for metric, value in figures.items():
            metrics.setdefault(metric, []).append(value)

    def put(self, row: Row, system: str, figures: Mapping[str, list[float]]) -> None:
        """All repetitions' figures."""
        self._values.setdefault(row, {})[system] = dict(figures)

    @property
    def rows(self) -> list[Row]:
        """In the order in which they were first measured."""
        return list(self._values)

    def of(self, workload: str) -> list[Row]:
        return [row for row in self._values if row.workload == workload]

    def find(self, workload: str, title: str, durability: str = "") -> Row | None:
        for row in self.of(workload):
            if row.title == title and durability in ("", row.durability):
                return row
        return None

    def systems(self, row: Row) -> list[str]:
        return list(self._values[row])

    def metrics(self, row: Row) -> set[str]:
        return {metric for figures in self._values[row].values() for metric in figures}

    def spread(self, row: Row | None, system: str, metric: str) -> Spread | None:
        """None where it was not measured."""
        if row is None:
            return None
        values = self._values.get(row, {}).get(system, {}).get(metric)
        if not values:
            return None
        return Spread(statistics.median(values), min(values), max(values), len(values))

    def values(self, row: Row, system: str, metric: str) -> list[float]:
        """Of all repetitions, in their order."""
        return list(self._values[row].get(system, {}).get(metric, ()))

    def median(self, row: Row | None, system: str, metric: str) -> float | None:
        spread = self.spread(row, system, metric)
        return None if spread is None else spread.median

    def ratio(self, row: Row | None, metric: str, system: str, peer: str) -> float | None:
        """Of medians."""
        mine, theirs = self.median(row, system, metric), self.median(row, peer, metric)
        return None if mine is None or not theirs else mine / theirs

    def save(self, path: Path) -> None:
        rows = [
            {**dataclasses.asdict(row), "system": system, "figures": metrics}
            for row, systems in self._values.items()
            for system, metrics in systems.items()
        ]
        document = {"facts": self.facts, "notes": self.notes, "rows": rows}
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(document, indent=1) + "\n")
        unfinished.replace(path)


def load_results(path: Path) -> Results:
    """The file that `Results.save` wrote."""
    document = json.loads(path.read_text())
    results = Results(document["facts"])
    results.notes = document["notes"]
    names = [field.name for field in dataclasses.fields(Row)]
    for entry in document["rows"]:
        row = Row(**{name: entry[name] for name in names})
        results.put(row, entry["system"], entry["figures"])
    return results
