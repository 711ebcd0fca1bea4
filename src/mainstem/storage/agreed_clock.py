"""What time it is for whatever deletes: as a majority's clocks say, and only while they go on evenly.

The clock of one machine may be years off: set wrongly, stepped by a correction, or of a battery that has run down.
Whoever deletes by such a clock deletes too early. So retention and whatever expires ask here instead:

    agreement  the clocks of a majority of the metadata quorum lie within `BOUND_MS` of each other. Of that majority the
               earliest says what has grown old, and the latest when something was seen: both err towards keeping
    evenness   from one look to the next the agreed time has gone on as monotonic time has, within the same bound

Where one of them fails nothing is deleted: it is told, in the log and as a metric, and waited out. A jump that has
stood for `JUMP_SECONDS` is the time then. A node alone is a majority of its own: it notices jumps while it runs, and no
more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mainstem.model import Sample
from mainstem.ports import Clock

log = logging.getLogger(__name__)

BOUND_MS = 300_000
"""What clocks that nobody sets drift apart in some months. Retention is a matter of hours; much less would stop it on
machines without NTP, and much more lets records go that much too early or late."""

JUMP_SECONDS = 24 * 3600.0
"""Long enough for somebody to read the log and set the clock; a day of records more is what it costs."""

STARTING_SECONDS = 60.0
"""A node that does not know the others' clocks yet says nothing of it for so long."""

Quorum = Callable[[], Sequence[int | None]]
"""What the clocks of the metadata quorum say now, this node's among them if it is a member: Unix time in ms; None: that
one was not heard lately."""


class AgreedTime(NamedTuple):
    """In ms since the Unix epoch; true time lies between them if a majority's clocks are right."""

    earliest: int
    latest: int


def agreed(times: Sequence[int | None]) -> AgreedTime | None:
    """The earliest majority of these clocks that lies within the bound; None: there is none."""
    known = sorted(time for time in times if time is not None)
    needed = len(times) // 2 + 1
    for first in range(len(known) - needed + 1):
        earliest, latest = known[first], known[first + needed - 1]
        if latest - earliest <= BOUND_MS:
            return AgreedTime(earliest, latest)
    return None


class AgreedClock:
    """Says what time it is, or that it cannot be said."""

    def __init__(self, clock: Clock, quorum: Quorum | None = None) -> None:
        """`quorum`: None where this node is alone."""
        self._clock = clock
        self._quorum = quorum or (lambda: [clock.now_ms()])
        self._last: tuple[AgreedTime, float] | None = None
        """What was said last, and when by monotonic time."""
        self._jumped_at: float | None = None
        self._told = ""
        self._began = clock.monotonic()
        self.waits = False
        """Nothing is deleted by age now."""
        self.ahead_ms = 0
        """How far this node's clock is ahead of the agreed time, as of the last look."""

    def now(self) -> AgreedTime | None:
        """None: it is waited until the clocks agree again, or have stood for long."""
        times = self._quorum()
        found = agreed(times)
        if found is None:
            known = [time for time in times if time is not None]
            self._wait(
                f"{len(known)} of {len(times)} clocks of the metadata quorum are known here, "
                + (f"they lie {(max(known) - min(known)) / 1000:.0f} s apart, " if known else "")
                + "and no majority agrees within five minutes"
            )
            return None
        now = self._clock.monotonic()
        self.ahead_ms = self._clock.now_ms() - found.earliest
        if self._last is not None:
            expected = self._last[0].earliest + 1000 * (now - self._last[1])
            jump = found.earliest - expected
            if abs(jump) > BOUND_MS:
                if self._jumped_at is None:
                    self._jumped_at = now
                if now - self._jumped_at < JUMP_SECONDS:
                    self._wait(f"the time that a majority agrees on has jumped by {jump / 1000:+.0f} s")
                    return None
                log.warning("the time that a majority agrees on has stood for a day since it jumped: it counts now")
        self._jumped_at = None
        self._last = found, now
        self._go_on()
        return found

    def steady_ms(self) -> int:
        """What time it is for judging what clients say: the agreed time of the last look and how long ago that was, so
        that a step of this node's clock changes nothing; before the first look, this node's clock."""
        if self._last is None:
            return self._clock.now_ms()
        agreed_time, at = self._last
        return agreed_time.earliest + int(1000 * (self._clock.monotonic() - at))

    def now_ms(self) -> int:
        """As `ports.Clock`."""
        return self.steady_ms()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def _wait(self, why: str) -> None:
        self.waits = True
        if self._last is None and self._clock.monotonic() - self._began < STARTING_SECONDS:
            return  # nobody was heard yet
        if why.partition(" ")[0] != self._told.partition(" ")[0]:
            log.error(
                "%s: nothing is deleted by age until the clocks agree, or for a day after a jump. Set the clocks right "
                "(see mainstem_clock_ahead_seconds on each node), or restart the nodes if the new time is right",
                why,
            )
        self._told = why

    def _go_on(self) -> None:
        if abs(self.ahead_ms) > BOUND_MS:
            why = f"this node's clock is {self.ahead_ms / 1000:+.0f} s off what a majority agrees on; set it right"
            if not self._told.startswith("this"):
                log.error("%s", why)
            self._told = why
        elif self._told:
            log.info("the clocks agree again")
            self._told = ""
        self.waits = False

    def samples(self) -> Iterable[Sample]:
        yield Sample(
            "mainstem_clock_ahead_seconds", "gauge",
            "How far this node's clock is ahead of what a majority agrees on, when retention last asked",
            self.ahead_ms / 1000)  # fmt: skip
        yield Sample(
            "mainstem_clock_waits", "gauge",
            "1 while nothing is deleted by age, because clocks disagree or have jumped", int(self.waits))  # fmt: skip
