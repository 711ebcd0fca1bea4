"""Notes the files that cannot be read as they should: missing, cut short, or with bytes that fail their checksums.

A reader that meets such a file notes it here and answers for that one read. The file stays in the manifest, which
proves that the data was there. The repair takes the note back when it finds the file whole again, or has made it so
(`file_repair`); until then log, metric and `mainstem split status` name it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from mainstem.model import Sample
from mainstem.ports import Clock
from mainstem.storage.errors import OutOfReach

log = logging.getLogger(__name__)


class FileDamage(NamedTuple):
    """A damaged file and the first error that a reader met."""

    name: str
    reason: str
    """The first error met; names file and place."""
    since_ms: int


class DamagedFiles:
    """The notes, at most as many as files in the manifest: `counts` says whether a name is in it."""

    def __init__(self, clock: Clock, counts: Callable[[str], bool]) -> None:
        self._clock = clock
        self._counts = counts
        self._noted: dict[str, FileDamage] = {}
        self.noted = asyncio.Event()
        """Set with every new note; the repair clears it."""
        self.met = 0
        """Reads that met damage since the start."""

    def __contains__(self, name: str) -> bool:
        return name in self._noted

    def __len__(self) -> int:
        return len(self._noted)

    def all(self) -> list[FileDamage]:
        """The current notes, the oldest first."""
        for name in [name for name in self._noted if not self._counts(name)]:
            del self._noted[name]
        return list(self._noted.values())

    def note(self, name: str, error: Exception) -> None:
        """Note a file that could not be read. The log reports it once, until it is whole again. A file out of reach is
        not noted: it may be whole."""
        if isinstance(error, OutOfReach) or not self._counts(name):
            return
        self.met += 1
        if name not in self._noted:
            log.error("run %s is damaged or missing, all others are served: %s", name, error)
            self._noted[name] = FileDamage(name, str(error), self._clock.now_ms())
            self.noted.set()

    def whole_again(self, name: str, how: str) -> None:
        if self._noted.pop(name, None) is not None:
            log.warning("run %s is whole again: %s", name, how)

    def samples(self) -> Iterable[Sample]:
        yield Sample(
            "mainstem_queue_store_damaged_files", "gauge", "Files known to be damaged or missing.", len(self.all())
        )
        yield Sample(
            "mainstem_queue_store_damage_met_total",
            "counter",
            "Reads that came upon a damaged or missing run.",
            self.met,
        )
