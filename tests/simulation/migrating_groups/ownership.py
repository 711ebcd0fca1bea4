"""The truth about which member has which partition, as the members themselves see it (H).

A member has a partition from when it is told so until it gives it up, is told that it is no member, or has heard
nothing for as long as its session lasts. An answer proves that its sender was a member when it asked, if the node that
gave it has coordinated the group ever since: a node that coordinates it no more may go on answering for a while, in
Kafka as here.

- A partition has one member at a time, whichever protocols they speak, and whatever the group becomes meanwhile.
- A member that has lost a partition to another one commits no offset of it, by the epoch or generation in which it
  had it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.oracle import require
from tests.simulation.whole.client import Partition

from mainstem.broker.machines.coordinator_topic import coordinator_partition_of

CLASSIC, CONSUMER = "classic", "consumer"
"""The protocols, of groups and of members."""


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
    owned: dict[Partition, str] = field(default_factory=dict)
    """The partitions that it has, and of which kind the group was when it got each."""


class Told(NamedTuple):
    membership: Membership
    at: float


class Reign(NamedTuple):
    node_id: int
    began: float


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

    def served(self, node_id: int, index: int) -> None:
        """A node has loaded a partition of the internal topic, and coordinates its groups from now on."""
        self._reigns[index] = Reign(node_id, self._seconds())
        self.seen["reigns"] += 1

    def heard(self, membership: Membership, node_id: int, asked_at: float) -> None:
        """A member that asked then is told that it is one."""
        reign = self._reigns[coordinator_partition_of(membership.group, self._partitions)]
        if reign.node_id == node_id and reign.began <= asked_at:
            membership.until = max(membership.until, asked_at + membership.session_seconds)

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
