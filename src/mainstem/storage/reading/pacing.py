"""Paces background work by publish latency: catch-up reads and the split go as fast as publishing does not feel them.

The write loop reports for every turn how long its oldest batch waited until it was written (`committed`). From these
times, in windows of `WINDOW_SECONDS`, the pacing derives the pace:

    idle ──TURNS_MIN turns──▶ calm ──a window in which what went before fades, one that is "undisturbed"──▶ paced
     ▲                         ▲                                                                            │
     └── no or few turns       └─────────────────────────── every CALM_EVERY_SECONDS ───────────────────────┘
         (from anywhere)

The pacing compares the newest windows with background work to those without in two ways. It compares the medians of
their high percentiles, the 90th to the 99th by how many turns a window has: more than `slowdown_max` times the
undisturbed one is too slow. (A median, since other work on the machine also makes single windows slow, which is not the
reader's doing.) And it compares how many of them had a stall, a commit more than `STALL` times slower than the
undisturbed percentile: such delays are too rare to show in it. When commits are too slow, or a window has a stall and
stalls are more frequent beside background work than without, the rate falls by `SLOWER`. Otherwise it rises, by
`FASTER` until it was too high for the first time, by `BOLDER` from then on, so that it is too high only now and then.
While no producer publishes, background work is not held at all; the rate is kept for `KEPT_SECONDS`.

Bounds: a rate never falls below what is configured, nor below the `least` its caller states, so background work always
ends; a calm window is at most `WINDOW_SECONDS_MAX` long. Every kind of work has a lane of its own, each with the same
rate. If publishing feels even the least rate, the pacing divides it among the kinds of work under way: upkeep and
copies between nodes, which can wait, get a fixed part each (`SHARES_MIN`), and the other kinds share the rest in even
parts, none below `SHARE_MIN`. Each kind comes back to the whole of it before the rate rises again. Within a lane,
callers go in the order of asking, so that readers share it evenly. No I/O; the clock is given.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from statistics import fmean as mean
from statistics import median

from mainstem.model import Sample
from mainstem.ports import Clock

WINDOW_SECONDS = 0.1
"""Long enough for some ten commits under little load, short enough to slow down before a hundred are late."""

WINDOW_SECONDS_MAX = 0.5
"""A window with fewer than `SAMPLES_MIN` turns is prolonged up to this…"""

SAMPLES_MIN = 10
"""…and judged by the turns it has then. Fewer than ten have no 90th percentile."""

QUANTILE = 0.9
"""The median does not show the delays that hurt publishers first…"""

SLOWEST = 5
"""…and of a window with many turns neither does that: it is judged by the one that so many were slower than. With fewer
than that it would be an outlier."""

IDLE_SECONDS = 0.25
"""Without a turn for this long no producer publishes: twenty turns a second, at random, pause as long once in 150
turns…"""

TURNS_MIN = 5
"""…nor with fewer in a prolonged window: a commit of the splitter's own is no load."""

CALM_EVERY_SECONDS = 2.0
"""How often the undisturbed latency is measured anew. That takes two windows (in the first, work under way fades): it
costs background work a tenth, and follows a load that changes."""

WINDOWS_KEPT = 7
"""Calm ones: the newest quarter of a minute; others: the newest second."""

STALL = 4.0
"""Usual commits vary by less than that; a commit that waits for other work of the disk takes much longer."""

STALLS_KEPT = 40
"""Windows remembered with or without a stall: with work, the newest four seconds."""

SLOWER = 0.7
FASTER = 1.15
BOLDER = 1.03
"""Factors per window. `BOLDER` makes up for one `SLOWER` in twelve: the rate is too high in one window of thirteen, and
most of these are fine but for one commit."""

START_BYTES_PER_SECOND = 64 << 20
"""The rate when publishing starts: less than two cores had to spare at half load, as measured."""

KEPT_SECONDS = 60.0
"""For so long the rate that was found outlives a pause in publishing. Producers that pause for a second would else have
the rate at the start each time, and three times that in the next second."""

MOST_BYTES_PER_SECOND = 4 << 30
"""No disk read through one thread is faster; a bound so that the rate comes down again in a second."""

STEP_SECONDS = 0.05
"""Longest sleep before the rate is looked at again."""


class Lane(enum.Enum):
    """The kinds of background work. The value is the metrics' label."""

    DISK = "disk"
    """Catch-up reads, by the bytes read from a disk."""
    SERVE = "serve"
    """Catch-up reads, by the bytes handed to readers."""
    SPLIT = "split"
    """The split of the journal, by its bytes."""
    UPKEEP = "upkeep"
    """Merges, compactions and uploads by the splitter, by the bytes of their files."""
    COPY = "copy"
    """Runs copied from node to node, by their bytes, at both ends."""
    SCRUB = "scrub"
    """Segments and runs read to look for rot, by their bytes."""


UPKEEP_SHARE_MIN = 0.25
"""A split may wait for a task of upkeep: with 8 MiB a second, one of 64 MiB takes eight seconds."""

COPY_SHARE_MIN = 0.5
"""A replica that is lost is missed for as long as its copy takes: 10 GiB take eleven minutes with 16 MiB a second, less
than the quarter of an hour in which its node may still come back. Merges may wait for longer."""

SHARES_MIN = {Lane.UPKEEP: UPKEEP_SHARE_MIN, Lane.COPY: COPY_SHARE_MIN}
"""By lane that can wait: the least part of the least rate that it gets."""

SHARE_MIN = 0.25
"""The same of any other lane, beside however many. A reader of the past gets 8 MiB a second."""

ACTIVE_SECONDS = 0.5
"""A lane that was asked for nothing for so long leaves its part to others. The split asks some times a second."""


class Pacing:
    """Paces the background work of one node. `slowdown_max` 0 turns it off: no work is ever held."""

    def __init__(
        self,
        clock: Clock,
        *,
        slowdown_max: float,
        bytes_per_second_min: int,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._slowdown_max = slowdown_max
        self._least = float(bytes_per_second_min)
        self.bytes_per_second = float(max(START_BYTES_PER_SECOND, bytes_per_second_min))
        """Bytes a second of each lane, while producers publish."""
        self.upkeep_share = 1.0
        """Of these, in the lane of upkeep, and in others down to their own least part (`_share_min`); less than 1 while
        the rate is the least there is."""
        self._undisturbed: deque[float] = deque(maxlen=WINDOWS_KEPT)
        self._disturbed: deque[float] = deque(maxlen=WINDOWS_KEPT)
        self._stalls_undisturbed: deque[bool] = deque(maxlen=STALLS_KEPT)
        self._stalls_disturbed: deque[bool] = deque(maxlen=STALLS_KEPT)
        self._bold = True
        """True until the rate was too high for the first time."""
        self._newest = -IDLE_SECONDS
        """When the last turn was reported."""
        self._loaded_at = -KEPT_SECONDS
        """When the newest window with load ended."""
        self._began = 0.0
        self._samples: list[float] = []
        self._loaded = False
        self._worked = False
        """True when background work was done in this window."""
        self.calm = False
        """True while background work is held in this window."""
        self._worked_before = False
        """True when background work was done in the window before, and may still delay commits."""
        self._calm_at = 0.0
        """When the next calm window is due."""
        self._lanes = {lane: _Lane() for lane in Lane}
        self._windows_slow = 0

    # --- what the write loop tells ------------------------------------------------------------------------

    def committed(self, seconds: float) -> None:
        """Take note of a written turn, whose oldest batch waited this long."""
        now = self._clock.monotonic()
        if now - self._newest >= IDLE_SECONDS:
            self._began, self._samples, self._loaded = now, [], False
        self._newest = now
        self._samples.append(seconds)
        elapsed = now - self._began
        if not self._loaded:
            if elapsed < WINDOW_SECONDS_MAX and len(self._samples) >= TURNS_MIN:
                self._begin_load(now)
            elif elapsed >= WINDOW_SECONDS_MAX:
                self._began, self._samples = now, []
        elif elapsed >= WINDOW_SECONDS and (len(self._samples) >= SAMPLES_MIN or elapsed >= WINDOW_SECONDS_MAX):
            self._judge(now)

    @property
    def idle(self) -> bool:
        """Whether no producer publishes, so that background work is not held."""
        if not self._loaded or not self._slowdown_max:
            return True
        return self._clock.monotonic() - self._newest >= IDLE_SECONDS

    @property
    def undisturbed_seconds(self) -> float:
        """Seconds that commits take without background work; 0 until that is known."""
        return median(self._undisturbed) if self._undisturbed else 0.0

    def _begin_load(self, now: float) -> None:
        for kept in (self._undisturbed, self._disturbed, self._stalls_undisturbed, self._stalls_disturbed):
            kept.clear()
        if now - self._loaded_at >= KEPT_SECONDS:
            self._bold = True
            self.upkeep_share = 1.0
            self.bytes_per_second = max(float(START_BYTES_PER_SECOND), self._least)
        self._began, self._samples = now, []
        self._loaded = self.calm = self._worked_before = True
        self._worked = False

    def _judge(self, now: float) -> None:
        """End the window: choose the next state, and steer the rate."""
        if len(self._samples) < TURNS_MIN:
            self._began, self._samples, self._loaded = now, [], False
            return
        self._loaded_at = now
        self._samples.sort()
        count = len(self._samples)
        value, worst = self._samples[max(int(count * QUANTILE), count - 1 - SLOWEST)], self._samples[-1]
        stalled = worst > STALL * (self.undisturbed_seconds or value)
        if not self._worked:
            if not self._worked_before:
                self._undisturbed.append(value)
                self._stalls_undisturbed.append(stalled)
                self.calm, self._calm_at = False, now + CALM_EVERY_SECONDS
        elif self._undisturbed and not self.calm:
            self._disturbed.append(value)
            self._stalls_disturbed.append(stalled)
            self._steer(stalled)
            self.calm = now >= self._calm_at
        self._worked_before, self._worked = self._worked, False
        self._began, self._samples = now, []

    def _steer(self, stalled: bool) -> None:
        """Set the rate after a window with background work."""
        slow = median(self._disturbed) > self.undisturbed_seconds * self._slowdown_max
        # half a stall more than was seen: calm windows are few
        undisturbed = (sum(self._stalls_undisturbed) + 0.5) / (len(self._stalls_undisturbed) + 1)
        if stalled and mean(self._stalls_disturbed) > undisturbed * self._slowdown_max:
            slow = True
        if slow:
            self._windows_slow += 1
            self._bold = False
        if slow and self.bytes_per_second <= self._least:
            self.upkeep_share = max(self.upkeep_share * SLOWER, UPKEEP_SHARE_MIN)
            return
        if not slow and self.upkeep_share < 1:
            self.upkeep_share = min(self.upkeep_share * BOLDER, 1.0)
            return
        rate = self.bytes_per_second * (SLOWER if slow else FASTER if self._bold else BOLDER)
        self.bytes_per_second = min(max(rate, self._least), float(MOST_BYTES_PER_SECOND))

    # --- what background work asks ------------------------------------------------------------------------

    async def take(self, lane: Lane, size: int, *, least: float = 0.0) -> bool:
        """Return when `size` bytes of work may be done; the result says whether no producer publishes. The caller gets
        at least `least` bytes a second, however slow commits are."""
        state = self._lanes[lane]
        state.asked_at = self._clock.monotonic()
        await asyncio.sleep(0)  # between two pieces of background work all others are served
        if self.idle:
            state.bytes += size
            return True
        async with state.turn:  # callers go in the order of asking
            began = self._clock.monotonic()
            while (seconds := self._hold(state)) > 0:
                await self._sleep(seconds)
            now = self._clock.monotonic()
            state.waited_seconds += now - began
            share = max(self.upkeep_share, self._share_min(lane, now))
            rate = max(self.bytes_per_second * share, least)
            state.paid_until = max(state.paid_until, now - STEP_SECONDS) + size / rate
            state.bytes += size
            self._worked = True
        return False

    def _share_min(self, lane: Lane, now: float) -> float:
        """The part of the least rate that a lane gets however slow commits are."""
        if lane in SHARES_MIN:
            return SHARES_MIN[lane]
        active = {lane, *(each for each, state in self._lanes.items() if state.is_active(now))}
        kinds = active - SHARES_MIN.keys()
        if Lane.DISK in kinds:  # the same bytes as those that are served
            kinds = kinds - {Lane.DISK} | {Lane.SERVE}
        left = 1.0 - sum(SHARES_MIN[each] for each in active & SHARES_MIN.keys())
        return max(left / len(kinds), SHARE_MIN)

    def took(self, lane: Lane, size: int) -> None:
        """Count work that was done within a turn of the event loop while no producer publishes."""
        self._lanes[lane].bytes += size

    def _hold(self, state: _Lane) -> float:
        """How long to sleep before looking again; 0: go on."""
        if self.idle:
            return 0.0
        now = self._clock.monotonic()
        if self.calm:
            return max(0.001, min(STEP_SECONDS, WINDOW_SECONDS - (now - self._began)))
        return min(STEP_SECONDS, max(0.0, state.paid_until - now))

    def samples(self) -> Iterable[Sample]:
        rate = 0.0 if self.idle else self.bytes_per_second
        yield Sample(
            "mainstem_pacing_bytes_per_second", "gauge",
            "Bytes a second of each lane of background work; 0: no producer publishes, none is held", rate)  # fmt: skip
        yield Sample(
            "mainstem_pacing_upkeep_share", "gauge",
            "The rate of the lane of upkeep, as a part of the others'", self.upkeep_share)  # fmt: skip
        yield Sample(
            "mainstem_pacing_undisturbed_seconds", "gauge",
            "90th percentile of commits without background work; 0: not known",
            self.undisturbed_seconds)  # fmt: skip
        yield Sample(
            "mainstem_pacing_slow_windows_total", "counter",
            "Windows in which background work slowed commits too much", self._windows_slow)  # fmt: skip
        for lane, state in self._lanes.items():
            label = (("lane", lane.value),)
            yield Sample("mainstem_pacing_bytes_total", "counter", "Background work, by lane", state.bytes, label)
            yield Sample(
                "mainstem_pacing_waited_seconds_total", "counter",
                "Time background work was held, by lane", state.waited_seconds, label)  # fmt: skip


class _Lane:
    __slots__ = ("asked_at", "bytes", "paid_until", "turn", "waited_seconds")

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.asked_at = -ACTIVE_SECONDS
        self.paid_until = 0.0
        self.bytes = 0
        self.waited_seconds = 0.0

    def is_active(self, now: float) -> bool:
        return self.turn.locked() or now - self.asked_at < ACTIVE_SECONDS
