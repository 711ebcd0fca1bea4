"""The truth about what share groups are given, as an all-knowing observer writes it down (Q).

The observer sees which records the machine of a window gives to whom, and hears what members are told and what they
answer. A machine that begins to serve a partition of `__share_group_state` is a reign; records that one has given out
and that nobody has acknowledged are anybody's in the next reign, as with Kafka. So

- within a reign a record is given to nobody while another member has it, and each time it was given out counts;
- in the next one it was given out as often as the log says, at least;
- nobody gets a record more often than the limit says;
- who has asked when a record was known to be done is not given it, by whichever reign;
- who has asked when a later reign had given a record to another is not given it by an earlier one;
- a member may acknowledge what it has, while it has it, and nothing that it lost with its reign;
- what was answered to be acknowledged, archived or released stands in the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.oracle import require
from tests.simulation.share_groups.windows import ShareLogs

from mainstem.broker.share_groups.records import WindowKey
from mainstem.broker.share_groups.share_partition import Acquired
from mainstem.protocol.messages.share_fetch import ACCEPT, RELEASE, RENEW


class Grant(NamedTuple):
    """A record is given to a member, by the machine; whether the member ever hears of it is another matter."""

    member_id: str
    deliveries: int
    reign: int
    at: float


@dataclass
class Hold:
    """A record, as the member knows that has it."""

    member_id: str
    deliveries: int
    grant: Grant
    until: float
    """The record is the member's until then at least."""
    is_connected: Callable[[], bool]
    """Whether all connections of the member are there: with the end of one the node that it led to gives back what the
    member has of partitions that it leads, by whichever node the member was told that it has it."""


@dataclass
class Window:
    """Of a group over a partition, by offset."""

    grants: dict[int, list[Grant]] = field(default_factory=dict)
    holds: dict[int, Hold] = field(default_factory=dict)
    done: dict[int, float] = field(default_factory=dict)
    """When a member was told that a record is acknowledged, or archived."""
    released: dict[int, tuple[float, int]] = field(default_factory=dict)
    """When a member was told that it has given a record back, and how often that had been given out."""


class Reign(NamedTuple):
    number: int
    log: int
    """The queue."""
    began: float


class Deliveries:
    """Raises `Violation`, of Q, where anything is not as it must be."""

    def __init__(self, logs: ShareLogs, deliveries_max: int, seconds: Callable[[], float]) -> None:
        """`seconds`: the simulated time."""
        self.logs = logs
        self.seen: Counter[str] = Counter()
        """How often what happened."""
        self._deliveries_max = deliveries_max
        self._seconds = seconds
        self._windows: dict[WindowKey, Window] = {}
        self._reigns: dict[int, list[Reign]] = {}
        """Per log, the oldest first."""

    def window(self, key: WindowKey) -> Window:
        return self._windows.setdefault(key, Window())

    # --- from the nodes -----------------------------------------------------------------------------------

    def served(self, log: int) -> Reign:
        """A machine has loaded this log, and serves its windows from now on."""
        reigns = self._reigns.setdefault(log, [])
        reigns.append(Reign(sum(map(len, self._reigns.values())) + 1, log, self._seconds()))
        self.seen["reigns"] += 1
        return reigns[-1]

    def granted(self, reign: Reign, key: WindowKey, member_id: str, acquired: Iterable[Acquired]) -> None:
        """The machine of this reign gives records to a member."""
        window = self.window(key)
        current = self._reigns[reign.log][-1] is reign
        for run in acquired:
            for offset in range(run.first, run.last + 1):
                grant = Grant(member_id, run.deliveries, reign.number, self._seconds())
                if current and self.logs.is_wanted(key):
                    self._check_grant(_named(key, offset), key, window, offset, grant)
                window.grants.setdefault(offset, []).append(grant)
                self.seen["given out"] += 1
                self.seen["given out again"] += run.deliveries > 1

    def _check_grant(self, what: str, key: WindowKey, window: Window, offset: int, grant: Grant) -> None:
        hold = window.holds.get(offset)
        held = hold is not None and hold.grant.reign == grant.reign and self._is_running(hold)
        require(
            not held or hold is None,
            f"{what} is delivered to two at once: {grant.member_id} gets it, which "
            f"{hold.member_id if hold else None} has for longer",
            "Q",
        )
        require(
            grant.deliveries <= self._deliveries_max,
            f"{what} is given out the {grant.deliveries}th time; the limit is {self._deliveries_max}",
            "Q",
        )
        logged = self.logs.windows.get(key)
        standing = logged.at(offset) if logged is not None else None
        require(
            logged is None or not logged.is_done(offset),
            f"{what} is given to {grant.member_id}: an acknowledgement is forgotten, the log has it as {standing}",
            "Q",
        )
        before = max((one.deliveries for one in window.grants.get(offset, ()) if one.reign == grant.reign), default=0)
        counted = max(before, standing.deliveries if standing is not None else 0)
        require(
            grant.deliveries > counted,
            f"{what} is given out the {grant.deliveries}th time: a delivery count is lost, it was {counted} before",
            "Q",
        )

    def _is_running(self, hold: Hold) -> bool:
        return hold.is_connected() and self._seconds() < hold.until

    # --- from the members ---------------------------------------------------------------------------------

    def told(
        self, what: str, key: WindowKey, member_id: str, run: Acquired, asked_at: float, lock_seconds: float,
        is_connected: Callable[[], bool],
    ) -> None:  # fmt: skip
        """A member is told that it has these records; it asked for some at that time."""
        window, wanted = self.window(key), self.logs.is_wanted(key)
        for offset in range(run.first, run.last + 1):
            named = f"{what}: {_named(key, offset)}"
            grant = next(
                (
                    one
                    for one in reversed(window.grants.get(offset, ()))
                    if (one.member_id, one.deliveries) == (member_id, run.deliveries) and one.at >= asked_at
                ),
                None,
            )
            if grant is None:
                require(not wanted, f"{named}: {member_id} is told that it has it, nobody gave it out", "Q")
                continue
            if wanted:
                self._check_told(named, window, offset, grant, asked_at)
            window.holds[offset] = Hold(member_id, run.deliveries, grant, asked_at + lock_seconds, is_connected)
            self.seen["told"] += 1

    def _check_told(self, what: str, window: Window, offset: int, grant: Grant, asked_at: float) -> None:
        done = window.done.get(offset)
        require(
            done is None or done > asked_at,
            f"{what}: an acknowledgement is forgotten: {grant.member_id} gets what was done at {done}, it asked at "
            f"{asked_at}",
            "Q",
        )
        released_at, deliveries = window.released.get(offset, (asked_at, 0))
        require(
            released_at >= asked_at or grant.deliveries > deliveries,
            f"{what}: a delivery count is lost: {grant.member_id} gets it the {grant.deliveries}th time, it was given "
            f"back after {deliveries}",
            "Q",
        )
        hold = window.holds.get(offset)
        require(
            hold is None or not hold.grant.reign > grant.reign or hold.grant.at > asked_at
            or not self._is_running(hold),
            f"{what} is delivered to two at once: {grant.member_id} got it from an earlier reign when "
            f"{hold.member_id if hold else None} had it",
            "Q",
        )  # fmt: skip

    def lets_go(self, key: WindowKey, member_id: str, offset: int) -> int:
        """A member says what becomes of a record, or has no session any more: from now on it may be another's. The
        deliveries of which the member knows."""
        hold = self.window(key).holds.get(offset)
        if hold is None or hold.member_id != member_id:
            return 0
        del self.window(key).holds[offset]
        return hold.deliveries

    def session_over(self, group: str, member_id: str) -> None:
        """A session of a member is over, at whichever node: what it has may be another's by now."""
        for key, window in self._windows.items():
            for hold in window.holds.values():
                if key.group_id == group and hold.member_id == member_id:
                    hold.until = min(hold.until, self._seconds())

    def asks(self, key: WindowKey, offset: int, kind: int) -> None:
        """A member is about to acknowledge a record, in one of Kafka's ways."""
        if kind == ACCEPT:
            self.logs.accepted.setdefault(key, set()).add(offset)
        elif kind not in (RELEASE, RENEW):
            self.logs.rejected.setdefault(key, set()).add(offset)

    def answered(
        self, what: str, key: WindowKey, member_id: str, offset: int, kind: int, deliveries: int, asked_at: float
    ) -> None:
        """A member that asked at that time is told that this has become of a record."""
        if not self.logs.is_wanted(key):
            return
        window, logged = self.window(key), self.logs.windows[key]
        what = f"{what}: {_named(key, offset)}"
        reigns = [reign for reign in self._reigns[logged.log] if reign.began < asked_at]
        mine = max((one.reign for one in window.grants.get(offset, ()) if one.member_id == member_id), default=0)
        require(
            not reigns or mine >= reigns[-1].number,
            f"{what}: {member_id} acknowledges what it had from reign {mine}: its lock was lost at a failover, "
            f"{reigns[-1].number if reigns else 0} serves the window",
            "Q",
        )
        if kind == RENEW:
            return
        self.seen["answered"] += 1
        if kind != RELEASE:
            window.done[offset] = self._seconds()
            require(
                logged.is_done(offset),
                f"{what}: {member_id} is told that it is done; the log has it as {logged.at(offset)}",
                "Q",
            )
        else:
            window.released[offset] = self._seconds(), deliveries
            standing = logged.at(offset)
            require(
                logged.is_done(offset) or standing.deliveries >= deliveries,
                f"{what}: a delivery count is lost: {member_id} gives it back after {deliveries}, the log says "
                f"{standing}",
                "Q",
            )

    def refused(self, what: str, key: WindowKey, member_id: str, holds: Mapping[int, Hold]) -> None:
        """A member is told that it does not have all of these records, which it wanted to acknowledge."""
        if not self.logs.is_wanted(key) or key not in self.logs.windows:
            return
        self.seen["refused"] += len(holds)
        logged, log_start = self.logs.windows[key], self.logs.queue_of(key).log_start
        reign = self._reigns[logged.log][-1].number
        require(
            not all(
                hold.grant.reign == reign and self._is_running(hold) and offset >= log_start
                for offset, hold in holds.items()
            ),
            f"{what}: {_named(key, min(holds))}: {member_id} has lost its lock, which ran still",
            "Q",
        )

    def hold(self, key: WindowKey, offset: int) -> Hold | None:
        return self.window(key).holds.get(offset)

    def renewed(self, key: WindowKey, member_id: str, offset: int, until: float) -> None:
        hold = self.window(key).holds.get(offset)
        if hold is not None and hold.member_id == member_id:
            hold.until = max(hold.until, until)
            self.seen["renewed"] += 1


def _named(key: WindowKey, offset: int) -> str:
    return f"share group {key.group_id}: record {offset} of partition {key.partition} of {key.topic_id}"
