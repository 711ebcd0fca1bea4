"""Remembers the damaged pages of producer files until their files are gone.

    asked    a reader met the page: other replicas are asked for its producers (`producer_mending.py`), and clients are
             told to try again meanwhile. No merge takes the page in, and no snapshot is given
    settled  a newer file has whole states of all its producers, or states that some are lost, as no replica has them:
             readers skip the page from then on

No reader skips a page that is not settled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from mainstem.model import Sample
from mainstem.ports import Clock
from mainstem.storage.state.producers.producer_files import PageDamaged

log = logging.getLogger(__name__)

ASKED_MAX = 1_024
"""Pages noted per write group, 26 producers each. Readers that need further pages meet and note them again."""


@dataclass(slots=True, eq=False)
class DamagedPage:
    group: int
    file: str
    page: int
    fault: str
    """The error that names its place."""
    applied: int
    """The block up to which its write group had applied here when it was met: the page is no younger, and whatever
    comes later is known here without it."""
    since: float
    """By monotonic time."""
    tries: int = 0
    """How often other replicas were asked."""
    settled: bool = False
    lost: int = 0
    """How many of its producers no replica knows any more."""


class DamagedPages:
    """The damaged pages of all write groups of a node, asked or settled."""

    def __init__(self, clock: Clock, groups: int) -> None:
        self._clock = clock
        self._of: list[dict[tuple[str, int], DamagedPage]] = [{} for _ in range(groups)]
        self._settled: set[tuple[str, int]] = set()
        self.news = asyncio.Event()
        """Set when a newly damaged page is met."""
        self.mended = 0
        self.lost = 0
        """How many producers were lost by damage."""

    def grow(self, groups: int) -> None:
        """From now on there are so many write groups."""
        self._of += [{} for _ in range(len(self._of), groups)]

    def met(self, group: int, applied: int, errors: Iterable[PageDamaged]) -> None:
        """Note pages of a write group's files that could not be read, while it is applied up to block `applied`."""
        pages, asked = self._of[group], len(self.asked(group))
        for error in errors:
            key = error.file, error.page
            if key not in pages and asked < ASKED_MAX:
                asked += 1
                pages[key] = DamagedPage(group, *key, str(error), applied, self._clock.monotonic())
                log.warning("%s: the other replicas of write group %d are asked for its producers", error, group)
                self.news.set()

    def is_settled(self, file: str, page: int) -> bool:
        return (file, page) in self._settled

    def asked(self, group: int) -> list[DamagedPage]:
        """The pages that are not settled, those first for which replicas were asked least."""
        return sorted((page for page in self._of[group].values() if not page.settled), key=lambda page: page.tries)

    def settle(self, page: DamagedPage, lost: int) -> None:
        """Settle a page: its producers are written to a newer file, except `lost` of them."""
        page.settled = True
        page.lost = lost
        self._settled.add((page.file, page.page))
        self.mended += not lost
        self.lost += lost
        if lost:
            log.error(
                "%s, and no replica of write group %d knows %d of its producers: they are lost. Those that go on are "
                "answered that they are unknown, and begin anew with another id", page.fault, page.group, lost,
            )  # fmt: skip
        else:
            log.warning("%s: all of its producers are known again and lie in a newer file", page.fault)

    def keep(self, group: int, files: Collection[str]) -> None:
        """Forget the pages of files that do not count any more."""
        for key in [key for key in self._of[group] if key[0] not in files]:
            del self._of[group][key]
            self._settled.discard(key)

    def seconds(self, page: DamagedPage) -> float:
        """Seconds since it was found."""
        return self._clock.monotonic() - page.since

    def noted(self) -> list[DamagedPage]:
        """The pages that wait for an answer and those that have lost producers, for operators."""
        return [page for pages in self._of for page in pages.values() if page.lost or not page.settled]

    def samples(self) -> Iterable[Sample]:
        for group in range(len(self._of)):
            yield Sample(
                "mainstem_producers_damaged_pages", "gauge",
                "Damaged pages of files of producers whose producers other replicas are asked for.",
                len(self.asked(group)), (("group", str(group)),))  # fmt: skip
        yield Sample(
            "mainstem_producers_mended_pages_total", "counter",
            "Damaged pages of files of producers whose producers are all known again.", self.mended)  # fmt: skip
        yield Sample(
            "mainstem_producers_lost_total", "counter",
            "Producers that a damaged file has lost, as no replica knows them.", self.lost)  # fmt: skip
