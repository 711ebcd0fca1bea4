"""The truth about which member has which partition, as the members themselves see it (H).

A member has a partition from when it is told so until it gives it up, is told that it is no member, or has heard
nothing for as long as its session lasts. An answer proves that its sender was a member when it asked, if the node that
gave it has coordinated the group ever since: a node that coordinates it no more may go on answering for a while, in
Kafka as here.

- A partition has one member at a time, whichever protocols they speak, and whatever the group becomes meanwhile.
- A member that has lost a partition to another one commits no offset of it, by the epoch or generation in which it
  had it.
- A member whose session runs is a member, whichever timers the group had before it changed its protocol, and whoever
  coordinates it by now.
- Epochs, and generations, of a group go on from those that its members were told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.oracle import require
from tests.simulation.whole.client import Partition

from mainstem.broker.machines.coordinator_topic import coordinator_partition_of

CLASSIC, CONSUMER = "classic", "consumer"
"""The protocols, of groups and of members."""


class Reign(NamedTuple):
    node_id: int
    began: float


@dataclass(eq=False)
class Membership:
    """Of one client in a group, from its join until it has left or was fenced."""

    group: str
    protocol: str
    session_seconds: float
    member_id: str = ""
    epoch: int = -1
    """The generation, for a classic member."""
    until: float = 0.0
    """It is a member until then at least."""
    reign: Reign | None = None
    """The newest in which it was told that it is one."""
    owned: dict[Partition, str] = field(default_factory=dict)
    """The partitions that it has, and of which kind the group was when it got each."""


class Told(NamedTuple):
    membership: Membership
    at: float


class Known(NamedTuple):
    """A member, as the coordinator knows it while its session runs."""

    until: float
    told: Sequence[tuple[float, int]]
    """When the member was told of which epochs."""


class EpochLine:
    """The epochs of one group go on from those of the members that there are."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._told: dict[Membership, list[tuple[float, int]]] = {}
        self._fenced: list[Known] = []
        """Those that do not know it themselves: their epochs were over."""

    def told(self, membership: Membership, joins: bool, asked_at: float, epoch: int, now: float) -> None:
        """A member that asked then is told its epoch; it `joins` by that."""
        self._fenced = [known for known in self._fenced if known.until > now]
        there = [Known(one.until, told) for one, told in self._told.items() if one.until > now]
        newest = max((one for known in (*there, *self._fenced) for at, one in known.told if at <= asked_at), default=-1)
        require(
            not joins or epoch >= newest,
            f"the epochs of group {self._group} do not go on: {_named(membership)} joins in {epoch}; a member was told "
            f"{newest} before",
            "H",
        )
        self._told.setdefault(membership, []).append((now, epoch))

    def fenced(self, membership: Membership) -> None:
        self._fenced.append(Known(membership.until, tuple(self._told.get(membership, ()))))

    def over(self, membership: Membership) -> None:
        self._told.pop(membership, None)


class Ownership:
    """Raises `Violation`, of H. `partitions`: of the internal topic."""

    def __init__(self, partitions: int, seconds: Callable[[], float]) -> None:
        """`seconds`: the simulated time."""
        self.seen: Counter[str] = Counter()
        """Counts of events, by name."""
        self._partitions = partitions
        self._seconds = seconds
        self._reigns: dict[int, Reign] = {}
        """The newest of each partition of the internal topic."""
        self._members: dict[str, set[Membership]] = {}
        """Per group those that have anything."""
        self._newest: dict[tuple[str, Partition], Told] = {}
        """The member that was last told that it has a partition."""
        self._kinds: dict[str, str] = {}
        """The kind that a group was of when a member was last told anything."""
        self._lines: dict[str, EpochLine] = {}

    def served(self, node_id: int, index: int) -> None:
        """A node has loaded a partition of the internal topic, and coordinates its groups from now on."""
        self._reigns[index] = Reign(node_id, self._seconds())
        self.seen["reigns"] += 1

    def heard(self, membership: Membership, node_id: int, asked_at: float, epoch: int, *, joins: bool) -> None:
        """A member that asked then is told that it is one, of this epoch: its first, if it `joins`."""
        reign = self._reign(membership, node_id, asked_at)
        if reign is None:
            return
        membership.until = max(membership.until, asked_at + membership.session_seconds)
        membership.reign = reign
        self._line(membership.group).told(membership, joins, asked_at, epoch, self._seconds())

    def refused(self, membership: Membership, node_id: int, asked_at: float, *, unknown: bool) -> None:
        """A member that asked then is told that it is none, or (not `unknown`) that its epoch is over."""
        reign, now = self._reign(membership, node_id, asked_at), self._seconds()
        if reign is None or membership.until <= now:
            return
        if not unknown:
            self._line(membership.group).fenced(membership)
            return
        kind = self._kinds.get(membership.group, "new")
        named = (
            f"group {membership.group}, {kind} when it last told a member what it has: "
            f"{_named(membership)} has its session until {membership.until:.3f} at least; it is {now:.3f}"
        )
        require(membership.reign is reign, f"a member is lost with its coordinator: {named}", "H")
        require(False, f"a member is removed while its session runs: {named}", "H")

    def _reign(self, membership: Membership, node_id: int, asked_at: float) -> Reign | None:
        """The one that has answered a request of that time, if it is the newest of the member's group."""
        reign = self._reigns[coordinator_partition_of(membership.group, self._partitions)]
        return reign if reign.node_id == node_id and reign.began <= asked_at else None

    def _line(self, group: str) -> EpochLine:
        return self._lines.setdefault(group, EpochLine(group))

    def told(self, membership: Membership, kind: str, now_owned: Collection[Partition]) -> set[Partition]:
        """A member, `heard` before, is told what it has, by a group of this kind. Returns what it has no more."""
        group, before = membership.group, self._kinds.get(membership.group, kind)
        self._kinds[group] = kind
        self.seen[f"{before} to {kind}"] += before != kind
        lost = membership.owned.keys() - set(now_owned)
        self.gives_up(membership, lost)
        for place in sorted(set(now_owned) - membership.owned.keys()):
            self._check_free(membership, kind, place)
            membership.owned[place] = kind
            self._newest[group, place] = Told(membership, self._seconds())
            self.seen["told"] += 1
        if membership.owned:
            self._members.setdefault(group, set()).add(membership)
        return lost

    def _check_free(self, membership: Membership, kind: str, place: Partition) -> None:
        now = self._seconds()
        if membership.until <= now:
            return
        for other in self._members.get(membership.group, ()):
            if other is membership or place not in other.owned or other.until <= now:
                continue
            named = (
                f"group {membership.group}: partition {place.index} of {place.topic_id}: {_named(membership)} gets "
                f"what {_named(other)} has until {other.until:.3f} at least; it is {now:.3f}"
            )
            require(other.owned[place] == kind, f"a partition changes its owner as the group's protocol: {named}", "H")
            require(False, f"a partition is owned by two members at once: {named}", "H")

    def gives_up(self, membership: Membership, places: Iterable[Partition]) -> None:
        for place in list(places):
            membership.owned.pop(place, None)
        if not membership.owned:
            self._members.get(membership.group, set()).discard(membership)

    def over(self, membership: Membership) -> None:
        """It knows that it is no member any more, or is no more itself."""
        self.gives_up(membership, list(membership.owned))
        self._line(membership.group).over(membership)
        membership.until = 0.0

    def committed(self, membership: Membership, epoch: int, place: Partition, asked_at: float) -> None:
        """A member that asked then, by this epoch or generation of its, is told that its offset is committed."""
        self.seen["committed"] += 1
        newest = self._newest[membership.group, place]
        require(
            newest.membership is membership or newest.at >= asked_at,
            f"group {membership.group}: a member was fenced too late: {_named(membership)} commits by {epoch} in "
            f"partition {place.index} of {place.topic_id}, asked at {asked_at:.3f}; {_named(newest.membership)} was "
            f"told at {newest.at:.3f} that it has it",
            "H",
        )


def _named(membership: Membership) -> str:
    return f"{membership.protocol} member {membership.member_id} ({membership.epoch})"
