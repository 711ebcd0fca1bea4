"""The blocks of other write groups that a replica of a write group applies first, because queues came from there.

Queues that arrive in a log have earlier batches in others. A replica that lags gets these logs, or snapshots of them,
in any order; it may write and apply the batches of a queue in the order of their offsets only. So each arrival says
what comes before it: the fence of the write group that the queues come from, and whatever comes before that
(`Prior`). A replica that gets an arrival with a snapshot knows the same from the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec


class Prior(NamedTuple):
    """A replica applies this of another write group first."""

    group: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    """The block with the fence."""
    committed: int = 0
    """A block that is known to be committed, that one or a later one; 0: none is known."""
    committed_term: int = 0


class Arrival(NamedTuple):
    """A slot has come to a write group."""

    group: int
    number: int
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    """Of its last block, in the log of that write group; 0: not known."""
    before: int = -1
    behind: int = 0
    """The block of the write group before that has the fence."""


def joined_needs(needs: Iterable[Prior]) -> list[Prior]:
    """One for each write group, that is as good as all of these."""
    joined: dict[int, Prior] = {}
    for need in needs:
        known = joined.get(need.group, Prior(need.group, 0))
        committed, term = max(known[2:], need[2:])
        joined[need.group] = Prior(need.group, max(known.index, need.index), committed, term)
    return list(joined.values())


class ArrivalLog(msgspec.Struct, array_like=True):
    """The arrivals in the log of a write group, as far as snapshots of it may tell of them."""

    slots: dict[int, list[Arrival]] = {}
    """Per slot, oldest first."""
    needed: list[tuple[int, Prior]] = []
    """With the blocks of the arrivals that need it, oldest first."""

    def note(self, slot: int, arrival: Arrival, needs: Iterable[Prior], snapshots_from: int) -> None:
        """Take in an arrival. `snapshots_from`: all snapshots from now on stand at this block, or behind it, so that
        earlier arrivals may be told together."""
        arrivals = self.slots.setdefault(slot, [])
        arrivals.append(arrival)
        while len(arrivals) > 1 and arrivals[1].index <= snapshots_from:
            del arrivals[0]
        earlier = joined_needs(need for index, need in self.needed if index <= snapshots_from)
        self.needed = [
            *((snapshots_from, need) for need in earlier),
            *((index, need) for index, need in self.needed if index > snapshots_from),
            *((arrival.index, need) for need in needs),
        ]

    def number_of(self, slot: int) -> int:
        """The number of the slot's last move to the write group; 0: it has not come there."""
        return self.slots[slot][-1].number if slot in self.slots else 0

    def upto(self, index: int) -> Iterator[tuple[int, Arrival]]:
        """The last arrival of each slot up to a block."""
        for slot, arrivals in self.slots.items():
            last = next((one for one in reversed(arrivals) if one.index <= index), None)
            if last is not None:
                yield slot, last

    def behind(self, index: int) -> set[int]:
        """The slots whose last arrival is behind a block."""
        return {slot for slot, arrivals in self.slots.items() if arrivals[-1].index > index}

    def needs(self, index: int | None = None) -> list[Prior]:
        """The priors of all arrivals; of those up to a block."""
        return joined_needs(need for at, need in self.needed if index is None or at <= index)

    def copied(self) -> ArrivalLog:
        return ArrivalLog({slot: list(arrivals) for slot, arrivals in self.slots.items()}, list(self.needed))
