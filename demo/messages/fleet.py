"""The state of each aircraft: what the demo sends to its compacted topic, and what must be left there.

Each flight of a known aircraft makes a record, keyed by tail number: where the aircraft is now, by which flight, and
how many flights and miles it has. A cancelled flight makes a tombstone: there is no state until the aircraft flies
again.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import NamedTuple

from demo.messages.data import Flight
from demo.messages.ledger import Reading


class Fleet:
    """The newest state of each aircraft, computed here as flights are sent."""

    def __init__(self) -> None:
        self.states: dict[bytes, bytes] = {}
        """Tail number -> state; aircraft whose last flight was cancelled have none."""
        self._flights: Counter[bytes] = Counter()
        self._miles: Counter[bytes] = Counter()

    def take(self, flight: Flight) -> bytes | None:
        """The state of the aircraft after this flight; None: a tombstone."""
        aircraft = flight.key
        if flight.is_cancelled:
            self.states.pop(aircraft, None)
            return None
        self._flights[aircraft] += 1
        self._miles[aircraft] += flight.miles
        state = {
            "at": flight.destination,
            "from": flight.origin,
            "flight": flight.number,
            "day": flight.day,
            "flights": self._flights[aircraft],
            "miles": self._miles[aircraft],
        }
        self.states[aircraft] = json.dumps(state, separators=(",", ":")).encode()
        return self.states[aircraft]


class Compacted(NamedTuple):
    """The records that a compaction left of a topic, against what was there and what must be left."""

    records: int
    tombstones: int
    has_states: bool
    """The latest records are the states, and no aircraft without a state has one."""
    is_once_per_key: bool
    is_in_place: bool
    """Each record is one that was there before, at the same offset."""

    @property
    def is_right(self) -> bool:
        return self.has_states and self.is_once_per_key and self.is_in_place


def compare(before: Reading, after: Reading, states: dict[bytes, bytes]) -> Compacted:
    """Compare readings of a topic before and after its compaction with the newest state of each key."""
    left = {key: value for key, value in after.latest.items() if value is not None}
    return Compacted(
        records=len(after.fingerprints),
        tombstones=len(after.latest) - len(left),
        has_states=left == states,
        is_once_per_key=len(after.fingerprints) == len(after.latest) and not after.repeated,
        is_in_place=after.fingerprints.items() <= before.fingerprints.items(),
    )
