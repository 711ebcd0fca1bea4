"""The agreed clock gives the time by which data is deleted: that of a majority's clocks, and only while these go on
evenly.

The clock of one machine may be years off: set wrongly, stepped by a correction, or lost with an empty battery. Deleting
by such a clock deletes too early. So retention and all expiry use the agreed time, under two conditions:

    agreement  the clocks of a majority of the metadata quorum lie within `BOUND_MS` of each other. Of that majority the
               earliest decides which records are old, and the latest when a record was seen: both err towards keeping
    evenness   from one look to the next the agreed time has gone on as monotonic time has, within the same bound

If one of them fails nothing is deleted; the log and a metric report it, and the clock waits. A jump that has stood for
`JUMP_SECONDS` is accepted as the time. A node alone is a majority of its own: it notices jumps while it runs, and no
more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mainstem.model import Sample
from mainstem.ports import Clock

log = logging.getLogger(__name__)

BOUND_MS = 300_000
"""The drift of unattended clocks in some months. Retention is a matter of hours; a much smaller bound would stop it on
machines without NTP, and a much larger one would delete records that much too early or late."""

JUMP_SECONDS = 24 * 3600.0
"""Long enough for an operator to read the log and set the clock; it costs a day of records more."""

STARTING_SECONDS = 60.0
"""For this long a node does not log that it does not know the others' clocks yet."""

Quorum = Callable[[], Sequence[int | None]]
"""The clocks of the metadata quorum now, this node's among them if it is a member: Unix time in ms; None: not heard
lately."""


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
    """Gives the agreed time, or None while the clocks do not agree or have jumped."""

    def __init__(self, clock: Clock, quorum: Quorum | None = None) -> None:
        """`quorum` returns the quorum's clocks; None where this node is alone."""
        self._clock = clock
        self._quorum = quorum or (lambda: [clock.now_ms()])
        self._last: tuple[AgreedTime, float] | None = None
        """The time given last, and the monotonic time of that."""
        self._found: tuple[AgreedTime, float] | None = None
        """The time a majority agreed on last, jumped or not, and the monotonic time of that."""
        self._judged: tuple[AgreedTime, float] | None = None
        """The later one of these two."""
        self._jumped_at: float | None = None
        self._told = ""
        self._began = clock.monotonic()
        self.waits = False
        """True while nothing is deleted by age."""
        self.ahead_ms = 0
        """Milliseconds by which this node's clock was ahead of the agreed time at the last look."""

    def now(self) -> AgreedTime | None:
        """The agreed time; None while the clocks do not agree, or until a jump has stood for long."""
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
        self._found = found, now
        self._judged = self._later_one()
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
        self._last = self._judged = found, now
        self._go_on()
        return found

    def steady_ms(self) -> int:
        """The agreed time of the last look plus the monotonic time since, so that a step of this node's clock changes
        nothing; before the first look, this node's clock."""
        return self._since(self._last)

    def judged_ms(self) -> int:
        """The time for judging timestamps that clients send: the steady agreed time or, if that is later, a majority's
        clocks now. When clocks that were behind are set right, every true timestamp would otherwise lie in the future
        until the jump has stood for long."""
        judged = self._judged  # as `_since`, without the call: each Produce request asks
        if judged is None:
            return self._clock.now_ms()
        return judged[0].earliest + int(1000 * (self._clock.monotonic() - judged[1]))

    def _later_one(self) -> tuple[AgreedTime, float] | None:
        """Of the time given last and the one found last, the one that is later now, and stays so: both go on alike."""
        return max((one for one in (self._last, self._found) if one is not None), key=self._since, default=None)

    def _since(self, known: tuple[AgreedTime, float] | None) -> int:
        if known is None:
            return self._clock.now_ms()
        agreed_time, at = known
        return agreed_time.earliest + int(1000 * (self._clock.monotonic() - at))

    def now_ms(self) -> int:
        """As `ports.Clock`."""
        return self.steady_ms()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def _wait(self, why: str) -> None:
        self.waits = True
        if self._last is None and self._clock.monotonic() - self._began < STARTING_SECONDS:
            return  # no other clock was heard yet
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
