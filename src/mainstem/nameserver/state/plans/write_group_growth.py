"""How a cluster comes to more write groups: which nodes begin them, and which slots they take over. No I/O.

A slot moves only while no queue hashes to it, and only to a write group that comes with the same command. So nobody can
append to a queue in two write groups, however far nodes lag behind in the metadata: whoever knows a queue of such a
slot heard of the queue later than of the slot, and whoever leads the new write group has heard of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from mainstem.model import CLASSED, CLASSES_MAX, SLOTS, Location, Topic, is_slot_table, slot_of
from mainstem.nameserver.errors import InvalidPlacement
from mainstem.nameserver.state.commands import AddWriteGroups
from mainstem.nameserver.state.plans.replica_classes import Factors
from mainstem.nameserver.state.plans.replica_placement import place_write_groups

WRITE_GROUPS_MAX = 256
"""Write groups that a cluster can grow to. Each costs every node that has it ten heartbeats a second and an open block;
beyond some dozens, more of them spread nothing that was not spread before."""


def used_slots(topics: Iterable[Topic], slots: int = SLOTS) -> set[int]:
    """The slots, of so many, to which queues of these topics hash. Few queues are looked at where there are many: once
    all slots are used, nothing is left to find out."""
    used: set[int] = set()
    for topic in topics:
        first = topic.queue_id(0)
        for queue_id in range(first, first + topic.partitions):
            used.add(slot_of(queue_id))
            if len(used) == slots:
                return used
    return used


def grown(
    total: int,
    slots: Sequence[int],
    used: Collection[int],
    factors: Factors,
    placements: Mapping[int, Sequence[int]],
    locations: Mapping[int, Location],
    replication_factor: int = 0,
) -> AddWriteGroups:
    """The command after which there are `total` write groups, the new ones with so many replicas (0: with as many as
    the first ones have); `locations` names the nodes that can begin them. Raises `InvalidPlacement`."""
    first = len(placements)
    check_total(total, first)
    replicas = replication_factor or factors[0]
    if len(locations) < replicas:
        raise InvalidPlacement(
            f"a write group with {replicas} replicas takes {replicas} nodes that store, live and are not drained, and "
            f"there are {len(locations)}: start the others first"
        )
    which = factors.index(replicas) if replicas in factors else len(factors)
    if which == CLASSES_MAX:
        raise InvalidPlacement(
            f"the cluster has write groups with {CLASSES_MAX} different numbers of replicas, and cannot have more"
        )
    new = place_write_groups(total - first, locations, replicas, placements)
    return AddWriteGroups(first, new, _spread(slots, used, which, first, total))


def check_total(total: int, present: int) -> None:
    """Raises `InvalidPlacement` for a number of write groups that the cluster cannot grow to."""
    if total <= present:
        raise InvalidPlacement(f"the cluster has {present} write groups: it can have more, not {total}")
    if total > WRITE_GROUPS_MAX:
        raise InvalidPlacement(f"a cluster grows to {WRITE_GROUPS_MAX} write groups, not to {total}")


def check_slots(command: AddWriteGroups, slots: Sequence[int], used: Collection[int]) -> None:
    """Raises `InvalidPlacement` for slots that must not move as the command says."""
    last = command.first + len(command.founders)
    if not is_slot_table(command.slots, last) or len(command.slots) not in (len(slots), len(slots) + SLOTS):
        raise InvalidPlacement("all slots are given to write groups at once, and one class comes at a time")
    present = [*slots, *[None] * (len(command.slots) - len(slots))]
    for slot, (before, after) in enumerate(zip(present, command.slots, strict=True)):
        if before == after:
            continue
        if slot in used:
            raise InvalidPlacement(f"slot {slot} has queues by now, and stays in write group {before}: try again")
        if not command.first <= after < last:
            raise InvalidPlacement(f"slot {slot} cannot move to write group {after}, which is none of the new ones")
    if lacking := set(range(command.first, last)).difference(command.slots):
        raise InvalidPlacement(
            f"every slot that could be given to write group {min(lacking)} has queues, which cannot move to another "
            "write group: fewer new ones may find slots"
        )


def check_class(command: AddWriteGroups, factors: Factors, next_number: int) -> None:
    """Raises `InvalidPlacement` unless the new write groups, whose slots were checked, are of one class and have as
    many replicas as it has. `next_number`: of the next topic."""
    classes = {slot // SLOTS for slot, group in enumerate(command.slots) if group >= command.first}
    if len(classes) != 1:
        raise InvalidPlacement("write groups of several classes are added one class after another")
    (which,) = classes
    is_new = which == len(factors)
    factor = len(command.founders[0]) if is_new else factors[which]
    for group, replicas in enumerate(command.founders, command.first):
        if len(replicas) != factor:
            raise InvalidPlacement(f"write group {group} would have {len(replicas)} replicas, the others have {factor}")
    if is_new and factor in factors:
        raise InvalidPlacement(f"there are write groups with {factor} replicas by now: try again")
    if is_new and len(factors) == 1 and next_number > CLASSED:
        raise InvalidPlacement(
            f"topics have had all numbers up to {CLASSED}, and those above would name classes: this cluster keeps to "
            "one class of write groups"
        )


def _spread(slots: Sequence[int], used: Collection[int], which: int, first: int, total: int) -> list[int]:
    """The slots as they are spread once there are write groups from `first` to `total` of class `which`: each new one
    takes unused slots from those of its class that have more than their share, as evenly as these have some."""
    begin = which * SLOTS
    if begin == len(slots):
        return [*slots, *(first + slot % (total - first) for slot in range(SLOTS))]
    own = slots[begin : begin + SLOTS]
    left = Counter(own)
    share = SLOTS // (len(left) + total - first)
    after = list(slots)
    new = list(range(first, total))
    held = Counter[int]()
    for slot, group in enumerate(own, begin):
        if slot in used or left[group] <= share:
            continue
        taker = min(new, key=lambda it: (held[it], it))
        if held[taker] >= share:
            break
        left[group] -= 1
        held[taker] += 1
        after[slot] = taker
    return after
