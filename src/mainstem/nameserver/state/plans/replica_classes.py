"""The classes of write groups: the write groups of a class have equally many replicas, and a topic's replication factor
chooses the class that its queues are in. No I/O.

Nothing says so but what is there anyway. The table of slots has 4,096 for each class, one class after another; a class
has as many replicas as its write groups have, and a move leaves their number as it is. Which class a queue is in
follows from its id: once there are several classes, topics get numbers that name one (`model.class_of`). Numbers
still only go up, so that whoever asks whether a number was given out needs to know of no class.

A slot that moves may come to write groups with more replicas than its class has, or with fewer (`reduced_slots`).

Invariant: no two classes are added for the same factor. An adopted cluster has its classes with one factor for all of
them, as its write groups are placed anew; topics are then made in the first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mainstem.model import CLASSED, CLASSES_MAX, FACTOR_OF_CLUSTER, SLOTS, class_of
from mainstem.nameserver.errors import InvalidReplicationFactor
from mainstem.nameserver.state.commands import CreateTopic

Factors = tuple[int, ...]
"""By class, how many replicas its write groups have. Empty: they are not placed yet."""


def factors_of(
    slots: Sequence[int], placements: Mapping[int, Sequence[int]], moved: Collection[int] = (), fewer: int = 0
) -> Factors:
    """The factors of the classes of a table of slots. `moved`: slots that may be in write groups with more replicas
    than their class has, or `fewer` of them with fewer."""
    if not placements:
        return ()
    firsts = range(0, len(slots), SLOTS)
    return tuple(_factor(range(first, first + SLOTS), slots, placements, moved, fewer) for first in firsts)


def _factor(
    own: range, slots: Sequence[int], placements: Mapping[int, Sequence[int]], moved: Collection[int], fewer: int
) -> int:
    """The factor of the class with these slots. If all of them have moved, it is no less than the class
    was made with."""
    stayed = next((slot for slot in own if slot not in moved), None)
    if stayed is not None:
        return len(placements[slots[stayed]])
    return sorted(len(placements[slots[slot]]) for slot in own)[fewer]


def class_for(factor: int, factors: Factors, *, internal: bool) -> int:
    """The class of a new topic; the first where there is none of this factor, which `check_factor` refuses if that is
    more than the first keeps. Internal topics get no fewer copies than the cluster's first write groups keep: what
    their settings ask for was written down when there was nothing to choose from."""
    if len(factors) < 2 or factor not in factors or (internal and factor < factors[0]):
        return 0
    return factors.index(factor)


def factor_for(factor: int, factors: Factors, which: int, *, internal: bool) -> int:
    """The factor of a new topic in class `which`, to be kept in the metadata."""
    if factor == FACTOR_OF_CLUSTER or (internal and len(factors) > 1):
        return factors[which] if factors else 1
    return factor


def number_for(lowest: int, which: int, classes: int) -> int:
    """The number of a new topic in class `which`, from `lowest` on."""
    if classes < 2:
        return lowest
    begin = max(lowest, CLASSED)
    return begin + -begin % CLASSES_MAX + which


def check_factor(command: CreateTopic, nodes: int, factors: Factors) -> None:
    """Raises `InvalidReplicationFactor`. `nodes`: how many store."""
    factor, which = command.replication_factor, class_of(command.number)
    told = f"topic {command.name!r}: replication factor {factor}"
    if len(factors) > 1 and factor != factors[which] and not _is_granted(factor, factors, which):
        raise InvalidReplicationFactor(
            f"{told}, but the cluster has write groups with {_either(factors)} replicas only: ask for one of these, or "
            f"-1 for {factors[0]}{_adding(factor, nodes)}"
        )
    if not 1 <= factor <= nodes:
        raise InvalidReplicationFactor(f"{told}, allowed is 1 to {nodes}, the number of nodes that store")
    if len(factors) == 1 and factor > factors[0] and not command.internal:
        raise InvalidReplicationFactor(
            f"{told}, but the write groups keep {factors[0]} copies of every topic: ask for {factors[0]} or fewer "
            f"(broker.default_replication_factor is what topics get that ask for none){_adding(factor, nodes)}"
        )


def _is_granted(factor: int, factors: Factors, which: int) -> bool:
    """Whether a class of another factor is granted: the first, which keeps more, as if there was no other. A class may
    have come about by the reassignment of a partition, of which those who create topics know nothing."""
    return which == 0 and 1 <= factor < factors[0] and factor not in factors


def _either(factors: Factors) -> str:
    *others, last = map(str, sorted(set(factors)))
    return f"{', '.join(others)} or {last}" if others else last


def _adding(factor: int, nodes: int) -> str:
    """The remedy, where there are nodes enough."""
    if not 1 <= factor <= nodes:
        return ""
    return f"; mainstem cluster write-groups TOTAL --replication-factor {factor} adds write groups for it"
